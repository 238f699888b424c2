//! Products of bf16 by the dot-product instruction of AVX512-BF16: two products of each lane at once, exact, summed in f32.
//!
//! A pair of neighbouring columns is packed as one f32 that is never computed with, so that [`pack`](super::pack) serves
//! pairs too: a row of `dim` bf16 is one of `dim / 2` pairs. Subnormal numbers count as 0, as the instruction has it.

use super::super::ahead::Ahead;
use super::tile::Tile;
use crate::cpu::element::Element;
use crate::cpu::simd::Simd;
use candle_core::DType;

/// Whether products of rows of `dim` elements of T are made of pairs.
#[inline(always)]
pub fn suits<S: Simd, T: Element>(dim: usize) -> bool {
    S::LANES == 16 && suit_this_cpu::<T>(dim)
}

/// [`suits`] for the best instruction set of this CPU.
#[inline(always)]
pub fn suit_this_cpu<T: Element>(dim: usize) -> bool {
    T::DTYPE == DType::BF16 && dim.is_multiple_of(2) && available()
}

#[cfg(target_arch = "x86_64")]
fn available() -> bool {
    // With the others, the best instruction set of this CPU is AVX-512.
    is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn available() -> bool {
    false
}

/// As [`Tile::of_packed`], of A and B packed as pairs, of which there are k.
///
/// # Safety
/// [`suits`] has said yes, and the contract of [`Tile::of_packed`] holds for k pairs.
#[inline(always)]
pub unsafe fn multiply(tile: Tile) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the CPU has the instructions, and the contract is the same.
    unsafe {
        x86::multiply(tile)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = tile;
}

/// The products of R rows of x with C rows of W, all of `n` neighbouring elements. Behind those of W others follow, each `row`
/// elements behind the one before: what comes next is fetched.
///
/// # Safety
/// [`suits`] has said yes for `n`, and every row is valid for reads of `n` elements.
#[inline(always)]
pub unsafe fn dot<T: Element, const R: usize, const C: usize>(
    x: [*const T; R],
    w: [*const T; C],
    n: usize,
    row: usize,
) -> [[f32; C]; R] {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the CPU has the instructions, and the contract is the same for pairs.
    unsafe {
        let ahead = Ahead::across_rows::<i32>(n / 2, row / 2, C);
        x86::dot(x.map(|p| p.cast()), w.map(|p| p.cast()), n / 2, ahead)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (x, w, n, row);
        [[0.0; C]; R]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::tile::NR;
    use super::{Ahead, Tile};
    use core::arch::x86_64::*;

    /// The rows of a register block of 16 lanes.
    const MR: usize = 12;

    /// # Safety
    /// The CPU has AVX-512F and AVX512-BF16; A has MR pairs at each of `k` steps, B has k rows of 32, and C has room for MR
    /// rows of 32 elements.
    #[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub unsafe fn multiply(tile: Tile) {
        let (mut a, mut b) = (tile.a.cast::<i32>(), tile.b);
        let mut sums = [[_mm512_setzero_ps(); NR]; MR];
        for _ in 0..tile.k {
            // SAFETY: the caller has MR pairs of A and 32 of B at each of k steps. A vector of pairs has the size of one
            // of 32 bf16, and all bits are valid.
            unsafe {
                let row: [__m512bh; NR] =
                    [b, b.add(16)].map(|b| core::mem::transmute(_mm512_loadu_ps(b)));
                for i in 0..MR {
                    let x: __m512bh =
                        core::mem::transmute(_mm512_set1_epi32(a.add(i).read_unaligned()));
                    for n in 0..NR {
                        sums[i][n] = _mm512_dpbf16_ps(sums[i][n], x, row[n]);
                    }
                }
                a = a.add(tile.a_step);
                b = b.add(NR * 16);
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                // SAFETY: the caller has room for MR rows of 32 elements, initialised if they are added to.
                unsafe {
                    let c = tile.c.add(i * tile.c_row + n * 16);
                    let sum = match tile.add {
                        true => _mm512_add_ps(_mm512_loadu_ps(c), sum),
                        false => sum,
                    };
                    _mm512_storeu_ps(c, sum);
                }
            }
        }
    }

    /// The products of rows of `pairs` pairs.
    ///
    /// # Safety
    /// The CPU has AVX-512F and AVX512-BF16, and every row is valid for reads of as many pairs.
    #[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub unsafe fn dot<const R: usize, const C: usize>(
        x: [*const i32; R],
        w: [*const i32; C],
        pairs: usize,
        ahead: Ahead,
    ) -> [[f32; C]; R] {
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        let mut k = 0;
        while k < pairs {
            let mask = match pairs - k {
                left @ 0..16 => (1 << left) - 1,
                _ => u16::MAX,
            };
            // SAFETY: pairs outside the mask are not read, and those inside it are in the rows. A vector of pairs has the size
            // of one of 32 bf16, and all bits are valid. A prefetch reads nothing.
            unsafe {
                let next = ahead.of(k);
                let mut wide = [_mm512_setzero_si512(); C];
                for c in 0..C {
                    _mm_prefetch::<_MM_HINT_T0>(w[c].wrapping_add(next).cast());
                    wide[c] = _mm512_maskz_loadu_epi32(mask, w[c].add(k));
                }
                for r in 0..R {
                    let x = _mm512_maskz_loadu_epi32(mask, x[r].add(k));
                    for c in 0..C {
                        sums[r][c] = _mm512_dpbf16_ps(
                            sums[r][c],
                            core::mem::transmute::<__m512i, __m512bh>(x),
                            core::mem::transmute::<__m512i, __m512bh>(wide[c]),
                        );
                    }
                }
            }
            k += 16;
        }
        let mut totals = [[0.0; C]; R];
        for r in 0..R {
            for c in 0..C {
                totals[r][c] = _mm512_reduce_add_ps(sums[r][c]);
            }
        }
        totals
    }
}
