//! Byte SIMD: dot products of unsigned codes (packed weights) and signed bytes (activations), summed in i32, with one
//! implementation for each instruction set.
//!
//! This is the integer sibling of [`crate::cpu::simd`]: [`ByteSimd`] is to bytes what `Simd` is to f32. The two are chosen
//! apart because they need other CPU features (VNNI, dot product) and other vector lengths.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::simd::{available, if_portable, MAX_LANES};
#[cfg(target_arch = "x86_64")]
use crate::check;
use std::sync::OnceLock;

/// The largest [`ByteSimd::WIDTH`].
pub const MAX_WIDTH: usize = 4 * MAX_LANES;

/// Vectors of 32 or 64 bytes. Four neighbouring bytes are one lane: dot products add them up to one i32.
///
/// Every method is `inline(always)`, so that it becomes instructions inside the `target_feature` function that
/// [`dispatch_bytes`] enters. Values of these types exist only there, on a CPU that has the instructions.
pub trait ByteSimd: Copy {
    /// Whether there are registers for the unpacked codes of two rows of W beside the sums of four rows of x with them.
    const MANY_REGISTERS: bool = false;
    /// Bytes of a vector.
    const WIDTH: usize = 32;
    /// Sums of a vector, one for every four bytes.
    const LANES: usize = Self::WIDTH / 4;

    /// `WIDTH` bytes.
    type V: Copy;
    /// An i32 for each lane.
    type Sum: Copy;
    /// An f32 for each lane.
    type F: Copy;

    fn zero(self) -> Self::Sum;
    /// # Safety
    /// `p` is valid for reads of `WIDTH` bytes.
    unsafe fn load(self, p: *const u8) -> Self::V;
    /// # Safety
    /// `p` is valid for writes of `WIDTH` bytes.
    unsafe fn store(self, p: *mut u8, v: Self::V);
    /// Four bytes, repeated in all lanes.
    ///
    /// # Safety
    /// `p` is valid for reads of four bytes.
    unsafe fn repeat_four(self, p: *const u8) -> Self::V;
    /// Transposes the first `LANES` rows: reads a vector of each row, from byte `at` on, and writes as many vectors. Vector i holds lane i
    /// of every row's vector.
    ///
    /// # Safety
    /// Each of these rows is valid for reads of `WIDTH` bytes from byte `at` on, and `to` for writes of `LANES` vectors.
    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const u8; MAX_LANES], at: usize, to: *mut u8) {
        for (lane, row) in rows[..Self::LANES].iter().enumerate() {
            for i in 0..Self::LANES {
                // SAFETY: i < LANES and lane < LANES, so both are in the memory that the caller answers for.
                unsafe {
                    let word = row.add(at + 4 * i).cast::<u32>().read_unaligned();
                    let to = to.add(i * Self::WIDTH + 4 * lane).cast::<u32>();
                    to.write_unaligned(word);
                }
            }
        }
    }
    /// `(byte >> SHIFT) & MASK` of each byte. Vectors are shifted in lanes of 16 bits, so MASK must have none of the SHIFT
    /// uppermost bits, which come from the neighbouring byte.
    fn codes<const MASK: i32, const SHIFT: i32>(self, v: Self::V) -> Self::V;
    /// Adds 128 to signed bytes, which makes them unsigned ones.
    fn flip_sign_bits(self, v: Self::V) -> Self::V;
    /// `sum + Σ codes · x` over N vectors, with unsigned codes and signed x. No code may be above 15, and N times the largest
    /// code may be 30 at most: then pairs of products can be summed in 16 bits.
    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: Self::Sum,
        codes: [Self::V; N],
        x: [Self::V; N],
    ) -> Self::Sum {
        for i in 0..N {
            sum = self.dot_bytes(sum, codes[i], x[i]);
        }
        sum
    }
    /// `sum + Σ codes · x` of one vector, whose codes may be anything from 0 to 255.
    fn dot_bytes(self, sum: Self::Sum, codes: Self::V, x: Self::V) -> Self::Sum;
    fn times_256(self, sum: Self::Sum) -> Self::Sum;
    /// `a + b / 2^SHIFT`, of a `b` that is a multiple of `2^SHIFT`.
    fn add_shifted<const SHIFT: i32>(self, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    unsafe fn load_i32(self, p: *const i32) -> Self::Sum;
    /// The sum of all lanes.
    fn reduce_add_i32(self, sum: Self::Sum) -> i32;

    /// # Safety
    /// `p` is valid for reads of `LANES` values.
    unsafe fn load_f32(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `p` is valid for writes of `LANES` values.
    unsafe fn store_f32(self, p: *mut f32, x: Self::F);
    /// The first `LANES` values; lanes behind the end of a shorter slice are 0.
    #[inline(always)]
    fn load_first(self, values: &[f32]) -> Self::F {
        let mut lanes = [0.0; MAX_LANES];
        let p = match values.len() {
            len if len >= Self::LANES => values.as_ptr(),
            len => {
                lanes[..len].copy_from_slice(values);
                lanes.as_ptr()
            }
        };
        // SAFETY: `p` has `LANES` values: the slice is that long, or it is the array, and LANES ≤ MAX_LANES.
        unsafe { self.load_f32(p) }
    }
    fn splat(self, x: f32) -> Self::F;
    fn to_float(self, sum: Self::Sum) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a·b + c
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sum of all lanes.
    fn reduce_add(self, a: Self::F) -> f32;
    /// Lane i of the result is lane `lanes[i]` of x. Every index that is used, the first `LANES`, is below `LANES`.
    #[inline(always)]
    fn permute(self, x: Self::F, lanes: &[i32; MAX_LANES]) -> Self::F {
        let mut from = [0.0; MAX_LANES];
        // SAFETY: LANES ≤ MAX_LANES, so the array has room for a vector.
        unsafe { self.store_f32(from.as_mut_ptr(), x) };
        let to: [f32; MAX_LANES] = std::array::from_fn(|i| from[lanes[i] as usize % MAX_LANES]);
        // SAFETY: LANES ≤ MAX_LANES, so the array has a value for each lane.
        unsafe { self.load_f32(to.as_ptr()) }
    }
}

/// Code that is generic over the instruction set. `run` must be `inline(always)`.
pub trait ByteKernel {
    fn run<B: ByteSimd>(self, bytes: B);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteIsa {
    /// AVX-512-VNNI, with vectors of 64 bytes, and GFNI, which shifts and masks bytes in one instruction.
    #[cfg(target_arch = "x86_64")]
    Vnni512Gfni,
    /// AVX-512-VNNI without GFNI.
    #[cfg(target_arch = "x86_64")]
    Vnni512,
    /// AVX-VNNI, with vectors of 32 bytes as all below.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    DotProd,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// For other architectures, and for tests.
    #[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    Portable,
}

impl ByteIsa {
    /// [`ByteSimd::WIDTH`] of this instruction set.
    fn width(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            ByteIsa::Vnni512Gfni | ByteIsa::Vnni512 => 64,
            _ => 32,
        }
    }

    /// The instruction sets that this CPU can run, best first.
    pub fn available() -> Vec<ByteIsa> {
        #[cfg(target_arch = "x86_64")]
        let native = {
            macro_rules! has {
                ($($feature:tt),*) => { $(is_x86_feature_detected!($feature))&&* };
            }
            let avx2 = check::cpu_has_kernels();
            let vnni = avx2 && has!("avxvnni");
            let vnni512 = has!("avx512f", "avx512bw", "avx512vnni");
            let gfni = vnni512 && has!("gfni");
            [
                (gfni, ByteIsa::Vnni512Gfni),
                (vnni512, ByteIsa::Vnni512),
                (vnni, ByteIsa::Vnni),
                (avx2, ByteIsa::Avx2),
            ]
        };
        #[cfg(target_arch = "aarch64")]
        let native = {
            let dot = std::arch::is_aarch64_feature_detected!("dotprod");
            [(dot, ByteIsa::DotProd), (true, ByteIsa::Neon)]
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let native = [];
        available(native, if_portable!(ByteIsa::Portable))
    }

    /// Runs the kernel with this instruction set.
    ///
    /// # Safety
    /// `self` comes from [`ByteIsa::available`] on this machine.
    pub unsafe fn run<K: ByteKernel>(self, kernel: K) {
        // SAFETY: the caller has `self` from `available`, which has detected the features that each function asks for.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                ByteIsa::Vnni512Gfni => x86::run_vnni512_gfni(kernel),
                #[cfg(target_arch = "x86_64")]
                ByteIsa::Vnni512 => x86::run_vnni512(kernel),
                #[cfg(target_arch = "x86_64")]
                ByteIsa::Vnni => x86::run_vnni(kernel),
                #[cfg(target_arch = "x86_64")]
                ByteIsa::Avx2 => x86::run_avx2(kernel),
                #[cfg(target_arch = "aarch64")]
                ByteIsa::DotProd => neon::run_dotprod(kernel),
                #[cfg(target_arch = "aarch64")]
                ByteIsa::Neon => kernel.run(neon::Neon),
                #[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
                ByteIsa::Portable => portable::run(kernel),
            }
        }
    }
}

