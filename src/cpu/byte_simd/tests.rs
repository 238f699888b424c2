use super::*;
use std::cell::Cell;

thread_local! {
    pub static FORCED: Cell<Option<ByteIsa>> = const { Cell::new(None) };
}

/// Runs `work` with each instruction set in turn. The work must be too small for the thread pool: the choice is
/// thread-local.
pub fn with_every_isa(work: impl Fn(ByteIsa)) {
    for isa in ByteIsa::available() {
        FORCED.set(Some(isa));
        work(isa);
        FORCED.set(None);
    }
}

struct Check<'a> {
    codes: &'a [u8; 64],
    x: &'a [i8; 512],
}

impl Check<'_> {
    fn of<B: ByteSimd, const BITS: i32, const N: usize>(
        &self,
        b: B,
        planes: impl Fn(B, B::V) -> [B::V; N],
    ) {
        // SAFETY: both arrays hold N vectors of 64 bytes, N ≤ 8.
        let got = unsafe {
            let codes = planes(b, b.load(self.codes.as_ptr()));
            let x: [B::V; N] =
                std::array::from_fn(|i| b.load(self.x.as_ptr().add(B::WIDTH * i).cast()));
            let mut sum = b.zero();
            for _ in 0..3 {
                sum = b.dot(sum, codes, x);
            }
            b.reduce_add_i32(sum)
        };
        let mut want = 0;
        for i in 0..N {
            for j in 0..B::WIDTH {
                let code = (self.codes[j] >> (BITS as usize * i)) & ((1 << BITS) - 1);
                want += 3 * i32::from(code) * i32::from(self.x[B::WIDTH * i + j]);
            }
        }
        assert_eq!(got, want);
    }
}

impl Check<'_> {
    /// Codes that are not moved to the lowest bits.
    fn in_place<B: ByteSimd>(&self, b: B) {
        // SAFETY: both arrays hold N vectors of 64 bytes, N ≤ 8.
        let got = unsafe {
            let (codes, x) = (b.load(self.codes.as_ptr()), b.load(self.x.as_ptr().cast()));
            let sum = b.dot(b.zero(), [b.codes::<12, 4>(codes)], [x]);
            b.reduce_add_i32(b.add_shifted::<2>(sum, sum))
        };
        let products = self.codes[..B::WIDTH].iter().zip(self.x);
        let want = products.map(|(&c, &x)| 5 * i32::from(c >> 6) * i32::from(x));
        assert_eq!(got, want.sum::<i32>());
    }

    /// All eight bits, and arithmetic on sums.
    fn bytes<B: ByteSimd>(&self, b: B) {
        // SAFETY: both arrays hold N vectors of 64 bytes, N ≤ 8.
        let got = unsafe {
            let codes = b.load(self.codes.as_ptr());
            let x = b.load(self.x.as_ptr().cast());
            let sum = b.dot_bytes(b.zero(), codes, x);
            let lanes: [i32; MAX_LANES] = std::array::from_fn(|i| i as i32);
            let lanes = b.load_i32(lanes.as_ptr());
            b.reduce_add_i32(b.add_shifted::<0>(b.times_256(sum), lanes))
        };
        let products = self.codes[..B::WIDTH].iter().zip(self.x);
        let sum: i32 = products.map(|(&c, &x)| i32::from(c) * i32::from(x)).sum();
        let lanes = B::WIDTH as i32 / 4;
        assert_eq!(got, 256 * sum + lanes * (lanes - 1) / 2);
    }
}

impl ByteKernel for Check<'_> {
    #[inline(always)]
    fn run<B: ByteSimd>(self, b: B) {
        self.of::<B, 1, 8>(b, unpack_1_bit);
        self.of::<B, 2, 4>(b, unpack_2_bits);
        self.of::<B, 4, 2>(b, unpack_4_bits);
        self.bytes(b);
        self.in_place(b);
        // Lane i is the sum over bytes 4 · i to 4 · i + 3.
        let lanes = B::WIDTH / 4;
        let ends: [f32; MAX_LANES] = std::array::from_fn(|i| i as f32 + 0.5);
        // SAFETY: the byte arrays hold a vector of 64 bytes, those of f32 MAX_LANES values.
        unsafe {
            let (codes, x) = (b.load(self.codes.as_ptr()), b.load(self.x.as_ptr().cast()));
            let sum = b.to_float(b.dot(b.zero(), [b.codes::<15, 0>(codes)], [x]));
            let got = b.reduce_add(b.fma(b.mul(sum, b.load_f32(ends.as_ptr())), b.splat(2.0), sum));
            let term = |j: usize| {
                let product = i32::from(self.codes[j] & 15) * i32::from(self.x[j]);
                product as f32 * (2.0 * ends[j / 4] + 1.0)
            };
            assert_eq!(got, (0..B::WIDTH).map(term).sum::<f32>());
            let weighted = |f: B::F| b.reduce_add(b.mul(f, b.load_f32(ends.as_ptr())));
            let numbers = b.load_f32(ends.as_ptr());
            for n in 0..lanes {
                let from: [i32; MAX_LANES] = std::array::from_fn(|i| ((i * n + 3) % lanes) as i32);
                let term = |i: usize| ends[from[i] as usize] * ends[i];
                let permuted = weighted(b.permute(numbers, &from));
                assert_eq!(permuted, (0..lanes).map(term).sum::<f32>());
                let some = weighted(b.load_first(&ends[..n]));
                assert_eq!(some, ends[..n].iter().map(|x| x * x).sum::<f32>());
            }
            let mut stored = [0.0; MAX_LANES];
            b.store_f32(stored.as_mut_ptr(), b.mul(numbers, b.splat(2.0)));
            assert_eq!(weighted(b.load_f32(stored.as_ptr())), {
                let term = |i: usize| 2.0 * ends[i] * ends[i];
                (0..lanes).map(term).sum::<f32>()
            });
        }
    }
}

#[test]
fn every_instruction_set_is_exact() {
    let pattern = |i: usize| (i * 37 + i * i * 11) % 251;
    for isa in ByteIsa::available() {
        for round in 0..40 {
            let code = |i: usize| pattern(i + round) as u8;
            let mut x: [i8; 512] = std::array::from_fn(|i| pattern(i * 3 + round) as u8 as i8);
            let mut codes = std::array::from_fn(code);
            if round == 0 {
                (x, codes) = ([-128; 512], [0xff; 64]);
            }
            if round == 1 {
                (x, codes) = ([127; 512], [0xff; 64]);
            }
            // SAFETY: `isa` comes from `available`.
            unsafe {
                isa.run(Check {
                    codes: &codes,
                    x: &x,
                })
            };
        }
    }
}
