//! Few rows of pairs with few others.

use super::super::lanes::Lanes;
use crate::cpu::matmul::ahead::Ahead;
use crate::cpu::simd::prefetch;

/// Vectors of pairs. Those of [`Lanes`] are sums of f32, or pairs that have the size of one.
pub trait Pairs: Lanes {
    /// Fewer sums than this wait for one another: then two vectors of each row are multiplied in turn.
    const FEW_SUMS: usize;
    /// The products of pairs, lane by lane, added to c.
    fn dot(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The first `n` < LANES pairs; the others are zeros.
    ///
    /// # Safety
    /// `p` is valid for reads of `n` pairs, which need not be aligned.
    unsafe fn load_few(self, p: *const f32, n: usize) -> Self::V;
    /// The sum of the lanes.
    fn reduce_add(self, sums: Self::V) -> f32;
}

/// Picks the code for as many sums.
///
/// # Safety
/// Every row is valid for reads of `pairs` pairs.
#[inline(always)]
pub unsafe fn sized<P: Pairs, const R: usize, const C: usize>(
    p: P,
    x: [*const f32; R],
    w: [*const f32; C],
    pairs: usize,
    ahead: Ahead,
) -> [[f32; C]; R] {
    // SAFETY: the same contract.
    unsafe {
        match R * C < P::FEW_SUMS {
            true => run::<P, R, C, 2>(p, (x, w), pairs, ahead),
            false => run::<P, R, C, 1>(p, (x, w), pairs, ahead),
        }
    }
}

/// # Safety
/// As for [`sized`].
#[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
#[inline(always)]
unsafe fn run<P: Pairs, const R: usize, const C: usize, const U: usize>(
    p: P,
    rows: ([*const f32; R], [*const f32; C]),
    pairs: usize,
    ahead: Ahead,
) -> [[f32; C]; R] {
    let mut sums = [[[p.zeros(); C]; R]; U];
    let mut k = 0;
    // SAFETY: whole vectors are loaded while U of them are left, then one if U is 2, then the pairs that are left.
    unsafe {
        while k + U * P::LANES <= pairs {
            for u in 0..U {
                let at = k + u * P::LANES;
                add_products::<P, R, C, true>(p, rows, (at, P::LANES), ahead.of(at), &mut sums[u]);
            }
            k += U * P::LANES;
        }
        if U > 1 && k + P::LANES <= pairs {
            add_products::<P, R, C, true>(p, rows, (k, P::LANES), ahead.of(k), &mut sums[0]);
            k += P::LANES;
        }
        if k < pairs {
            add_products::<P, R, C, false>(p, rows, (k, pairs - k), ahead.of(k), &mut sums[0]);
        }
    }
    let mut totals = [[0.0; C]; R];
    for r in 0..R {
        for c in 0..C {
            let mut sum = sums[0][r][c];
            for more in &sums[1..] {
                sum = p.add(sum, more[r][c]);
            }
            totals[r][c] = p.reduce_add(sum);
        }
    }
    totals
}

/// Adds the products of `count` pairs of each row from `k` on: of a vector if WHOLE is set, else of fewer.
///
/// # Safety
/// Every row is valid for reads of these pairs.
#[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
#[inline(always)]
unsafe fn add_products<P: Pairs, const R: usize, const C: usize, const WHOLE: bool>(
    p: P,
    (x, w): ([*const f32; R], [*const f32; C]),
    (k, count): (usize, usize),
    next: usize,
    sums: &mut [[P::V; C]; R],
) {
    // SAFETY: the caller has the pairs.
    unsafe {
        let mut wide = [p.zeros(); C];
        for c in 0..C {
            prefetch(w[c].wrapping_add(next));
            wide[c] = load::<P, WHOLE>(p, w[c].add(k), count);
        }
        for r in 0..R {
            let x = load::<P, WHOLE>(p, x[r].add(k), count);
            for c in 0..C {
                sums[r][c] = p.dot(x, wide[c], sums[r][c]);
            }
        }
    }
}

/// A vector if WHOLE is set, else `count` < LANES pairs and zeros.
///
/// # Safety
/// `from` is valid for reads of as many.
#[inline(always)]
unsafe fn load<P: Pairs, const WHOLE: bool>(p: P, from: *const f32, count: usize) -> P::V {
    // SAFETY: the same contract.
    unsafe {
        match WHOLE {
            true => p.load(from),
            false => p.load_few(from, count),
        }
    }
}
