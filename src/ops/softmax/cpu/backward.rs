//! Gradients over rows: a sum over the row, then one pass that writes.

use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_op::{self, RowOp};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::{math, rows};
use crate::ops::softmax::SoftmaxBwd;
use std::ops::Range;

/// # Safety
/// `y`, `g` and `dx` have `rows` rows of `cols` elements.
pub unsafe fn run<T: Element>(
    y: &RowView<T>,
    g: &RowView<T>,
    dx: Shared<T>,
    op: SoftmaxBwd,
    [rows, cols]: [usize; 2],
) {
    let scale = op.scale;
    if op.log {
        let op = Backward::<T, true> {
            y,
            g,
            dx,
            cols,
            scale,
        };
        row_op::run(op, rows, cols)
    } else {
        let op = Backward::<T, false> {
            y,
            g,
            dx,
            cols,
            scale,
        };
        row_op::run(op, rows, cols)
    }
}

#[derive(Clone, Copy)]
struct Backward<'a, T, const LOG: bool> {
    y: &'a RowView<'a, T>,
    g: &'a RowView<'a, T>,
    dx: Shared<T>,
    cols: usize,
    scale: f32,
}

/// The gradient of one vector, `sum` being Σ g·y, or Σ g for the logarithm.
#[inline(always)]
pub fn slope<S: Simd, const LOG: bool>(s: S, y: S::F, g: S::F, sum: S::F, scale: S::F) -> S::F {
    if LOG {
        s.fnma(math::exp_nonpositive(s, y), sum, g)
    } else {
        s.mul(s.mul(y, s.sub(g, sum)), scale)
    }
}

impl<T: Element, const LOG: bool> RowOp for Backward<'_, T, LOG> {
    /// The sum of [`slope`].
    type Stat = f32;
    const COST: usize = if LOG { parallel::EXP } else { 2 };

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> f32 {
        let (y, g) = (
            self.y.row(row).add(cols.start),
            self.g.row(row).add(cols.start),
        );
        let [sum] = if LOG {
            rows::fold(s, rows::Sum, [g], cols.len())
        } else {
            rows::fold(s, rows::Dot, [y, g], cols.len())
        };
        sum
    }

    #[inline(always)]
    fn join(a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, sum: f32) {
        let (y, g) = (self.y.row(row), self.g.row(row));
        let dx = self.dx.get().add(row * self.cols);
        let (sum, scale) = (s.splat(sum), s.splat(self.scale));
        let mut i = cols.start;
        while i + S::LANES <= cols.end {
            let d = slope::<S, LOG>(s, T::load(s, y.add(i)), T::load(s, g.add(i)), sum, scale);
            T::store(s, dx.add(i), d);
            i += S::LANES;
        }
        if i < cols.end {
            let left = cols.end - i;
            let y = T::load_partial(s, y.add(i), left, 0.0);
            let g = T::load_partial(s, g.add(i), left, 0.0);
            T::store_partial(s, dx.add(i), left, slope::<S, LOG>(s, y, g, sum, scale));
        }
    }
}
