//! AVX2, and the byte dot products of AVX-VNNI (vectors of 32 bytes) and of AVX-512-VNNI (vectors of 64 bytes).

use super::{unpack_4_bits, ByteKernel, ByteSimd};
use crate::cpu::simd::intrinsics::{entry_points, intrinsics, memory_intrinsics};
use crate::cpu::simd::MAX_LANES;
use core::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Avx2(());

#[derive(Clone, Copy)]
pub struct Vnni(());

/// With GFNI, a shift and a mask of bytes are one product with a matrix of bits.
#[derive(Clone, Copy)]
pub struct Vnni512<const GFNI: bool>(());

entry_points! { ByteKernel:
    run_avx2 = Avx2(()), "avx2,fma";
    run_vnni = Vnni(()), "avx2,fma,avxvnni";
    run_vnni512 = Vnni512::<false>(()), "avx512f,avx512bw,avx512vnni";
    run_vnni512_gfni = Vnni512::<true>(()), "avx512f,avx512bw,avx512vnni,gfni";
}

/// The methods that are one instruction, both with vectors of 32 bytes and with vectors of 64 bytes.
macro_rules! one_instruction_each {
    ($column:ident, $integers:ty, $floats:ty) => {
        type V = $integers;
        type Sum = $integers;
        type F = $floats;

        intrinsics! { $column:
            () -> Self::Sum { zero = _mm256_setzero_si256, _mm512_setzero_si512; }
            (sum: Self::Sum) -> Self::Sum { times_256 = _mm256_slli_epi32::<8>, _mm512_slli_epi32::<8>; }
            (sum: Self::Sum) -> Self::F { to_float = _mm256_cvtepi32_ps, _mm512_cvtepi32_ps; }
            (x: f32) -> Self::F { splat = _mm256_set1_ps, _mm512_set1_ps; }
            (a: Self::F, b: Self::F) -> Self::F { mul = _mm256_mul_ps, _mm512_mul_ps; }
            (a: Self::F, b: Self::F, c: Self::F) -> Self::F { fma = _mm256_fmadd_ps, _mm512_fmadd_ps; }
        }
        memory_intrinsics! { $column:
            (p: *const u8) -> Self::V { load = _mm256_loadu_si256, _mm512_loadu_si512; }
            (p: *mut u8, v: Self::V) -> () { store = _mm256_storeu_si256, _mm512_storeu_si512; }
            (p: *const i32) -> Self::Sum { load_i32 = _mm256_loadu_si256, _mm512_loadu_si512; }
            (p: *const f32) -> Self::F { load_f32 = _mm256_loadu_ps, _mm512_loadu_ps; }
            (p: *mut f32, x: Self::F) -> () { store_f32 = _mm256_storeu_ps, _mm512_storeu_ps; }
        }
    };
}

/// The bytes from `at` on of `$count` groups of four rows, as lanes of 32 bits; each group is transposed within each 128 bits,
/// where vector i of the group has lane i of its four rows.
macro_rules! transposed_fours {
    ($s:ident.load, $rows:ident, $at:ident, $count:literal, [$low32:ident, $high32:ident, $low64:ident, $high64:ident]) => {{
        let mut groups = [[$s.zero(); 4]; $count];
        for (g, four) in groups.iter_mut().enumerate() {
            let (a, b) = (
                $s.load($rows[4 * g].add($at)),
                $s.load($rows[4 * g + 1].add($at)),
            );
            let (c, d) = (
                $s.load($rows[4 * g + 2].add($at)),
                $s.load($rows[4 * g + 3].add($at)),
            );
            let (low, high) = ([$low32(a, b), $low32(c, d)], [$high32(a, b), $high32(c, d)]);
            *four = [
                $low64(low[0], low[1]),
                $high64(low[0], low[1]),
                $low64(high[0], high[1]),
                $high64(high[0], high[1]),
            ];
        }
        groups
    }};
}

/// What AVX2 and AVX-VNNI have in common: everything but the dot products.
macro_rules! vectors_of_32_bytes {
    () => {
        one_instruction_each!(narrow, __m256i, __m256);

        memory_intrinsics! {
            repeat_four(p: *const u8) -> __m256i = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        }
        /// The four rows of each half make four vectors of neighbouring lanes; then the halves meet.
        #[inline(always)]
        unsafe fn transpose(self, rows: &[*const u8; MAX_LANES], at: usize, to: *mut u8) {
            // SAFETY: the token is made on a CPU with AVX2; the caller answers for the rows and for `to`.
            unsafe {
                let halves = transposed_fours!(
                    self.load, rows, at, 2,
                    [_mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64]
                );
                for i in 0..4 {
                    let (low, high) = (halves[0][i], halves[1][i]);
                    self.store(to.add(32 * i), _mm256_permute2x128_si256::<0x20>(low, high));
                    self.store(to.add(32 * (i + 4)), _mm256_permute2x128_si256::<0x31>(low, high));
                }
            }
        }
        intrinsics! {
            flip_sign_bits(v: __m256i) -> __m256i = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
            add_shifted<const SHIFT: i32>(a: __m256i, b: __m256i) -> __m256i =
                _mm256_add_epi32(a, _mm256_srai_epi32::<SHIFT>(b));
            reduce_add_i32(sum: __m256i) -> i32 = {
                let (low, high) = (_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                let sum = _mm_add_epi32(low, high);
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_10_11_00_01>(sum));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b_01_00_11_10>(sum));
                _mm_cvtsi128_si32(sum)
            };
            reduce_add(a: __m256) -> f32 = {
                let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
                let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
                _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
            };
            // The array has MAX_LANES ≥ 8 indices; the first 8 indices are read.
            permute(x: __m256, lanes: &[i32; MAX_LANES]) -> __m256 =
                _mm256_permutevar8x32_ps(x, _mm256_loadu_si256(lanes.as_ptr().cast()));
            codes<const MASK: i32, const SHIFT: i32>(v: __m256i) -> __m256i =
                _mm256_and_si256(_mm256_srli_epi16::<SHIFT>(v), _mm256_set1_epi8(MASK as i8));
        }
    };
}

