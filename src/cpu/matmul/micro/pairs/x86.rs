//! AVX512-BF16.

use super::super::lanes::Lanes;
use super::entry_points;
use super::few_rows::Pairs;
use core::arch::x86_64::*;
use core::mem::transmute;

pub const LANES: usize = 16;

pub fn available() -> bool {
    // With the others, the best instruction set of this CPU is AVX-512.
    is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// Made on a CPU with AVX-512F and AVX512-BF16 alone.
#[derive(Clone, Copy)]
struct Avx512Bf16(());

entry_points!(Avx512Bf16(()), "avx512f,avx512bf16");

impl Lanes for Avx512Bf16 {
    const LANES: usize = LANES;
    type V = __m512;
    type X = __m512;
    #[inline(always)]
    fn zeros(self) -> __m512 {
        // SAFETY: the CPU has the instructions; see the type.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, x: __m512, b: __m512, c: __m512) -> __m512 {
        self.dot(x, b, c)
    }
    #[inline(always)]
    unsafe fn repeat(self, p: *const f32) -> __m512 {
        // SAFETY: as above; the caller has a pair at `p`.
        unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(p.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: as above; the caller has a vector at `p`.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: __m512) {
        // SAFETY: as above; the caller has room for a vector at `p`.
        unsafe { _mm512_storeu_ps(p, x) }
    }
}

impl Pairs for Avx512Bf16 {
    /// A vector of 16 pairs is a cache line: memory is slower than the sums.
    const FEW_SUMS: usize = 0;
    #[inline(always)]
    fn dot(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above; a vector of pairs has the size of one of 32 bf16, and all bits are valid.
        unsafe {
            _mm512_dpbf16_ps(
                c,
                transmute::<__m512, __m512bh>(a),
                transmute::<__m512, __m512bh>(b),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_few(self, p: *const f32, n: usize) -> __m512 {
        // SAFETY: as above; pairs outside the mask are not read.
        unsafe { _mm512_maskz_loadu_ps((1 << n) - 1, p) }
    }
    #[inline(always)]
    fn reduce_add(self, sums: __m512) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(sums) }
    }
}