/// Runs the kernel with the best instruction set of this machine.
pub fn dispatch_bytes<K: ByteKernel>(kernel: K) {
    // SAFETY: `best` comes from `ByteIsa::available`.
    unsafe { best().run(kernel) }
}

/// [`ByteSimd::WIDTH`] of the instruction set that [`dispatch_bytes`] chooses.
pub fn width() -> usize {
    best().width()
}

fn best() -> ByteIsa {
    #[cfg(test)]
    if let Some(isa) = tests::FORCED.get() {
        return isa;
    }
    static BEST: OnceLock<ByteIsa> = OnceLock::new();
    *BEST.get_or_init(|| ByteIsa::available()[0])
}

/// `(byte >> shift) & mask` of each byte of a vector, for each of the shifts.
macro_rules! codes_at {
    ($b:ident, $v:ident, $mask:literal, [$($shift:literal),*]) => {
        [$($b.codes::<$mask, $shift>($v)),*]
    };
}

/// Eight codes of 1 bit from each byte: the vector of first codes (lowest bits), of second codes and so on.
#[inline(always)]
pub fn unpack_1_bit<B: ByteSimd>(b: B, v: B::V) -> [B::V; 8] {
    codes_at!(b, v, 1, [0, 1, 2, 3, 4, 5, 6, 7])
}

/// Four codes of 2 bits from each byte, as [`unpack_1_bit`].
#[inline(always)]
pub fn unpack_2_bits<B: ByteSimd>(b: B, v: B::V) -> [B::V; 4] {
    codes_at!(b, v, 3, [0, 2, 4, 6])
}

/// Two codes of 4 bits from each byte, as [`unpack_1_bit`].
#[inline(always)]
pub fn unpack_4_bits<B: ByteSimd>(b: B, v: B::V) -> [B::V; 2] {
    codes_at!(b, v, 15, [0, 4])
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::with_every_isa;
