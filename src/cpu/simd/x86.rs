//! AVX2 + FMA + F16C, and AVX-512F with its BW and VL.

use super::intrinsics::{entry_points, intrinsics, memory_intrinsics};
use super::{Kernel, Simd, MAX_LANES};
use core::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Avx2(());

#[derive(Clone, Copy)]
pub struct Avx512(());

entry_points! { Kernel:
    run_avx2 = Avx2(()), "avx2,fma,f16c";
    run_avx512 = Avx512(()), "avx512f,avx512bw,avx512vl,avx2,fma,f16c";
}

/// The types of an instruction set, which `$run` enters, and the methods that are one instruction in both sets.
macro_rules! one_instruction_each {
    ($column:ident, $run:ident, $lanes:literal of $F:ty, $I:ty, $M:ty) => {
        const LANES: usize = $lanes;
        type F = $F;
        type I = $I;
        type M = $M;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) {
            // SAFETY: the token `self` is made on a CPU that has the instructions, and nowhere else.
            unsafe { $run(kernel) }
        }

        intrinsics! { $column:
            (x: f32) -> Self::F { splat = _mm256_set1_ps, _mm512_set1_ps; }
            (a: Self::F, b: Self::F) -> Self::F {
                add = _mm256_add_ps, _mm512_add_ps;
                sub = _mm256_sub_ps, _mm512_sub_ps;
                mul = _mm256_mul_ps, _mm512_mul_ps;
                div = _mm256_div_ps, _mm512_div_ps;
                max = _mm256_max_ps, _mm512_max_ps;
                min = _mm256_min_ps, _mm512_min_ps;
            }
            (a: Self::F) -> Self::F {
                sqrt = _mm256_sqrt_ps, _mm512_sqrt_ps;
                swap_pairs = _mm256_permute_ps::<0b10_11_00_01>, _mm512_permute_ps::<0b10_11_00_01>;
            }
            (a: Self::F, b: Self::F, c: Self::F) -> Self::F {
                fma = _mm256_fmadd_ps, _mm512_fmadd_ps;
                fnma = _mm256_fnmadd_ps, _mm512_fnmadd_ps;
            }
            (a: Self::F, b: Self::F) -> Self::M {
                lt = _mm256_cmp_ps::<_CMP_LT_OQ>, _mm512_cmp_ps_mask::<_CMP_LT_OQ>;
                eq = _mm256_cmp_ps::<_CMP_EQ_OQ>, _mm512_cmp_ps_mask::<_CMP_EQ_OQ>;
            }
            (x: i32) -> Self::I { isplat = _mm256_set1_epi32, _mm512_set1_epi32; }
            (a: Self::F) -> Self::I { bits = _mm256_castps_si256, _mm512_castps_si512; }
            (a: Self::I) -> Self::F {
                float = _mm256_castsi256_ps, _mm512_castsi512_ps;
                to_float = _mm256_cvtepi32_ps, _mm512_cvtepi32_ps;
            }
            (a: Self::I, b: Self::I) -> Self::I {
                iadd = _mm256_add_epi32, _mm512_add_epi32;
                isub = _mm256_sub_epi32, _mm512_sub_epi32;
                and = _mm256_and_si256, _mm512_and_si512;
                or = _mm256_or_si256, _mm512_or_si512;
            }
        }
        intrinsics! {
            widen_one_f16(x: u16) -> f32 = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x.into())));
            narrow_one_f16(x: f32) -> u16 =
                _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(x))) as u16;
        }
        memory_intrinsics! { $column:
            (p: *const f32) -> Self::F { load_f32 = _mm256_loadu_ps, _mm512_loadu_ps; }
            (p: *mut f32, x: Self::F) -> () { store_f32 = _mm256_storeu_ps, _mm512_storeu_ps; }
        }
    };
}

