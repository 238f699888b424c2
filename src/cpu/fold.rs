//! Reductions over neighbouring elements, with four independent accumulators to hide the latency of additions. The order
//! of additions depends on the number of elements alone, so that a result has the same bits on every run.

use super::element::Element;
use super::simd::Simd;

/// A reduction of I inputs of the same length to O values, computed lane by lane. Methods that take a [`Simd`] must be
/// `inline(always)`.
///
/// Law: the order of the elements changes no result but by rounding.
pub trait Fold<const I: usize, const O: usize>: Copy {
    /// How accumulators are joined to one.
    const JOIN: Join = Join::Sum;
    /// What each accumulator holds before the first element: `join` with it changes nothing.
    const START: f32 = match Self::JOIN {
        Join::Sum => 0.0,
        Join::Max => f32::NEG_INFINITY,
    };
    /// Elements of the inputs that fill the last vector where fewer than a vector's are left. A `step` with them changes
    /// no accumulator that has seen an element or holds `START`.
    fn pad(&self) -> [f32; I] {
        [0.0; I]
    }
    /// The accumulators after one vector of each input.
    fn step<S: Simd>(&self, s: S, acc: [S::F; O], x: [S::F; I]) -> [S::F; O];
    /// The accumulator of what `a` and `b` have seen.
    #[inline(always)]
    fn join<S: Simd>(s: S, a: S::F, b: S::F) -> S::F {
        match Self::JOIN {
            Join::Sum => s.add(a, b),
            Join::Max => s.max(a, b),
        }
    }
    /// The lanes of an accumulator joined.
    #[inline(always)]
    fn finish<S: Simd>(s: S, acc: S::F) -> f32 {
        match Self::JOIN {
            Join::Sum => s.reduce_add(acc),
            Join::Max => s.reduce_max(acc),
        }
    }
}

/// What two accumulators of a [`Fold`] become.
pub enum Join {
    Sum,
    /// None may be NaN.
    Max,
}

/// Folds `n` elements from each of `p` on.
///
/// # Safety
/// Every pointer is valid for reads of `n` elements.
#[inline(always)]
pub unsafe fn fold<S: Simd, T: Element, F: Fold<I, O>, const I: usize, const O: usize>(
    s: S,
    f: F,
    p: [*const T; I],
    n: usize,
) -> [f32; O] {
    /// An addition takes about four cycles, and its result is needed by the next one.
    const WAYS: usize = 4;
    let mut acc = [[s.splat(F::START); O]; WAYS];
    let mut x = [s.splat(0.0); I];
    let mut i = 0;
    while i + WAYS * S::LANES <= n {
        for (w, acc) in acc.iter_mut().enumerate() {
            for (x, p) in x.iter_mut().zip(&p) {
                // SAFETY: i + WAYS · LANES ≤ n, and w < WAYS.
                *x = unsafe { T::load(s, p.add(i + w * S::LANES)) };
            }
            *acc = f.step(s, *acc, x);
        }
        i += WAYS * S::LANES;
    }
    while i + S::LANES <= n {
        for (x, p) in x.iter_mut().zip(&p) {
            // SAFETY: i + LANES ≤ n.
            *x = unsafe { T::load(s, p.add(i)) };
        }
        acc[0] = f.step(s, acc[0], x);
        i += S::LANES;
    }
    if i < n {
        let pad = f.pad();
        for (k, x) in x.iter_mut().enumerate() {
            // SAFETY: n − i < LANES elements are left.
            *x = unsafe { T::load_partial(s, p[k].add(i), n - i, pad[k]) };
        }
        acc[0] = f.step(s, acc[0], x);
    }
    let mut out = [0.0; O];
    for (o, out) in out.iter_mut().enumerate() {
        let (a, b) = (
            F::join(s, acc[0][o], acc[1][o]),
            F::join(s, acc[2][o], acc[3][o]),
        );
        *out = F::finish(s, F::join(s, a, b));
    }
    out
}

/// Σ x
#[derive(Clone, Copy)]
pub struct Sum;

impl Fold<1, 1> for Sum {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [acc]: [S::F; 1], [x]: [S::F; 1]) -> [S::F; 1] {
        [s.add(acc, x)]
    }
}

/// Σ x²
#[derive(Clone, Copy)]
pub struct SumSquares;

impl Fold<1, 1> for SumSquares {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [acc]: [S::F; 1], [x]: [S::F; 1]) -> [S::F; 1] {
        [s.fma(x, x, acc)]
    }
}

/// Σ (x − mean) and Σ (x − mean)², the second pass of a variance.
#[derive(Clone, Copy)]
pub struct Deviations {
    pub mean: f32,
}

impl Fold<1, 2> for Deviations {
    fn pad(&self) -> [f32; 1] {
        [self.mean]
    }
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [sum, squares]: [S::F; 2], [x]: [S::F; 1]) -> [S::F; 2] {
        let d = s.sub(x, s.splat(self.mean));
        [s.add(sum, d), s.fma(d, d, squares)]
    }
}

/// Σ x·y
#[derive(Clone, Copy)]
pub struct Dot;

impl Fold<2, 1> for Dot {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [acc]: [S::F; 1], [x, y]: [S::F; 2]) -> [S::F; 1] {
        [s.fma(x, y, acc)]
    }
}

/// The largest element that is not NaN.
#[derive(Clone, Copy)]
pub struct Max;

impl Fold<1, 1> for Max {
    const JOIN: Join = Join::Max;
    fn pad(&self) -> [f32; 1] {
        [f32::NEG_INFINITY]
    }
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [acc]: [S::F; 1], [x]: [S::F; 1]) -> [S::F; 1] {
        // `max` returns its second operand if either is NaN. The accumulator is second and never NaN, so a NaN element
        // is passed over.
        [s.max(x, acc)]
    }
}
