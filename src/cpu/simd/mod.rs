//! Lanes of f32, one implementation per instruction set, chosen once at run time.
//!
//! The crate `pulp` has no f16 conversions on x86 and no 16-bit lanes. This trait is the small set of operations that our
//! kernels need, among them loads and stores of f16 and bf16.

pub(in crate::cpu) mod intrinsics;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::check;
use half::f16;
use std::sync::OnceLock;

/// Loads and stores of less than a vector, by way of an array that has room for a whole one.
macro_rules! parts_of_vectors {
    ($($T:ty: $load_few:ident by $load:ident, $store_few:ident by $store:ident;)*) => {$(
        #[doc = concat!("As `", stringify!($load), "`, the first `n` < `LANES` values; the other lanes are 0.")]
        ///
        /// # Safety
        /// `p` is valid for reads of `n` values.
        #[inline(always)]
        unsafe fn $load_few(self, p: *const $T, n: usize) -> Self::F {
            let mut lanes = [<$T>::default(); MAX_LANES];
            // SAFETY: n < LANES ≤ MAX_LANES, so the array has room for the n values that the caller has at `p`, and then
            // for the vector that is loaded.
            unsafe {
                copy_few(p, lanes.as_mut_ptr(), n);
                self.$load(lanes.as_ptr())
            }
        }
        #[doc = concat!("As `", stringify!($store), "`, the first `n` < `LANES` values.")]
        ///
        /// # Safety
        /// `p` is valid for writes of `n` values.
        #[inline(always)]
        unsafe fn $store_few(self, p: *mut $T, n: usize, x: Self::F) {
            let mut lanes = [<$T>::default(); MAX_LANES];
            // SAFETY: LANES ≤ MAX_LANES, so the array has room for the vector; n < LANES of it go to `p`, where the caller
            // has room for them.
            unsafe {
                self.$store(lanes.as_mut_ptr(), x);
                copy_few(lanes.as_ptr(), p, n);
            }
        }
    )*};
}

