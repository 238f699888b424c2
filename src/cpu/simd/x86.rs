//! AVX2 + FMA + F16C, and AVX-512F.

use super::{Kernel, Simd};
use core::arch::x86_64::*;

/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// # Safety
/// The CPU has AVX-512F, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
pub unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// # Safety
/// As for [`run_avx2`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn call_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// # Safety
/// As for [`run_avx512`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn call_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

#[derive(Clone, Copy)]
pub struct Avx2(());

#[derive(Clone, Copy)]
pub struct Avx512(());

/// Stamps trait methods that are one intrinsic each.
macro_rules! intrinsics {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $out {
            // SAFETY: a token exists only on a CPU that has the instructions.
            unsafe { $body }
        }
    )*};
}

/// The first `n` < 8 of 16-bit values, put together in registers: a vector load of memory that narrower stores have just
/// written would wait for them. Compiled once, not at the end of every loop of every kernel.
///
/// # Safety
/// `p` is valid for reads of `n` values.
#[cold]
#[inline(never)]
unsafe fn few_u16(p: *const u16, n: usize) -> __m128i {
    let (mut low, mut high) = (0, 0);
    if n >= 4 {
        low = p.cast::<u64>().read_unaligned();
        if n > 4 {
            high = p.add(n - 4).cast::<u64>().read_unaligned() >> (16 * (8 - n));
        }
    } else if n >= 2 {
        low = p.cast::<u32>().read_unaligned() as u64;
        low |= (p.add(n - 2).cast::<u32>().read_unaligned() as u64) << (16 * (n - 2));
    } else if n == 1 {
        low = *p as u64;
    }
    _mm_set_epi64x(high as i64, low as i64)
}

/// The same tree as the trait's own, in registers: halves, quarters, pairs.
macro_rules! reduce {
    ($a:expr, $join:ident) => {{
        let a = $a;
        let a = $join(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32($join(a, _mm_movehdup_ps(a)))
    }};
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type I = __m256i;
    type M = __m256;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: a token exists only on a CPU that has the instructions.
        unsafe { call_avx2(kernel) }
    }

    intrinsics! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fnma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        eq(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b);
        select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
        isplat(x: i32) -> __m256i = _mm256_set1_epi32(x);
        bits(a: __m256) -> __m256i = _mm256_castps_si256(a);
        float(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        iadd(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        isub(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        reduce_add(a: __m256) -> f32 = {
            let (low, high) = (_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            reduce!(_mm_add_ps(low, high), _mm_add_ps)
        };
        reduce_max(a: __m256) -> f32 = {
            let (low, high) = (_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            reduce!(_mm_max_ps(low, high), _mm_max_ps)
        };
    }

    #[inline(always)]
    fn shl<const N: i32>(self, a: __m256i) -> __m256i {
        // SAFETY: a token exists only on a CPU that has the instructions.
        unsafe { _mm256_slli_epi32::<N>(a) }
    }
    #[inline(always)]
    fn sar<const N: i32>(self, a: __m256i) -> __m256i {
        // SAFETY: a token exists only on a CPU that has the instructions.
        unsafe { _mm256_srai_epi32::<N>(a) }
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn load_few_f32(self, p: *const f32, n: usize) -> __m256 {
        let ids = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), ids))
    }
    #[inline(always)]
    unsafe fn store_f32(self, p: *mut f32, x: __m256) {
        _mm256_storeu_ps(p, x)
    }
    #[inline(always)]
    unsafe fn store_few_f32(self, p: *mut f32, n: usize, x: __m256) {
        let ids = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), ids), x)
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_few_f16(self, p: *const u16, n: usize) -> __m256 {
        _mm256_cvtph_ps(few_u16(p, n))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, x: __m256) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_few_bf16(self, p: *const u16, n: usize) -> __m256 {
        let wide = _mm256_cvtepu16_epi32(few_u16(p, n));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, x: __m256) {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_add_epi32(bits, bias);
        // Rounding could carry a NaN's payload into infinity: keep it, made quiet.
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        let picked = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
        let (lo, hi) = (
            _mm256_castsi256_si128(picked),
            _mm256_extracti128_si256::<1>(picked),
        );
        _mm_storeu_si128(p.cast(), _mm_packus_epi32(lo, hi))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m256i {
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_u8(self, p: *mut u8, x: __m256i) {
        let bytes = _mm256_and_si256(x, _mm256_set1_epi32(0xff));
        let (lo, hi) = (
            _mm256_castsi256_si128(bytes),
            _mm256_extracti128_si256::<1>(bytes),
        );
        let words = _mm_packus_epi32(lo, hi);
        _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words))
    }
}

/// The bits of each lane as a bf16, rounded to nearest even; a NaN stays a NaN.
///
/// # Safety
/// The CPU has AVX-512F.
#[inline(always)]
unsafe fn bf16_of(x: __m512) -> __m512i {
    let bits = _mm512_castps_si512(x);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_add_epi32(bits, bias);
    // Rounding could carry a NaN's payload into infinity: keep it, made quiet.
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet))
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: a token exists only on a CPU that has the instructions.
        unsafe { call_avx512(kernel) }
    }

    intrinsics! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        eq(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b);
        select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
        isplat(x: i32) -> __m512i = _mm512_set1_epi32(x);
        bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        float(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        iadd(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        isub(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        reduce_add(a: __m512) -> f32 = {
            let high = _mm512_castps_si512(a);
            let high = _mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(high));
            Avx2(()).reduce_add(_mm256_add_ps(_mm512_castps512_ps256(a), high))
        };
        reduce_max(a: __m512) -> f32 = {
            let high = _mm512_castps_si512(a);
            let high = _mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(high));
            Avx2(()).reduce_max(_mm256_max_ps(_mm512_castps512_ps256(a), high))
        };
    }

    // The immediate forms take u32, which a generic i32 constant cannot become; LLVM folds these.
    #[inline(always)]
    fn shl<const N: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: a token exists only on a CPU that has the instructions.
        unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(N)) }
    }
    #[inline(always)]
    fn sar<const N: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: a token exists only on a CPU that has the instructions.
        unsafe { _mm512_srav_epi32(a, _mm512_set1_epi32(N)) }
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn load_few_f32(self, p: *const f32, n: usize) -> __m512 {
        _mm512_maskz_loadu_ps((1 << n) - 1, p)
    }
    #[inline(always)]
    unsafe fn store_f32(self, p: *mut f32, x: __m512) {
        _mm512_storeu_ps(p, x)
    }
    #[inline(always)]
    unsafe fn store_few_f32(self, p: *mut f32, n: usize, x: __m512) {
        _mm512_mask_storeu_ps(p, (1 << n) - 1, x)
    }
    #[inline(always)]
    unsafe fn store_few_f16(self, p: *mut u16, n: usize, x: __m512) {
        let bits = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        _mm512_mask_cvtepi32_storeu_epi16(p.cast(), (1 << n) - 1, _mm512_cvtepu16_epi32(bits))
    }
    #[inline(always)]
    unsafe fn store_few_bf16(self, p: *mut u16, n: usize, x: __m512) {
        _mm512_mask_cvtepi32_storeu_epi16(p.cast(), (1 << n) - 1, bf16_of(x))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, x: __m512) {
        _mm256_storeu_si256(
            p.cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x),
        )
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16, x: __m512) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(bf16_of(x)))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_u8(self, p: *mut u8, x: __m512i) {
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(x))
    }
}
