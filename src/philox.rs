//! Philox4x32-10 (Salmon et al., 2011): random words as a function of a key and a counter.

/// Four random words of (seed, counter).
pub fn philox(seed: u64, counter: u64) -> [u32; 4] {
    words::<1>(seed, counter).map(|[word]| word)
}

/// The words of N counters from `counter` on, as [word][counter]: loops over counters become vectors.
#[allow(clippy::needless_range_loop, reason = "four arrays in step")]
#[inline(always)]
pub fn words<const N: usize>(seed: u64, counter: u64) -> [[u32; N]; 4] {
    let mut c = [[0; N]; 4];
    for i in 0..N {
        let counter = counter + i as u64;
        (c[0][i], c[1][i]) = (counter as u32, (counter >> 32) as u32);
    }
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        for i in 0..N {
            let a = u64::from(c[0][i]) * 0xD251_1F53;
            let b = u64::from(c[2][i]) * 0xCD9E_8D57;
            c[0][i] = (b >> 32) as u32 ^ c[1][i] ^ key[0];
            c[1][i] = b as u32;
            c[2][i] = (a >> 32) as u32 ^ c[3][i] ^ key[1];
            c[3][i] = a as u32;
        }
        key[0] = key[0].wrapping_add(0x9E37_79B9);
        key[1] = key[1].wrapping_add(0xBB67_AE85);
    }
    c
}

/// Dropout's mask: which elements stay, and by what they are scaled.
#[derive(Clone, Copy)]
pub struct Mask {
    pub seed: u64,
    /// An element is dropped if its word is below this.
    pub threshold: u32,
    pub scale: f32,
}

impl Mask {
    /// `0 ≤ p < 1`
    pub fn new(p: f32, seed: u64) -> Self {
        Mask {
            seed,
            threshold: (f64::from(p) * 2f64.powi(32)) as u32,
            scale: 1.0 / (1.0 - p),
        }
    }

    /// The factor of an element whose random word this is.
    #[inline(always)]
    fn of_word(&self, word: u32) -> f32 {
        if word >= self.threshold {
            self.scale
        } else {
            0.0
        }
    }

    /// The factor of element i: 0 or the scale.
    pub fn factor(&self, i: usize) -> f32 {
        self.of_word(philox(self.seed, i as u64 / 4)[i % 4])
    }

    /// The factors of the elements from `start` on, which is a multiple of four.
    #[inline(always)]
    pub fn factors(&self, start: usize, out: &mut [f32; BLOCK]) {
        let words = words::<{ BLOCK / 4 }>(self.seed, start as u64 / 4);
        for i in 0..BLOCK / 4 {
            for k in 0..4 {
                out[4 * i + k] = self.of_word(words[k][i]);
            }
        }
    }
}

/// A number in [0, 1), a multiple of 2⁻²⁴, of element i.
#[inline(always)]
pub fn uniform(seed: u64, i: usize) -> f32 {
    let word = philox(seed, i as u64 / 4)[i % 4];
    (word >> 8) as f32 * f32::powi(2.0, -24)
}

/// The elements whose factors are made at once.
pub const BLOCK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published vector for an all-zero key and counter.
    #[test]
    fn known_answer() {
        let want = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(philox(0, 0), want);
    }

    #[test]
    fn a_block_has_the_factors_of_its_elements() {
        let mask = Mask::new(0.3, 0x0123_4567_89ab_cdef);
        for start in [0, 4, 1 << 20, 4 * (u32::MAX as usize) - 32] {
            let mut block = [0.0; BLOCK];
            mask.factors(start, &mut block);
            assert_eq!(block, std::array::from_fn(|i| mask.factor(start + i)));
        }
    }
}
