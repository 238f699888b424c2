//! AVX2, and the byte dot products of AVX-VNNI (vectors of 32 bytes) and of AVX-512-VNNI (vectors of 64 bytes).

use super::{unpack_4_bits, ByteKernel, ByteSimd};
use crate::cpu::simd::MAX_LANES;
use core::arch::x86_64::*;

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn run_avx2<K: ByteKernel>(kernel: K) {
    kernel.run(Avx2(()))
}

/// # Safety
/// The CPU has AVX2, FMA and AVX-VNNI.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub unsafe fn run_vnni<K: ByteKernel>(kernel: K) {
    kernel.run(Vnni(()))
}

/// # Safety
/// The CPU has, of AVX-512, F, BW and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn run_vnni512<K: ByteKernel>(kernel: K) {
    kernel.run(Vnni512::<false>(()))
}

/// # Safety
/// The CPU has, of AVX-512, F, BW and VNNI, and it has GFNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,gfni")]
pub unsafe fn run_vnni512_gfni<K: ByteKernel>(kernel: K) {
    kernel.run(Vnni512::<true>(()))
}

#[derive(Clone, Copy)]
pub struct Avx2(());

#[derive(Clone, Copy)]
pub struct Vnni(());

/// With GFNI, a shift and a mask of bytes are one product with a matrix of bits.
#[derive(Clone, Copy)]
pub struct Vnni512<const GFNI: bool>(());

/// Stamps safe methods whose body is intrinsics on registers alone.
macro_rules! intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: the token `self` is made by the `run_*` functions above alone, so the CPU has the instructions.
            unsafe { $body }
        }
    )*};
}

/// Stamps unsafe methods that are one load or store each.
macro_rules! memory_intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: the token `self` is made by the `run_*` functions above alone, so the CPU has the instructions. The
            // caller promises that the pointer is valid for the vector that is loaded or stored; unaligned ones are fine.
            unsafe { $body }
        }
    )*};
}

/// What AVX2 and AVX-VNNI have in common: everything but the dot products.
macro_rules! vectors_of_32_bytes {
    () => {
        type V = __m256i;
        type Sum = __m256i;
        type F = __m256;

        memory_intrinsics! {
            load(p: *const u8) -> __m256i = _mm256_loadu_si256(p.cast());
            load_i32(p: *const i32) -> __m256i = _mm256_loadu_si256(p.cast());
            load_f32(p: *const f32) -> __m256 = _mm256_loadu_ps(p);
            store_f32(p: *mut f32, x: __m256) -> () = _mm256_storeu_ps(p, x);
        }
        intrinsics! {
            zero() -> __m256i = _mm256_setzero_si256();
            flip_sign_bits(v: __m256i) -> __m256i = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
            times_256(sum: __m256i) -> __m256i = _mm256_slli_epi32::<8>(sum);
            reduce_add_i32(sum: __m256i) -> i32 = {
                let (low, high) = (_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                let sum = _mm_add_epi32(low, high);
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_10_11_00_01>(sum));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_01_00_11_10>(sum));
                _mm_cvtsi128_si32(sum)
            };
            splat(x: f32) -> __m256 = _mm256_set1_ps(x);
            to_float(sum: __m256i) -> __m256 = _mm256_cvtepi32_ps(sum);
            mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
            fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
            reduce_add(a: __m256) -> f32 = {
                let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
                _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
            };
            // The array has MAX_LANES ≥ 8 indices, of which the first 8 are read.
            permute(x: __m256, lanes: &[i32; MAX_LANES]) -> __m256 =
                _mm256_permutevar8x32_ps(x, _mm256_loadu_si256(lanes.as_ptr().cast()));
        }

        #[inline(always)]
        fn codes<const MASK: i32, const SHIFT: i32>(self, v: __m256i) -> __m256i {
            // SAFETY: the token `self` is made by the `run_*` functions above alone, so the CPU has the instructions.
            unsafe {
                let mask = _mm256_set1_epi8(MASK as i8);
                _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(v), mask)
            }
        }
        #[inline(always)]
        fn add_shifted<const SHIFT: i32>(self, a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: the token `self` is made by the `run_*` functions above alone, so the CPU has the instructions.
            unsafe { _mm256_add_epi32(a, _mm256_srai_epi32::<SHIFT>(b)) }
        }
    };
}

impl ByteSimd for Avx2 {
    vectors_of_32_bytes!();

    /// A pair of products is at most 2 · 128 times the largest code, so the N pairs of a 16-bit lane sum to at most
    /// 30 · 2 · 128 < 2¹⁵: they are widened to i32 once for all N vectors.
    #[inline(always)]
    fn dot<const N: usize>(self, sum: __m256i, codes: [__m256i; N], x: [__m256i; N]) -> __m256i {
        // SAFETY: the token `self` is made by `run_avx2` alone, so the CPU has the instructions.
        unsafe {
            let mut words = _mm256_maddubs_epi16(codes[0], x[0]);
            for i in 1..N {
                words = _mm256_add_epi16(words, _mm256_maddubs_epi16(codes[i], x[i]));
            }
            _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)))
        }
    }

    /// The halves of a byte are multiplied apart, so that 16-bit lanes hold the pairs of products: code = low + 16 · high.
    #[inline(always)]
    fn dot_bytes(self, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        let [low, high] = unpack_4_bits(self, codes);
        // SAFETY: the token `self` is made by `run_avx2` alone, so the CPU has the instructions.
        unsafe {
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), _mm256_set1_epi16(1));
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), _mm256_set1_epi16(16));
            _mm256_add_epi32(sum, _mm256_add_epi32(low, high))
        }
    }
}

