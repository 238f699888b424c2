//! Reductions of rows, and the gradient of the maximum. Sums of columns are in [`crate::cpu::column_sums`].

mod max_backward;

pub use max_backward::max_backward;

use super::{Reduce, Reduction, NAME};
use crate::cpu::column_sums::{self, ADDS_PER_COST};
use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Max, Sum};
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, gather, with_float};
use crate::op::{Arg, OpResult};
use crate::ops::reduce::Over;
use candle_core::CpuStorage;
use std::ops::Range;

pub fn forward(op: Reduce, (x, l): Arg<CpuStorage>) -> OpResult<CpuStorage> {
    let (rows, cols) = op.over.split(l.shape());
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = &match op.over {
            Over::LastDim => RowView::new(x, l),
            Over::All => RowView::contiguous(gather::contiguous(x, l), cols),
        };
        let scale = match op.reduction {
            Reduction::Mean => 1.0 / cols as f32,
            Reduction::Sum | Reduction::Max => 1.0,
        };
        // SAFETY: x has the rows, and the value of each is written.
        let out = unsafe {
            alloc::build(rows, |y| {
                let y = Shared::new(y);
                if op.reduction == Reduction::Max {
                    two_pass::run(ReduceRow::<T, true> { x, y, scale }, rows, cols)
                } else {
                    two_pass::run(ReduceRow::<T, false> { x, y, scale }, rows, cols)
                }
            })
        };
        Ok(T::wrap(out))
    })?;
    Ok((out, op.over.shape(l.shape())))
}

/// `scale ·` the sum of each row or, if `MAX`, its largest element that is not NaN. That is NaN if the first element is.
#[derive(Clone, Copy)]
struct ReduceRow<'a, T, const MAX: bool> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    scale: f32,
}

impl<T: Element, const MAX: bool> TwoPassRow for ReduceRow<'_, T, MAX> {
    type Stat = f32;
    // With one value to write there is no second pass that would find its row in the cache: long rows are always cut.
    const WHOLE_FROM: usize = usize::MAX;
    const APPLIES_PARTS: bool = false;

    fn cost(cols: usize) -> usize {
        cols.div_ceil(ADDS_PER_COST)
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> f32 {
        // SAFETY: x has this row, and these columns lie in it.
        unsafe {
            let x = self.x.row(row).add(cols.start);
            if !MAX {
                let [sum] = fold(s, Sum, [x], cols.len());
                return sum;
            }
            let [max] = fold(s, Max, [x], cols.len());
            let is_first = cols.start == 0 && !cols.is_empty();
            if is_first && (*x).widen_in(s).is_nan() {
                return f32::NAN;
            }
            max
        }
    }

    fn join(&self, a: f32, b: f32) -> f32 {
        match MAX {
            false => a + b,
            // If `a` is NaN, the row's first element is, and NaN is the maximum. `b` never is.
            true if b > a => b,
            true => a,
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, _: Range<usize>, value: f32) {
        // SAFETY: y has an element for each row.
        unsafe {
            self.y
                .get()
                .add(row)
                .write(T::narrow_in(s, value * self.scale));
        }
    }
}

pub fn sum_middle((x, l): Arg<CpuStorage>) -> OpResult<CpuStorage> {
    let (outer, n, inner) = l.shape().dims3()?;
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        Ok(T::wrap(column_sums::sum_middle(&x, [outer, n, inner])))
    })?;
    Ok((out, (outer, inner).into()))
}