/// One instruction set's vectors. Every method is `inline(always)`, so that it becomes a single
/// instruction inside the `target_feature` function that [`dispatch`] enters.
///
/// Values of these types exist only inside [`dispatch`], i.e. on a CPU that has the instructions.
pub trait Simd: Copy + Send + Sync + 'static {
    const LANES: usize;

    /// Runs another kernel with this instruction set by a call that is never inlined: for code that many kernels share.
    fn call<K: Kernel>(self, kernel: K);

    /// `LANES` f32 values.
    type F: Copy;
    /// `LANES` 32-bit integers.
    type I: Copy;
    /// One flag per lane.
    type M: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    fn sqrt(self, a: Self::F) -> Self::F;
    /// a·b + c, fused where the hardware fuses.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c − a·b, fused where the hardware fuses.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: a NaN in either operand gives `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: a NaN in either operand gives `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;

    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// Lanes of `a` where `m` is set, of `b` elsewhere.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;

    /// Neighbouring lanes exchanged: 1, 0, 3, 2, …
    fn swap_pairs(self, a: Self::F) -> Self::F;

    fn isplat(self, x: i32) -> Self::I;
    fn bits(self, a: Self::F) -> Self::I;
    /// The floats of these bit patterns.
    fn float(self, a: Self::I) -> Self::F;
    /// The nearest float of each integer.
    fn to_float(self, a: Self::I) -> Self::F;
    fn iadd(self, a: Self::I, b: Self::I) -> Self::I;
    fn isub(self, a: Self::I, b: Self::I) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn shl<const N: i32>(self, a: Self::I) -> Self::I;
    /// Arithmetic shift right.
    fn sar<const N: i32>(self, a: Self::I) -> Self::I;

    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    unsafe fn load_f32(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `p` is valid for writes of `LANES` values.
    unsafe fn store_f32(self, p: *mut f32, x: Self::F);
    /// Widens f16 bit patterns.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Narrows to f16, rounding to nearest even.
    ///
    /// # Safety
    /// `p` is valid for writes of `LANES` values.
    unsafe fn store_f16(self, p: *mut u16, x: Self::F);
    /// Widens one f16 bit pattern. A vector's instruction set has an instruction for it, which needs no call.
    #[inline(always)]
    fn widen_one_f16(self, x: u16) -> f32 {
        widen_f16(f16::from_bits(x))
    }
    /// Narrows one number to f16, rounding to nearest even.
    #[inline(always)]
    fn narrow_one_f16(self, x: f32) -> u16 {
        narrow_f16(x).to_bits()
    }
    /// Widens bf16 bit patterns.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Narrows to bf16, rounding to nearest even; a NaN stays a NaN.
    ///
    /// # Safety
    /// `p` is valid for writes of `LANES` values.
    unsafe fn store_bf16(self, p: *mut u16, x: Self::F);

    /// Widens bytes.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    unsafe fn load_u8(self, p: *const u8) -> Self::I;
    /// Widens bytes in two's complement.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::I {
        // SAFETY: the contract is the same.
        self.sar::<24>(self.shl::<24>(unsafe { self.load_u8(p) }))
    }
    /// Widens numbers of four bits, two in a byte, the first in its lower half.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES / 2` bytes.
    #[inline(always)]
    unsafe fn load_u4(self, p: *const u8) -> Self::I {
        let mut codes = [0u8; MAX_LANES];
        for (i, pair) in codes.chunks_exact_mut(2).enumerate().take(Self::LANES / 2) {
            // SAFETY: i < LANES / 2.
            let byte = unsafe { *p.add(i) };
            (pair[0], pair[1]) = (byte & 15, byte >> 4);
        }
        // SAFETY: the array has a byte for each lane.
        unsafe { self.load_u8(codes.as_ptr()) }
    }
    /// The lowest byte of each lane.
    ///
    /// # Safety
    /// `p` is valid for writes of `LANES` values.
    unsafe fn store_u8(self, p: *mut u8, x: Self::I);

    parts_of_vectors! {
        f32: load_few_f32 by load_f32, store_few_f32 by store_f32;
        u16: load_few_f16 by load_f16, store_few_f16 by store_f16;
        u16: load_few_bf16 by load_bf16, store_few_bf16 by store_bf16;
    }

    /// The bf16 nearest to each lane, ties to even, in the upper 16 bits, with anything in the lower ones. A NaN stays a NaN.
    #[inline(always)]
    fn round_to_bf16(self, x: Self::F) -> Self::I {
        let bits = self.bits(x);
        let odd = self.and(self.sar::<16>(bits), self.isplat(1));
        let rounded = self.iadd(bits, self.iadd(odd, self.isplat(0x7fff)));
        // Rounding could carry a NaN's payload into infinity: keep it, made quiet.
        let quiet = self.or(bits, self.isplat(0x0040_0000));
        self.bits(self.select(self.eq(x, x), self.float(rounded), self.float(quiet)))
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.float(self.and(self.bits(a), self.isplat(i32::MAX)))
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.sub(self.splat(-0.0), a)
    }
    /// |a| with the sign of `b`.
    #[inline(always)]
    fn copysign(self, a: Self::F, b: Self::F) -> Self::F {
        let sign = self.isplat(i32::MIN);
        self.float(self.or(self.bits(self.abs(a)), self.and(self.bits(b), sign)))
    }
    /// The columns of a square whose rows are the first `LANES` vectors; the others are left as they are.
    #[inline(always)]
    fn transpose(self, rows: [Self::F; MAX_LANES]) -> [Self::F; MAX_LANES] {
        let from = rows.map(|row| self.to_array(row));
        let mut columns = rows;
        for (i, column) in columns.iter_mut().enumerate().take(Self::LANES) {
            let mut lanes = [0f32; MAX_LANES];
            for j in 0..Self::LANES {
                lanes[j] = from[j][i];
            }
            // SAFETY: no implementation has more than MAX_LANES lanes.
            *column = unsafe { self.load_f32(lanes.as_ptr()) };
        }
        columns
    }
    /// The sums of the first `LANES` vectors: lane i of the result is the sum of vector i, added as a tree.
    #[inline(always)]
    fn sum_rows(self, rows: [Self::F; MAX_LANES]) -> Self::F {
        let mut columns = self.transpose(rows);
        let mut n = Self::LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                columns[i] = self.add(columns[i], columns[i + n]);
            }
        }
        columns[0]
    }
    #[inline(always)]
    fn to_array(self, a: Self::F) -> [f32; MAX_LANES] {
        let mut lanes = [0f32; MAX_LANES];
        // SAFETY: no implementation has more than MAX_LANES lanes.
        unsafe { self.store_f32(lanes.as_mut_ptr(), a) };
        lanes
    }
    /// The sum of the lanes, added as the tree of [`reduce_lanes`].
    #[inline(always)]
    fn reduce_add(self, a: Self::F) -> f32 {
        reduce_lanes(self, a, |a, b| a + b)
    }
    /// The largest lane; none may be NaN.
    #[inline(always)]
    fn reduce_max(self, a: Self::F) -> f32 {
        reduce_lanes(self, a, |a, b| if a > b { a } else { b })
    }
}