impl ByteSimd for Avx2 {
    vectors_of_32_bytes!();

    intrinsics! {
        // A pair of products is at most 2 · 128 times the largest code, so the N pairs of a 16-bit lane sum to at most
        // 30 · 2 · 128 < 2¹⁵: they are widened to i32 once for all N vectors.
        dot<const N: usize>(sum: __m256i, codes: [__m256i; N], x: [__m256i; N]) -> __m256i = {
            let mut words = _mm256_maddubs_epi16(codes[0], x[0]);
            for i in 1..N {
                words = _mm256_add_epi16(words, _mm256_maddubs_epi16(codes[i], x[i]));
            }
            _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)))
        };
        // The halves of a byte are multiplied apart, so that 16-bit lanes hold the pairs of products: code = low + 16 · high.
        dot_bytes(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i = {
            let [low, high] = unpack_4_bits(Avx2(()), codes);
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), _mm256_set1_epi16(1));
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(high, x), _mm256_set1_epi16(16));
            _mm256_add_epi32(sum, _mm256_add_epi32(low, high))
        };
    }
}

impl ByteSimd for Vnni {
    vectors_of_32_bytes!();

    intrinsics! {
        dot_bytes(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i = _mm256_dpbusd_avx_epi32(sum, codes, x);
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

    one_instruction_each!(wide, __m512i, __m512);

    memory_intrinsics! {
        repeat_four(p: *const u8) -> __m512i = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
    }
    /// The four rows of each quarter make four vectors of neighbouring lanes; then the quarters meet, two by two.
    #[inline(always)]
    unsafe fn transpose(self, rows: &[*const u8; MAX_LANES], at: usize, to: *mut u8) {
        // SAFETY: the token is made on a CPU with AVX-512; the caller answers for the rows and for `to`.
        unsafe {
            let quarters = transposed_fours!(
                self.load,
                rows,
                at,
                4,
                [
                    _mm512_unpacklo_epi32,
                    _mm512_unpackhi_epi32,
                    _mm512_unpacklo_epi64,
                    _mm512_unpackhi_epi64
                ]
            );
            #[expect(clippy::needless_range_loop, reason = "four arrays at once")]
            for i in 0..4 {
                let [p, q, r, s] = [
                    quarters[0][i],
                    quarters[1][i],
                    quarters[2][i],
                    quarters[3][i],
                ];
                // Even and odd quarters of two vectors.
                let (even, odd) = (
                    _mm512_shuffle_i32x4::<0x88>(p, q),
                    _mm512_shuffle_i32x4::<0xdd>(p, q),
                );
                let (last_even, last_odd) = (
                    _mm512_shuffle_i32x4::<0x88>(r, s),
                    _mm512_shuffle_i32x4::<0xdd>(r, s),
                );
                self.store(
                    to.add(64 * i),
                    _mm512_shuffle_i32x4::<0x88>(even, last_even),
                );
                self.store(
                    to.add(64 * (i + 4)),
                    _mm512_shuffle_i32x4::<0x88>(odd, last_odd),
                );
                self.store(
                    to.add(64 * (i + 8)),
                    _mm512_shuffle_i32x4::<0xdd>(even, last_even),
                );
                self.store(
                    to.add(64 * (i + 12)),
                    _mm512_shuffle_i32x4::<0xdd>(odd, last_odd),
                );
            }
        }
    }
    intrinsics! {
        flip_sign_bits(v: __m512i) -> __m512i = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
        add_shifted<const SHIFT: i32>(a: __m512i, b: __m512i) -> __m512i =
            _mm512_add_epi32(a, _mm512_sra_epi32(b, _mm_cvtsi32_si128(SHIFT)));
        dot_bytes(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i = _mm512_dpbusd_epi32(sum, codes, x);
        reduce_add_i32(sum: __m512i) -> i32 = _mm512_reduce_add_epi32(sum);
        reduce_add(a: __m512) -> f32 = _mm512_reduce_add_ps(a);
        // The array has 16 indices; all 16 are read.
        permute(x: __m512, lanes: &[i32; MAX_LANES]) -> __m512 =
            _mm512_permutexvar_ps(_mm512_loadu_si512(lanes.as_ptr().cast()), x);
        // Lanes outside the mask are not read, and those inside it are in the slice.
        load_first(values: &[f32]) -> __m512 = {
            let mask = match values.len() {
                len @ 0..16 => (1 << len) - 1,
                _ => u16::MAX,
            };
            _mm512_maskz_loadu_ps(mask, values.as_ptr())
        };
        // Only a token of `run_vnni512_gfni` has GFNI set.
        codes<const MASK: i32, const SHIFT: i32>(v: __m512i) -> __m512i = {
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
        };
    }
}
