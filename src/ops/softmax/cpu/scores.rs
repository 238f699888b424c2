//! What the exponentials are taken of.

use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::ops::softmax::masked::visible;

/// How the scores come from x. Methods must be `inline(always)`.
pub trait Score<T: Element>: Copy + Send + Sync {
    /// Whether a row without a finite score gives zeros.
    const MASKED: bool = true;

    /// The bias of a row; anything where there is none.
    fn bias(&self, x: *const T, _row: usize) -> *const T {
        x
    }
    /// How many scores a row has; those behind are −∞.
    fn len(&self, _row: usize, cols: usize) -> usize {
        cols
    }
    unsafe fn load<S: Simd>(&self, s: S, x: *const T, bias: *const T) -> S::F;
    /// The first `n` < `LANES` scores, then −∞.
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, bias: *const T, n: usize) -> S::F;
}

/// x
#[derive(Clone, Copy)]
pub struct Plain;

impl<T: Element> Score<T> for Plain {
    const MASKED: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, x: *const T, _: *const T) -> S::F {
        T::load(s, x)
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, _: *const T, n: usize) -> S::F {
        T::load_partial(s, x, n, f32::NEG_INFINITY)
    }
}

/// scale · x, of the keys that a query sees.
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
        s.mul(T::load(s, x), s.splat(self.scale))
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, _: *const T, n: usize) -> S::F {
        let x = T::load_partial(s, x, n, 0.0);
        let end = f32::load_partial(s, [0.0; 16].as_ptr(), n, f32::NEG_INFINITY);
        s.fma(x, s.splat(self.scale), end)
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
        s.fma(T::load(s, x), s.splat(self.scale), T::load(s, bias))
    }
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(&self, s: S, x: *const T, bias: *const T, n: usize) -> S::F {
        let bias = T::load_partial(s, bias, n, f32::NEG_INFINITY);
        s.fma(T::load_partial(s, x, n, 0.0), s.splat(self.scale), bias)
    }
}
