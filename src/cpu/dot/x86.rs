//! AVX2, and the dot products of AVX-VNNI and of AVX-512-VNNI, whose vectors have 64 bytes.

use super::{Bytes, Kernel};
use core::arch::x86_64::*;

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn run_avx2<K: Kernel>(kernel: K) {
    kernel.run(Avx2(()))
}

/// # Safety
/// The CPU has AVX2, FMA and AVX-VNNI.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub unsafe fn run_vnni<K: Kernel>(kernel: K) {
    kernel.run(Vnni(()))
}

/// # Safety
/// The CPU has, of AVX-512, F, BW and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn run_vnni512<K: Kernel>(kernel: K) {
    kernel.run(Vnni512::<false>(()))
}

/// # Safety
/// As for [`run_vnni512`], and GFNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,gfni")]
pub unsafe fn run_vnni512_gfni<K: Kernel>(kernel: K) {
    kernel.run(Vnni512::<true>(()))
}

#[derive(Clone, Copy)]
pub struct Avx2(());

#[derive(Clone, Copy)]
pub struct Vnni(());

#[derive(Clone, Copy)]
pub struct Vnni512<const GFNI: bool>(());

// SAFETY of all below: a token exists only on a CPU that has the instructions.
macro_rules! of_32_bytes {
    () => {
        type V = __m256i;
        type Sum = __m256i;
        type F = __m256;

        #[inline(always)]
        fn zero(self) -> __m256i {
            unsafe { _mm256_setzero_si256() }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const u8) -> __m256i {
            _mm256_loadu_si256(p.cast())
        }
        #[inline(always)]
        fn codes<const MASK: i32, const SHIFT: i32>(self, v: __m256i) -> __m256i {
            unsafe {
                let mask = _mm256_set1_epi8(MASK as i8);
                _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(v), mask)
            }
        }
        #[inline(always)]
        fn raise(self, v: __m256i) -> __m256i {
            unsafe { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) }
        }
        #[inline(always)]
        fn times_256(self, sum: __m256i) -> __m256i {
            unsafe { _mm256_slli_epi32::<8>(sum) }
        }
        #[inline(always)]
        fn add_part<const SHIFT: i32>(self, a: __m256i, b: __m256i) -> __m256i {
            unsafe { _mm256_add_epi32(a, _mm256_srai_epi32::<SHIFT>(b)) }
        }
        #[inline(always)]
        unsafe fn load_i32(self, p: *const i32) -> __m256i {
            _mm256_loadu_si256(p.cast())
        }
        #[inline(always)]
        fn total(self, sum: __m256i) -> i32 {
            unsafe {
                let (low, high) = (
                    _mm256_castsi256_si128(sum),
                    _mm256_extracti128_si256::<1>(sum),
                );
                let sum = _mm_add_epi32(low, high);
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_10_11_00_01>(sum));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_01_00_11_10>(sum));
                _mm_cvtsi128_si32(sum)
            }
        }
        #[inline(always)]
        unsafe fn load_f32(self, p: *const f32) -> __m256 {
            _mm256_loadu_ps(p)
        }
        #[inline(always)]
        unsafe fn store_f32(self, p: *mut f32, x: __m256) {
            _mm256_storeu_ps(p, x)
        }
        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        fn to_float(self, sum: __m256i) -> __m256 {
            unsafe { _mm256_cvtepi32_ps(sum) }
        }
        #[inline(always)]
        unsafe fn permute(self, x: __m256, lanes: *const i32) -> __m256 {
            _mm256_permutevar8x32_ps(x, _mm256_loadu_si256(lanes.cast()))
        }
        #[inline(always)]
        fn mul(self, a: __m256, b: __m256) -> __m256 {
            unsafe { _mm256_mul_ps(a, b) }
        }
        #[inline(always)]
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn reduce_add(self, a: __m256) -> f32 {
            unsafe {
                let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
                _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
            }
        }
    };
}

impl Bytes for Avx2 {
    of_32_bytes!();

    /// 30 · 2 · 128 fits 16 bits, so that they are widened once for all N.
    #[inline(always)]
    fn dot<const N: usize>(self, sum: __m256i, codes: [__m256i; N], x: [__m256i; N]) -> __m256i {
        unsafe {
            let mut words = _mm256_maddubs_epi16(codes[0], x[0]);
            for i in 1..N {
                words = _mm256_add_epi16(words, _mm256_maddubs_epi16(codes[i], x[i]));
            }
            _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)))
        }
    }

    /// The upper halves of the codes count sixteen times.
    #[inline(always)]
    fn dot_bytes(self, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        let [low, high] = super::four_bits(self, codes);
        unsafe {
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), _mm256_set1_epi16(1));
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), _mm256_set1_epi16(16));
            _mm256_add_epi32(sum, _mm256_add_epi32(low, high))
        }
    }
}

impl Bytes for Vnni {
    of_32_bytes!();

    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: __m256i,
        codes: [__m256i; N],
        x: [__m256i; N],
    ) -> __m256i {
        for i in 0..N {
            sum = unsafe { _mm256_dpbusd_avx_epi32(sum, codes[i], x[i]) };
        }
        sum
    }

    #[inline(always)]
    fn dot_bytes(self, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        unsafe { _mm256_dpbusd_avx_epi32(sum, codes, x) }
    }
}

/// Takes MASK's bits of a byte that is shifted right, as a matrix of bits whose last row makes the lowest.
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

impl<const GFNI: bool> Bytes for Vnni512<GFNI> {
    const MANY_REGISTERS: bool = true;
    const WIDTH: usize = 64;

    type V = __m512i;
    type Sum = __m512i;
    type F = __m512;

    #[inline(always)]
    fn zero(self) -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    fn codes<const MASK: i32, const SHIFT: i32>(self, v: __m512i) -> __m512i {
        unsafe {
            if GFNI && SHIFT > 0 {
                let matrix = _mm512_set1_epi64(const { shift_and_mask(MASK, SHIFT) });
                return _mm512_gf2p8affine_epi64_epi8::<0>(v, matrix);
            }
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
    fn raise(self, v: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(v, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    fn dot<const N: usize>(
        self,
        mut sum: __m512i,
        codes: [__m512i; N],
        x: [__m512i; N],
    ) -> __m512i {
        for i in 0..N {
            sum = unsafe { _mm512_dpbusd_epi32(sum, codes[i], x[i]) };
        }
        sum
    }
    #[inline(always)]
    fn dot_bytes(self, sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, codes, x) }
    }
    #[inline(always)]
    fn times_256(self, sum: __m512i) -> __m512i {
        unsafe { _mm512_slli_epi32::<8>(sum) }
    }
    #[inline(always)]
    fn add_part<const SHIFT: i32>(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, _mm512_sra_epi32(b, _mm_cvtsi32_si128(SHIFT))) }
    }
    #[inline(always)]
    unsafe fn load_i32(self, p: *const i32) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    fn total(self, sum: __m512i) -> i32 {
        unsafe { _mm512_reduce_add_epi32(sum) }
    }
    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store_f32(self, p: *mut f32, x: __m512) {
        _mm512_storeu_ps(p, x)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_upto(self, p: *const f32, left: usize) -> __m512 {
        let mask = if left < 16 { (1 << left) - 1 } else { u16::MAX };
        _mm512_maskz_loadu_ps(mask, p)
    }
    #[inline(always)]
    unsafe fn permute(self, x: __m512, lanes: *const i32) -> __m512 {
        _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.cast()), x)
    }
    #[inline(always)]
    fn to_float(self, sum: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(sum) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
}
