//! log_softmax over rows: find the maximum and the sum of the exponentials, then write x − max − log(sum).

use super::max_sum::MaxSum;
use super::scores::{Plain, ScoreRow};
use crate::cpu::element::Element;
use crate::cpu::elementwise::{map_run, Map};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::{math, two_pass};
use std::ops::Range;

/// # Safety
/// `x` and `y` have `rows` rows of `cols` elements. They may be the same.
pub unsafe fn run<T: Element>(x: &RowView<T>, y: Shared<T>, [rows, cols]: [usize; 2]) {
    // SAFETY: the op's x and y have these rows.
    unsafe { two_pass::run(LogSoftmax { x, y, cols }, rows, cols) }
}

#[derive(Clone, Copy)]
struct LogSoftmax<'a, T> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    cols: usize,
}

impl<T: Element> two_pass::TwoPassRow for LogSoftmax<'_, T> {
    type Stat = MaxSum;

    fn cost(cols: usize) -> usize {
        cols * parallel::EXP
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> MaxSum {
        // SAFETY: x has this row of `cols` elements, and these columns lie in it.
        unsafe { MaxSum::measure(s, ScoreRow::new(Plain, self.x, row, self.cols), cols) }
    }

    fn join(&self, a: MaxSum, b: MaxSum) -> MaxSum {
        a.join(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: MaxSum) {
        // SAFETY: x and y have this row of `cols` elements, and no other thread is given these columns.
        unsafe {
            let x = self.x.row(row).add(cols.start);
            let y = self.y.get().add(row * self.cols + cols.start);
            let subtract = Subtract {
                max: stat.max,
                log_sum: s.to_array(math::log(s, s.splat(stat.sum)))[0],
            };
            map_run(s, subtract, [x], [y], cols.len());
        }
    }
}

/// (x − max) − log_sum
#[derive(Clone, Copy)]
struct Subtract {
    max: f32,
    log_sum: f32,
}

impl Map<1, 1> for Subtract {
    const COST: usize = 1;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, [x]: [S::F; 1]) -> [S::F; 1] {
        [s.sub(s.sub(x, s.splat(self.max)), s.splat(self.log_sum))]
    }
}
