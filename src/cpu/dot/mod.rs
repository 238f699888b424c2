//! Sums of products of small integers: unsigned codes times signed bytes, in i32, one implementation per instruction set.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(test, not(target_arch = "aarch64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

/// Vectors of 32 or 64 bytes. Every method is `inline(always)`, so that it becomes instructions inside the `target_feature`
/// function that [`dispatch`] enters; values exist only there.
pub trait Bytes: Copy {
    /// Whether the codes of two rows fit the registers, beside the sums of four rows of x with them.
    const MANY_REGISTERS: bool = false;
    /// Bytes of a vector.
    const WIDTH: usize = 32;

    type V: Copy;
    /// Sums of i32, each of four neighbouring bytes: the lanes.
    type Sum: Copy;
    /// An f32 for each lane.
    type F: Copy;

    fn zero(self) -> Self::Sum;
    /// # Safety
    /// `p` is valid for reads of `WIDTH` bytes.
    unsafe fn load(self, p: *const u8) -> Self::V;
    /// The bits of each byte that are in MASK, after a shift right. MASK has none of those that come from the next byte.
    fn codes<const MASK: i32, const SHIFT: i32>(self, v: Self::V) -> Self::V;
    /// Signed bytes plus 128.
    fn raise(self, v: Self::V) -> Self::V;
    /// Adds Σ codes · x, of N vectors. No code is above 15, N times the largest is 30 at most.
    fn dot<const N: usize>(self, sum: Self::Sum, codes: [Self::V; N], x: [Self::V; N])
        -> Self::Sum;
    /// The same of one vector with any codes.
    fn dot_bytes(self, sum: Self::Sum, codes: Self::V, x: Self::V) -> Self::Sum;
    fn times_256(self, sum: Self::Sum) -> Self::Sum;
    /// `a + b / 2^SHIFT` of a b that is a multiple.
    fn add_part<const SHIFT: i32>(self, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// # Safety
    /// `p` is valid for reads of a value for each lane.
    unsafe fn load_i32(self, p: *const i32) -> Self::Sum;
    fn total(self, sum: Self::Sum) -> i32;

    /// # Safety
    /// `p` is valid for reads of a value for each lane.
    unsafe fn load_f32(self, p: *const f32) -> Self::F;
    /// The same with zeros behind the first `left`, if those are fewer.
    ///
    /// # Safety
    /// `p` is valid for reads of as many.
    #[inline(always)]
    unsafe fn load_upto(self, p: *const f32, left: usize) -> Self::F {
        if left >= Self::WIDTH / 4 {
            return self.load_f32(p);
        }
        let mut lanes = [0.0; MAX_LANES];
        for (i, lane) in lanes[..left].iter_mut().enumerate() {
            *lane = *p.add(i);
        }
        self.load_f32(lanes.as_ptr())
    }
    /// # Safety
    /// `p` is valid for writes of a value for each lane.
    unsafe fn store_f32(self, p: *mut f32, x: Self::F);
    fn splat(self, x: f32) -> Self::F;
    fn to_float(self, sum: Self::Sum) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a·b + c
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn reduce_add(self, a: Self::F) -> f32;
    /// For each lane, the number of the lane that `lanes` has there.
    ///
    /// # Safety
    /// `lanes` is valid for reads of one for each lane.
    #[inline(always)]
    unsafe fn permute(self, x: Self::F, lanes: *const i32) -> Self::F {
        let (mut from, mut to) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        self.store_f32(from.as_mut_ptr(), x);
        for (i, to) in to[..Self::WIDTH / 4].iter_mut().enumerate() {
            *to = from[*lanes.add(i) as usize];
        }
        self.load_f32(to.as_ptr())
    }
}

/// Lanes of the widest vectors.
pub const MAX_LANES: usize = 16;

/// Code that is generic over the instruction set. `run` must be `inline(always)`.
pub trait Kernel {
    fn run<B: Bytes>(self, bytes: B);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Of AVX-512, with vectors of 64 bytes, and the same with bit matrices for bytes.
    #[cfg(target_arch = "x86_64")]
    Vnni512Gfni,
    #[cfg(target_arch = "x86_64")]
    Vnni512,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    DotProd,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// For CPUs without the others, and for tests.
    #[cfg(any(test, not(target_arch = "aarch64")))]
    Portable,
}

impl Isa {
    /// Bytes of its vectors.
    fn width(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni512Gfni | Isa::Vnni512 => 64,
            _ => 32,
        }
    }