/// All lanes of a `__m256` joined by `$join`, in the order of the trait's own tree: halves, quarters, pairs.
macro_rules! reduce {
    ($a:expr, $join:ident) => {{
        let a = $join(_mm256_castps256_ps128($a), _mm256_extractf128_ps::<1>($a));
        let a = $join(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32($join(a, _mm_movehdup_ps(a)))
    }};
}

/// The rows with each square of 4 × 4 inside 128 bits transposed; the squares have yet to be put in their order. The rows of a
/// square begin at one of the `groups`.
macro_rules! transposed_fours {
    ($rows:ident, $groups:expr, $to_pairs:ident, $from_pairs:ident, [$low:ident, $high:ident, $low_pair:ident, $high_pair:ident]) => {{
        let mut fours = $rows;
        for g in $groups {
            let [a, b] = [(0, 1), (2, 3)].map(|(i, j)| $low($rows[g + i], $rows[g + j]));
            let [c, d] = [(0, 1), (2, 3)].map(|(i, j)| $high($rows[g + i], $rows[g + j]));
            let [a, b, c, d] = [a, b, c, d].map(|x| $to_pairs(x));
            fours[g] = $from_pairs($low_pair(a, b));
            fours[g + 1] = $from_pairs($high_pair(a, b));
            fours[g + 2] = $from_pairs($low_pair(c, d));
            fours[g + 3] = $from_pairs($high_pair(c, d));
        }
        fours
    }};
}

/// For the four rows that begin at each of the `groups`, in each 128 bits: the sum of the first row's four lanes there, then those
/// of the other rows.
macro_rules! sum_fours {
    ($rows:ident, $groups:expr, $to_pairs:ident, $from_pairs:ident, $add:ident, [$low:ident, $high:ident, $low_pair:ident, $high_pair:ident]) => {{
        let mut sums = $groups.map(|g| $rows[g]);
        for (sum, g) in sums.iter_mut().zip($groups) {
            let (a, b, c, d) = ($rows[g], $rows[g + 1], $rows[g + 2], $rows[g + 3]);
            let ab = $to_pairs($add($low(a, b), $high(a, b)));
            let cd = $to_pairs($add($low(c, d), $high(c, d)));
            *sum = $add(
                $from_pairs($low_pair(ab, cd)),
                $from_pairs($high_pair(ab, cd)),
            );
        }
        sums
    }};
}

impl Simd for Avx2 {
    one_instruction_each!(narrow, run_avx2, 8 of __m256, __m256i, __m256);

    intrinsics! {
        select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
        shl<const N: i32>(a: __m256i) -> __m256i = _mm256_slli_epi32::<N>(a);
        sar<const N: i32>(a: __m256i) -> __m256i = _mm256_srai_epi32::<N>(a);
        reduce_add(a: __m256) -> f32 = reduce!(a, _mm_add_ps);
        reduce_max(a: __m256) -> f32 = reduce!(a, _mm_max_ps);
        transpose(rows: [__m256; MAX_LANES]) -> [__m256; MAX_LANES] = {
            let fours = transposed_fours!(
                rows, [0, 4], _mm256_castps_pd, _mm256_castpd_ps,
                [_mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpackhi_pd]
            );
            let mut columns = rows;
            for i in 0..4 {
                columns[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
                columns[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
            }
            columns
        };
        sum_rows(rows: [__m256; MAX_LANES]) -> __m256 = {
            let [a, b] = sum_fours!(
                rows, [0, 4], _mm256_castps_pd, _mm256_castpd_ps, _mm256_add_ps,
                [_mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpackhi_pd]
            );
            _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
        };
    }
    memory_intrinsics! {
        load_few_f32(p: *const f32, n: usize) -> __m256 = _mm256_maskload_ps(p, first(n));
        store_few_f32(p: *mut f32, n: usize, x: __m256) -> () = _mm256_maskstore_ps(p, first(n), x);
        load_f16(p: *const u16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        load_few_f16(p: *const u16, n: usize) -> __m256 = _mm256_cvtph_ps(few_u16(p, n));
        store_f16(p: *mut u16, x: __m256) -> () =
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        load_bf16(p: *const u16) -> __m256 = widen_bf16(_mm_loadu_si128(p.cast()));
        load_few_bf16(p: *const u16, n: usize) -> __m256 = widen_bf16(few_u16(p, n));
        store_bf16(p: *mut u16, x: __m256) -> () = {
            let words = _mm256_srli_epi32::<16>(Avx2(()).round_to_bf16(x));
            _mm_storeu_si128(p.cast(), low_words(words))
        };
        load_u8(p: *const u8) -> __m256i = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        load_i8(p: *const u8) -> __m256i = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
        load_u4(p: *const u8) -> __m256i = {
            // Every byte twice; then its lower and its upper half.
            let bytes = _mm_cvtsi32_si128(p.cast::<i32>().read_unaligned());
            let twice = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
            let halves = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
            _mm256_and_si256(halves, _mm256_set1_epi32(15))
        };
        store_u8(p: *mut u8, x: __m256i) -> () = {
            let words = low_words(_mm256_and_si256(x, _mm256_set1_epi32(0xff)));
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words))
        };
    }
}

/// A mask of the first `n` of eight lanes.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: the CPU has AVX2, and these instructions touch registers alone.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes)
    }
}

/// Eight bf16 as f32: their bits become the upper half.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn widen_bf16(words: __m128i) -> __m256 {
    // SAFETY: the CPU has AVX2, and these instructions touch registers alone.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words))) }
}

