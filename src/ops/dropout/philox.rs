//! Philox4x32-10 (Salmon et al., 2011): random words as a function of a key and a counter.

/// Four random words of (seed, counter).
#[inline(always)]
pub fn philox(seed: u64, counter: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xD251_1F53;
        let b = u64::from(c[2]) * 0xCD9E_8D57;
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    c
}

/// Which elements stay, and by what they are scaled.
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

    #[inline(always)]
    pub fn keep(&self, word: u32) -> f32 {
        if word >= self.threshold {
            self.scale
        } else {
            0.0
        }
    }

    /// The factor of element i: 0 or the scale.
    pub fn factor(&self, i: usize) -> f32 {
        self.keep(philox(self.seed, i as u64 / 4)[i % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published vector for an all-zero key and counter.
    #[test]
    fn known_answer() {
        let want = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(philox(0, 0), want);
    }
}