    /// What this CPU can run, best first.
    pub fn available() -> Vec<Isa> {
        #[cfg(target_arch = "x86_64")]
        let native = {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let vnni = avx2 && is_x86_feature_detected!("avxvnni");
            let vnni512 = is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512f");
            let gfni = vnni512 && is_x86_feature_detected!("gfni");
            [
                (gfni, Isa::Vnni512Gfni),
                (vnni512, Isa::Vnni512),
                (vnni, Isa::Vnni),
                (avx2, Isa::Avx2),
            ]
        };
        #[cfg(target_arch = "aarch64")]
        let native = {
            let dot = std::arch::is_aarch64_feature_detected!("dotprod");
            [(dot, Isa::DotProd), (true, Isa::Neon)]
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let native = [];
        #[cfg(any(test, not(target_arch = "aarch64")))]
        let portable = Some(Isa::Portable);
        #[cfg(not(any(test, not(target_arch = "aarch64"))))]
        let portable = None;
        let here = native.into_iter().filter(|(here, _)| *here);
        here.map(|(_, isa)| isa).chain(portable).collect()
    }

    /// Runs the kernel with this instruction set.
    ///
    /// # Safety
    /// `self` comes from [`Isa::available`] on this machine.
    pub unsafe fn run<K: Kernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni512Gfni => x86::run_vnni512_gfni(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni512 => x86::run_vnni512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => x86::run_vnni(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::run_avx2(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::DotProd => neon::run_dotprod(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run(neon::Neon),
            #[cfg(any(test, not(target_arch = "aarch64")))]
            Isa::Portable => kernel.run(portable::Portable),
        }
    }
}

/// Runs the kernel with the best instruction set of this machine.
pub fn dispatch<K: Kernel>(kernel: K) {
    // SAFETY: it was detected on this machine.
    unsafe { best().run(kernel) }
}

/// Bytes of the vectors that [`dispatch`] takes.
pub fn width() -> usize {
    best().width()
}

fn best() -> Isa {
    #[cfg(test)]
    if let Some(isa) = tests::FORCED.get() {
        return isa;
    }
    static BEST: OnceLock<Isa> = OnceLock::new();
    *BEST.get_or_init(|| Isa::available()[0])
}

/// The codes of one bit of each byte: the first ones, the second ones and so on.
#[inline(always)]
pub fn one_bit<B: Bytes>(b: B, v: B::V) -> [B::V; 8] {
    [
        b.codes::<1, 0>(v),
        b.codes::<1, 1>(v),
        b.codes::<1, 2>(v),
        b.codes::<1, 3>(v),
        b.codes::<1, 4>(v),
        b.codes::<1, 5>(v),
        b.codes::<1, 6>(v),
        b.codes::<1, 7>(v),
    ]
}

/// As [`one_bit`], of codes of two bits.
#[inline(always)]
pub fn two_bits<B: Bytes>(b: B, v: B::V) -> [B::V; 4] {
    [
        b.codes::<3, 0>(v),
        b.codes::<3, 2>(v),
        b.codes::<3, 4>(v),
        b.codes::<3, 6>(v),
    ]
}

/// As [`one_bit`], of codes of four bits.
#[inline(always)]
pub fn four_bits<B: Bytes>(b: B, v: B::V) -> [B::V; 2] {
    [b.codes::<15, 0>(v), b.codes::<15, 4>(v)]
}

#[cfg(test)]
pub use tests::with_every_isa;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        pub static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
    }

    /// Runs `work` with each instruction set in turn. It has to be so small that it stays on this thread.
    pub fn with_every_isa(work: impl Fn(Isa)) {
        for isa in Isa::available() {
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
        fn of<B: Bytes, const BITS: i32, const N: usize>(
            &self,
            b: B,
            planes: impl Fn(B, B::V) -> [B::V; N],
        ) {
            // SAFETY: there are as many bytes.
            let got = unsafe {
                let codes = planes(b, b.load(self.codes.as_ptr()));
                let x: [B::V; N] =
                    std::array::from_fn(|i| b.load(self.x.as_ptr().add(B::WIDTH * i).cast()));
                let mut sum = b.zero();
                for _ in 0..3 {
                    sum = b.dot(sum, codes, x);
                }
                b.total(sum)
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
        /// Codes that stay where they are.
        fn in_place<B: Bytes>(&self, b: B) {
            // SAFETY: there are as many bytes.
            let got = unsafe {
                let (codes, x) = (b.load(self.codes.as_ptr()), b.load(self.x.as_ptr().cast()));
                let sum = b.dot(b.zero(), [b.codes::<12, 4>(codes)], [x]);
                b.total(b.add_part::<2>(sum, sum))
            };
            let products = self.codes[..B::WIDTH].iter().zip(self.x);
            let want = products.map(|(&c, &x)| 5 * i32::from(c >> 6) * i32::from(x));
            assert_eq!(got, want.sum::<i32>());
        }

        /// All eight bits, and arithmetic on sums.
        fn bytes<B: Bytes>(&self, b: B) {
            // SAFETY: there are as many bytes.
            let got = unsafe {
                let codes = b.load(self.codes.as_ptr());
                let x = b.load(self.x.as_ptr().cast());
                let sum = b.dot_bytes(b.zero(), codes, x);
                let lanes: [i32; MAX_LANES] = std::array::from_fn(|i| i as i32);
                let lanes = b.load_i32(lanes.as_ptr());
                b.total(b.add_part::<0>(b.times_256(sum), lanes))
            };
            let products = self.codes[..B::WIDTH].iter().zip(self.x);
            let sum: i32 = products.map(|(&c, &x)| i32::from(c) * i32::from(x)).sum();
            let lanes = B::WIDTH as i32 / 4;
            assert_eq!(got, 256 * sum + lanes * (lanes - 1) / 2);
        }
    }

    impl Kernel for Check<'_> {
        #[inline(always)]
        fn run<B: Bytes>(self, b: B) {
            self.of::<B, 1, 8>(b, one_bit);
            self.of::<B, 2, 4>(b, two_bits);
            self.of::<B, 4, 2>(b, four_bits);
            self.bytes(b);
            self.in_place(b);
            // Lane i is what bytes 4 · i to 4 · i + 3 sum up to.
            let lanes = B::WIDTH / 4;
            let ends: [f32; MAX_LANES] = std::array::from_fn(|i| i as f32 + 0.5);
            // SAFETY: there are as many values and bytes.
            unsafe {
                let (codes, x) = (b.load(self.codes.as_ptr()), b.load(self.x.as_ptr().cast()));
                let sum = b.to_float(b.dot(b.zero(), [b.codes::<15, 0>(codes)], [x]));
                let got =
                    b.reduce_add(b.fma(b.mul(sum, b.load_f32(ends.as_ptr())), b.splat(2.0), sum));
                let term = |j: usize| {
                    let product = i32::from(self.codes[j] & 15) * i32::from(self.x[j]);
                    product as f32 * (2.0 * ends[j / 4] + 1.0)
                };
                assert_eq!(got, (0..B::WIDTH).map(term).sum::<f32>());
                let weighted = |f: B::F| b.reduce_add(b.mul(f, b.load_f32(ends.as_ptr())));
                let numbers = b.load_f32(ends.as_ptr());
                for n in 0..lanes {
                    let from: [i32; MAX_LANES] =
                        std::array::from_fn(|i| ((i * n + 3) % lanes) as i32);
                    let term = |i: usize| ends[from[i] as usize] * ends[i];
                    let permuted = weighted(b.permute(numbers, from.as_ptr()));
                    assert_eq!(permuted, (0..lanes).map(term).sum::<f32>());
                    let some = weighted(b.load_upto(ends.as_ptr(), n));
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
        for isa in Isa::available() {
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
                // SAFETY: the instruction set is available.
                unsafe {
                    isa.run(Check {
                        codes: &codes,
                        x: &x,
                    })
                };
            }
        }
    }
}
