//! The scores that a softmax is taken of: x itself, x scaled and perhaps causal, or x scaled with a mask added.

use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{Simd, MAX_LANES};
use crate::ops::softmax::masked::visible;

/// How scores follow from x. Methods that take a [`Simd`] must be `inline(always)`.
pub trait Score<T: Element>: Copy + Send + Sync {
    /// Whether scores are computed from x rather than x itself. Then a row without a finite score gives zeros instead of
    /// NaN, and scores are stored in the first pass, so that they are not computed again in the second.
    const MASKED: bool = true;

    /// The start of the values that are added to a row. A score that adds none returns `x`: any pointer will do, since
    /// it is never read.
    fn bias(&self, x: *const T, _row: usize) -> *const T {
        x
    }
    /// The number of scores of a row, at most `cols`. The columns behind them count as −∞.
    fn len(&self, _row: usize, cols: usize) -> usize {
        cols
    }
    /// The scores of a whole vector.
    ///
    /// # Safety
    /// `x` and `bias` are valid for reads of `S::LANES` elements.
    unsafe fn load<S: Simd>(&self, s: S, x: *const T, bias: *const T) -> S::F;
    /// The first `n` < `S::LANES` scores, then −∞.
    ///
    /// # Safety
    /// `x` and `bias` are valid for reads of `n` elements.
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, bias: *const T, n: usize) -> S::F;
}

/// x
#[derive(Clone, Copy)]
pub struct Plain;

impl<T: Element> Score<T> for Plain {
    const MASKED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, x: *const T, _: *const T) -> S::F {
        // SAFETY: x has a vector.
        unsafe { T::load(s, x) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, _: *const T, n: usize) -> S::F {
        // SAFETY: x has n elements.
        unsafe { T::load_partial(s, x, n, f32::NEG_INFINITY) }
    }
}

/// scale · x. If there are `queries`, rows are causal: row i is that of query i % queries, which sees the first keys only.
#[derive(Clone, Copy)]
pub struct Scaled {
    pub scale: f32,
    pub queries: Option<usize>,
}

impl<T: Element> Score<T> for Scaled {
    #[inline(always)]
    fn len(&self, row: usize, cols: usize) -> usize {
        match self.queries {
            Some(queries) => visible(row % queries, queries, cols),
            None => cols,
        }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, x: *const T, _: *const T) -> S::F {
        // SAFETY: x has a vector.
        unsafe { s.mul(T::load(s, x), s.splat(self.scale)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, _: *const T, n: usize) -> S::F {
        // SAFETY: x has n elements, and n is less than MAX_LANES.
        unsafe {
            let x = T::load_partial(s, x, n, 0.0);
            let end = f32::load_partial(s, [0.0; MAX_LANES].as_ptr(), n, f32::NEG_INFINITY);
            s.fma(x, s.splat(self.scale), end)
        }
    }
}

/// scale · x + mask
#[derive(Clone, Copy)]
pub struct Biased<'a, T> {
    pub scale: f32,
    pub mask: &'a RowView<'a, T>,
}

impl<T: Element> Score<T> for Biased<'_, T> {
    #[inline(always)]
    fn bias(&self, _: *const T, row: usize) -> *const T {
        self.mask.row(row)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, x: *const T, bias: *const T) -> S::F {
        // SAFETY: x and the mask have a vector.
        unsafe { s.fma(T::load(s, x), s.splat(self.scale), T::load(s, bias)) }
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, bias: *const T, n: usize) -> S::F {
        // SAFETY: x and the mask have n elements.
        unsafe {
            let bias = T::load_partial(s, bias, n, f32::NEG_INFINITY);
            s.fma(T::load_partial(s, x, n, 0.0), s.splat(self.scale), bias)
        }
    }
}

/// The scores of one row.
#[derive(Clone, Copy)]
pub struct ScoreRow<T, P> {
    score: P,
    x: *const T,
    bias: *const T,
    /// The number of scores.
    pub len: usize,
}

impl<T: Element, P: Score<T>> ScoreRow<T, P> {
    #[inline(always)]
    pub fn new(score: P, x: &RowView<T>, row: usize, cols: usize) -> Self {
        let x = x.row(row);
        ScoreRow {
            score,
            x,
            bias: score.bias(x, row),
            len: score.len(row, cols),
        }
    }

    /// The scores from `i` on.
    ///
    /// # Safety
    /// `new` was given a row that x and the score have, of `cols` elements, and `i + S::LANES <= len`.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(&self, s: S, i: usize) -> S::F {
        // SAFETY: the row has `len` elements, of which a vector is left from i on. Without a mask `bias` is x's row.
        unsafe { self.score.load(s, self.x.add(i), self.bias.add(i)) }
    }

    /// The scores from `i` up to `end`, then −∞.
    ///
    /// # Safety
    /// `new` was given a row that x and the score have, of `cols` elements; `i <= end <= len` and `end < i + S::LANES`.
    #[inline(always)]
    pub unsafe fn load_tail<S: Simd>(&self, s: S, i: usize, end: usize) -> S::F {
        // SAFETY: the row has `len` elements, of which end − i are left from i on.
        unsafe {
            let (x, bias) = (self.x.add(i), self.bias.add(i));
            self.score.load_partial(s, x, bias, end - i)
        }
    }
}