impl ByteSimd for Vnni {
    vectors_of_32_bytes!();

    intrinsics! {
        dot_bytes(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i = _mm256_dpbusd_avx_epi32(sum, codes, x);
    }

    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: __m256i,
        codes: [__m256i; N],
        x: [__m256i; N],
    ) -> __m256i {
        for i in 0..N {
            sum = self.dot_bytes(sum, codes[i], x[i]);
        }
        sum
    }
}

/// The bit matrix of `gf2p8affineqb` that shifts a byte right and keeps the bits in `mask`. Its last row makes the lowest bit.
const fn shift_and_mask(mask: i32, shift: i32) -> i64 {
    let (mut rows, mut bit) = (0u64, 0);
    while bit < 8 {
        if mask >> bit & 1 == 1 {
            rows |= 1 << (bit + shift) << (8 * (7 - bit));
        }
        bit += 1;
    }
    rows as i64
}

impl<const GFNI: bool> ByteSimd for Vnni512<GFNI> {
    const MANY_REGISTERS: bool = true;
    const WIDTH: usize = 64;

    type V = __m512i;
    type Sum = __m512i;
    type F = __m512;

    memory_intrinsics! {
        load(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
        load_i32(p: *const i32) -> __m512i = _mm512_loadu_si512(p.cast());
        load_f32(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        store_f32(p: *mut f32, x: __m512) -> () = _mm512_storeu_ps(p, x);
    }
    intrinsics! {
        zero() -> __m512i = _mm512_setzero_si512();
        flip_sign_bits(v: __m512i) -> __m512i = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
        dot_bytes(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i = _mm512_dpbusd_epi32(sum, codes, x);
        times_256(sum: __m512i) -> __m512i = _mm512_slli_epi32::<8>(sum);
        reduce_add_i32(sum: __m512i) -> i32 = _mm512_reduce_add_epi32(sum);
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        to_float(sum: __m512i) -> __m512 = _mm512_cvtepi32_ps(sum);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        reduce_add(a: __m512) -> f32 = _mm512_reduce_add_ps(a);
        // The array has 16 indices, all of which are read.
        permute(x: __m512, lanes: &[i32; MAX_LANES]) -> __m512 =
            _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.as_ptr().cast()), x);
    }

    #[inline(always)]
    fn load_first(self, values: &[f32]) -> __m512 {
        let mask = match values.len() {
            len @ 0..16 => (1 << len) - 1,
            _ => u16::MAX,
        };
        // SAFETY: the token `self` is made by the `run_vnni512*` functions alone, so the CPU has the instructions. Lanes
        // outside the mask are not read, and those inside it are in the slice.
        unsafe { _mm512_maskz_loadu_ps(mask, values.as_ptr()) }
    }
    #[inline(always)]
    fn codes<const MASK: i32, const SHIFT: i32>(self, v: __m512i) -> __m512i {
        // SAFETY: the token `self` is made by the `run_vnni512*` functions alone, so the CPU has the instructions; one with
        // GFNI comes from `run_vnni512_gfni`.
        unsafe {
            if GFNI && SHIFT > 0 {
                let matrix = _mm512_set1_epi64(const { shift_and_mask(MASK, SHIFT) });
                return _mm512_gf2p8affine_epi64_epi8::<0>(v, matrix);
            }
            // The intrinsic takes its shift as a const u32, which an i32 parameter cannot be made into.
            let shifted = match SHIFT {
                0 => v,
                1 => _mm512_srli_epi16::<1>(v),
                2 => _mm512_srli_epi16::<2>(v),
                3 => _mm512_srli_epi16::<3>(v),
                4 => _mm512_srli_epi16::<4>(v),
                5 => _mm512_srli_epi16::<5>(v),
                6 => _mm512_srli_epi16::<6>(v),
                _ => _mm512_srli_epi16::<7>(v),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(MASK as i8))
        }
    }
    #[inline(always)]
    fn add_shifted<const SHIFT: i32>(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token `self` is made by the `run_vnni512*` functions alone, so the CPU has the instructions.
        unsafe { _mm512_add_epi32(a, _mm512_sra_epi32(b, _mm_cvtsi32_si128(SHIFT))) }
    }
    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: __m512i,
        codes: [__m512i; N],
        x: [__m512i; N],
    ) -> __m512i {
        for i in 0..N {
            sum = self.dot_bytes(sum, codes[i], x[i]);
        }
        sum
    }
}