/// All lanes joined: the upper half with the lower, then what are the quarters, and so on.
#[inline(always)]
fn reduce_lanes<S: Simd>(s: S, a: S::F, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = s.to_array(a);
    let mut n = S::LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = join(lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

/// The widest vector of any instruction set here.
pub const MAX_LANES: usize = 16;

/// Copies `n` < 16 values in pieces of fixed sizes: faster than a `memcpy` that first has to look at its length. Compiled
/// once, not at the end of every loop of every kernel.
///
/// # Safety
/// `from` is valid for reads, `to` for writes of `n` values, and they don't overlap. Neither need be aligned.
#[cold]
#[inline(never)]
unsafe fn copy_few<T: Copy>(mut from: *const T, mut to: *mut T, n: usize) {
    macro_rules! piece {
        ($len:literal) => {
            if n & $len != 0 {
                // SAFETY: the pieces whose bits are set in n < 16 add up to n values.
                unsafe {
                    to.cast::<[T; $len]>()
                        .write_unaligned(from.cast::<[T; $len]>().read_unaligned());
                    (from, to) = (from.add($len), to.add($len));
                }
            }
        };
    }
    piece!(8);
    piece!(4);
    piece!(2);
    if n & 1 != 0 {
        // SAFETY: the pieces before it left one value.
        unsafe { to.write_unaligned(from.read_unaligned()) };
    }
}

/// Code that is generic over the instruction set, with its arguments and the places of its results. `run` must be
/// `inline(always)`.
pub trait Kernel {
    /// Whether the kernel is compiled for vectors of 512 bits too. One that computes little for each number that it moves is not
    /// faster with them than with those of 256 bits, so that they would only be more code. Each lane of such a kernel must
    /// be independent of the others: then both give the same bits.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "no other architecture has vectors of two widths")
    )]
    const WIDE: bool = true;
    fn run<S: Simd>(self, simd: S);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Four lanes of plain Rust, for architectures without vectors here, and for tests. An x86-64 CPU without AVX2 runs no
    /// kernels, but references (see [`check::cpu_has_kernels`]): kernels for it were a fifth of this crate's code.
    #[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    Portable,
}

/// `Some` of its argument where there is an instruction set of plain Rust: on other architectures, and in tests.
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
macro_rules! if_portable {
    ($isa:expr) => {
        Some($isa)
    };
}
#[cfg(not(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64")))))]
macro_rules! if_portable {
    ($isa:expr) => {
        None
    };
}
pub(super) use if_portable;

/// The instruction sets whose features this CPU has, and the portable one.
pub(super) fn available<I>(
    native: impl IntoIterator<Item = (bool, I)>,
    portable: Option<I>,
) -> Vec<I> {
    let here = native.into_iter().filter(|(here, _)| *here);
    here.map(|(_, isa)| isa).chain(portable).collect()
}

impl Isa {
    /// What this CPU can run, best first.
    pub fn available() -> Vec<Isa> {
        #[cfg(target_arch = "x86_64")]
        let native = {
            let avx2 = check::cpu_has_kernels();
            // All CPUs with AVX-512F but the Xeon Phi have the other two.
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            [(avx512, Isa::Avx512), (avx2, Isa::Avx2)]
        };
        #[cfg(target_arch = "aarch64")]
        let native = [(true, Isa::Neon)];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let native = [];
        available(native, if_portable!(Isa::Portable))
    }

    /// Runs the kernel with this instruction set.
    ///
    /// # Safety
    /// `self` comes from [`Isa::available`] on this machine.
    #[inline]
    pub unsafe fn run<K: Kernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` names it on a CPU with AVX-512F, BW and VL, AVX2, FMA and F16C alone.
            Isa::Avx512 if K::WIDE => unsafe { x86::run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` names either on a CPU with AVX2, FMA and F16C alone.
            Isa::Avx512 | Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run(neon::Neon),
            #[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
            Isa::Portable => portable::run(kernel),
        }
    }
}

/// Runs the kernel with the best instruction set of this machine.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) {
    // SAFETY: `best` was detected on this machine.
    unsafe { best().run(kernel) }
}

/// Apart from [`dispatch`], so that it is compiled once. Ops ask [`check::cpu_has_kernels`] before they run a kernel, so that
/// there is an instruction set.
fn best() -> Isa {
    static BEST: OnceLock<Isa> = OnceLock::new();
    *BEST.get_or_init(|| {
        assert!(
            check::cpu_has_kernels(),
            "a kernel on a CPU without kernels"
        );
        Isa::available()[0]
    })
}

/// Never inlined: `half` asks each time whether the CPU has the instruction, and brings much code for those without it.
#[inline(never)]
pub fn widen_f16(x: f16) -> f32 {
    x.to_f32()
}

/// Never inlined, as [`widen_f16`].
#[inline(never)]
pub fn narrow_f16(x: f32) -> f16 {
    f16::from_f32(x)
}

/// Brings the memory at `p` into the L1 cache, if there is memory.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    prefetch_to::<1, T>(p);
}

/// As [`prefetch`], into the L2 cache: for memory that is read after much else.
#[inline(always)]
pub fn prefetch_to_l2<T>(p: *const T) {
    prefetch_to::<2, T>(p);
}

#[inline(always)]
fn prefetch_to<const LEVEL: u8, T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0, _MM_HINT_T1};
        // SAFETY: a hint reads nothing.
        unsafe {
            match LEVEL {
                1 => _mm_prefetch::<_MM_HINT_T0>(p.cast()),
                _ => _mm_prefetch::<_MM_HINT_T1>(p.cast()),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[cfg(test)]
mod tests;
