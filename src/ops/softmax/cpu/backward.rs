//! The gradient over rows: sum g·y (or g, for the logarithm), then write dx.

use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Dot, Sum};
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use std::ops::Range;

/// # Safety
/// `y`, `g` and `dx` have `rows` rows of `cols` elements.
pub unsafe fn run<T: Element, const LOG: bool>(
    [y, g]: [&RowView<T>; 2],
    dx: Shared<T>,
    scale: f32,
    [rows, cols]: [usize; 2],
) {
    let op = Gradient::<T, LOG> {
        y,
        g,
        dx,
        cols,
        scale,
    };
    // SAFETY: the op's y, g and dx have these rows.
    unsafe { two_pass::run(op, rows, cols) }
}

#[derive(Clone, Copy)]
struct Gradient<'a, T, const LOG: bool> {
    y: &'a RowView<'a, T>,
    g: &'a RowView<'a, T>,
    dx: Shared<T>,
    cols: usize,
    scale: f32,
}

/// The gradient of one vector, `sum` being Σ g·y, or Σ g for the logarithm.
#[inline(always)]
pub fn gradient<S: Simd, const LOG: bool>(s: S, y: S::F, g: S::F, sum: S::F, scale: S::F) -> S::F {
    if LOG {
        s.fnma(math::exp_nonpositive(s, y), sum, g)
    } else {
        s.mul(s.mul(y, s.sub(g, sum)), scale)
    }
}

/// What an element of the gradient costs, in the units of [`parallel`].
pub const fn cost(log: bool) -> usize {
    if log {
        parallel::EXP
    } else {
        2
    }
}

impl<T: Element, const LOG: bool> TwoPassRow for Gradient<'_, T, LOG> {
    /// Σ g·y for a softmax, Σ g for a log-softmax: the argument `sum` of [`gradient`].
    type Stat = f32;

    fn cost(cols: usize) -> usize {
        cols * cost(LOG)
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> f32 {
        // SAFETY: y and g have this row, and these columns lie in it.
        unsafe {
            let [y, g] = [self.y, self.g].map(|rows| rows.row(row).add(cols.start));
            let [sum] = if LOG {
                fold(s, Sum, [g], cols.len())
            } else {
                fold(s, Dot, [y, g], cols.len())
            };
            sum
        }
    }

    fn join(&self, a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, sum: f32) {
        // SAFETY: y, g and dx have this row of `cols` elements, and no other thread is given these columns.
        unsafe {
            let row = GradientRow::<T, LOG> {
                y: self.y.row(row),
                g: self.g.row(row),
                dx: self.dx.get().add(row * self.cols),
                sum,
                scale: self.scale,
            };
            for_each_piece(s, cols, &row);
        }
    }
}

/// One row of y, g and dx, and the sum of [`gradient`].
struct GradientRow<T, const LOG: bool> {
    y: *const T,
    g: *const T,
    dx: *mut T,
    sum: f32,
    scale: f32,
}

impl<T: Element, const LOG: bool> Pieces for GradientRow<T, LOG> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: the row has the elements that are asked for.
        unsafe {
            let y = T::load_piece::<S, FULL>(s, self.y.add(i), left);
            let g = T::load_piece::<S, FULL>(s, self.g.add(i), left);
            let d = gradient::<S, LOG>(s, y, g, s.splat(self.sum), s.splat(self.scale));
            T::store_piece::<S, FULL>(s, self.dx.add(i), left, d);
        }
    }
}
