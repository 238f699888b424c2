//! Sums and maxima of rows.

use crate::cpu::alloc;
use crate::cpu::column_sums::ADDS_PER_COST;
use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Max, Sum};
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use std::ops::Range;

/// `scale` times the sum or maximum of each of the view's rows.
pub fn reduce_rows<T: Element, O: Element>(
    x: &RowView<'_, T>,
    [rows, cols]: [usize; 2],
    is_max: bool,
    scale: f32,
) -> Vec<O> {
    // SAFETY: x has the rows, and the value of each is written.
    unsafe {
        alloc::build(rows, |y| {
            let y = Shared::new(y);
            if is_max {
                two_pass::run(ReduceRow::<T, O, true> { x, y, scale }, rows, cols)
            } else {
                two_pass::run(ReduceRow::<T, O, false> { x, y, scale }, rows, cols)
            }
        })
    }
}

/// `scale ·` the sum of each row or, if `MAX`, its largest element that is not NaN. That is NaN if the first element is.
#[derive(Clone, Copy)]
struct ReduceRow<'a, T, O, const MAX: bool> {
    x: &'a RowView<'a, T>,
    y: Shared<O>,
    scale: f32,
}

impl<T: Element, O: Element, const MAX: bool> TwoPassRow for ReduceRow<'_, T, O, MAX> {
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
                .write(O::narrow_in(s, value * self.scale));
        }
    }
}