/// The lanes as 16-bit words, which none of them exceeds.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn low_words(x: __m256i) -> __m128i {
    // SAFETY: the CPU has AVX2, and these instructions touch registers alone.
    unsafe { _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)) }
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
    // SAFETY: each read ends within the n values: four of them (n ≥ 4) or two (n ≥ 2) at the front, or as many at the
    // back, where they overlap those at the front. SSE2 is part of the x86-64 baseline.
    unsafe {
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
}

impl Simd for Avx512 {
    one_instruction_each!(wide, run_avx512, 16 of __m512, __m512i, __mmask16);

    intrinsics! {
        select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
        // The immediate forms take u32, which a generic i32 constant cannot become; LLVM folds these.
        shl<const N: i32>(a: __m512i) -> __m512i = _mm512_sllv_epi32(a, _mm512_set1_epi32(N));
        sar<const N: i32>(a: __m512i) -> __m512i = _mm512_srav_epi32(a, _mm512_set1_epi32(N));
        reduce_add(a: __m512) -> f32 = _mm512_reduce_add_ps(a);
        reduce_max(a: __m512) -> f32 = _mm512_reduce_max_ps(a);
        transpose(rows: [__m512; MAX_LANES]) -> [__m512; MAX_LANES] = {
            let fours = transposed_fours!(
                rows, [0, 4, 8, 12], _mm512_castps_pd, _mm512_castpd_ps,
                [_mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpackhi_pd]
            );
            let mut columns = rows;
            for i in 0..4 {
                let [a, b, c, d] = [0, 4, 8, 12].map(|g| fours[g + i]);
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                columns[i] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
                columns[i + 4] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
                columns[i + 8] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
                columns[i + 12] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
            }
            columns
        };
        sum_rows(rows: [__m512; MAX_LANES]) -> __m512 = {
            let [a, b, c, d] = sum_fours!(
                rows, [0, 4, 8, 12], _mm512_castps_pd, _mm512_castpd_ps, _mm512_add_ps,
                [_mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpackhi_pd]
            );
            let a = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            let c = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, c), _mm512_shuffle_f32x4::<0xdd>(a, c))
        };
    }
    memory_intrinsics! {
        load_few_f32(p: *const f32, n: usize) -> __m512 = _mm512_maskz_loadu_ps((1 << n) - 1, p);
        store_few_f32(p: *mut f32, n: usize, x: __m512) -> () = _mm512_mask_storeu_ps(p, (1 << n) - 1, x);
        load_f16(p: *const u16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        store_f16(p: *mut u16, x: __m512) -> () = _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<TO_NEAREST>(x));
        load_few_f16(p: *const u16, n: usize) -> __m512 =
            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((1 << n) - 1, p.cast()));
        store_few_f16(p: *mut u16, n: usize, x: __m512) -> () =
            _mm256_mask_storeu_epi16(p.cast(), (1 << n) - 1, _mm512_cvtps_ph::<TO_NEAREST>(x));
        load_bf16(p: *const u16) -> __m512 = widen_sixteen_bf16(_mm256_loadu_si256(p.cast()));
        load_few_bf16(p: *const u16, n: usize) -> __m512 =
            widen_sixteen_bf16(_mm256_maskz_loadu_epi16((1 << n) - 1, p.cast()));
        store_bf16(p: *mut u16, x: __m512) -> () = {
            let words = _mm512_srli_epi32::<16>(Avx512(()).round_to_bf16(x));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(words))
        };
        store_few_bf16(p: *mut u16, n: usize, x: __m512) -> () = {
            let words = _mm512_srli_epi32::<16>(Avx512(()).round_to_bf16(x));
            _mm256_mask_storeu_epi16(p.cast(), (1 << n) - 1, _mm512_cvtepi32_epi16(words))
        };
        load_u8(p: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        load_i8(p: *const u8) -> __m512i = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
        load_u4(p: *const u8) -> __m512i = {
            let bytes = _mm_loadl_epi64(p.cast());
            let twice = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
            let halves = _mm512_srlv_epi32(twice, _mm512_set4_epi32(4, 0, 4, 0));
            _mm512_and_si512(halves, _mm512_set1_epi32(15))
        };
        store_u8(p: *mut u8, x: __m512i) -> () = _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(x));
    }
}

/// Sixteen bf16 as f32: their bits become the upper half.
///
/// # Safety
/// The CPU has AVX-512F.
#[inline(always)]
unsafe fn widen_sixteen_bf16(words: __m256i) -> __m512 {
    // SAFETY: the CPU has AVX-512F, and these instructions touch registers alone.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words))) }
}

/// The rounding of AVX-512's conversion to f16.
const TO_NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
