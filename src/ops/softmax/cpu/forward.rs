//! Softmax over rows. A row is read to find its maximum, read again for the exponentials, which stay in
//! f32, and written once they can be scaled.

use super::scores::{Plain, Score};
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_op::{self, RowOp};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use std::ops::Range;

/// # Safety
/// `x` and `y` have `rows` rows of `cols` elements, and so has the score's mask. They may be the same.
pub unsafe fn run<T: Element, P: Score<T>>(
    x: &RowView<T>,
    y: Shared<T>,
    score: P,
    [rows, cols]: [usize; 2],
) {
    let op = Forward::<T, P, false> { x, y, cols, score };
    row_op::run(op, rows, cols)
}

/// # Safety
/// `x` and `y` have `rows` rows of `cols` elements. They may be the same.
pub unsafe fn run_plain<T: Element>(
    x: &RowView<T>,
    y: Shared<T>,
    log: bool,
    [rows, cols]: [usize; 2],
) {
    if log {
        let score = Plain;
        row_op::run(Forward::<T, Plain, true> { x, y, cols, score }, rows, cols)
    } else {
        run(x, y, Plain, [rows, cols])
    }
}

#[derive(Clone, Copy)]
struct Forward<'a, T, P, const LOG: bool> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    cols: usize,
    score: P,
}

/// The largest score, and the sum of the exponentials after it was subtracted.
#[derive(Clone, Copy)]
pub struct Stat {
    max: f32,
    sum: f32,
}

/// What to subtract from the scores: the maximum, or 0 where that is −∞ and would make NaNs.
#[inline(always)]
fn base(max: f32) -> f32 {
    if max == f32::NEG_INFINITY {
        0.0
    } else {
        max
    }
}

impl<T: Element, P: Score<T>, const LOG: bool> RowOp for Forward<'_, T, P, LOG> {
    type Stat = Stat;
    const COST: usize = parallel::EXP;
    const SCRATCH: bool = !LOG && !in_f32::<T>();

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> Stat {
        let x = self.x.row(row);
        let bias = self.score.bias(x, row);
        let end = cols.end.min(self.score.len(row, self.cols));
        let full = cols.start + end.saturating_sub(cols.start) / S::LANES * S::LANES;
        let mut max = [s.splat(f32::NEG_INFINITY); 2];
        let mut i = cols.start;
        while i < full {
            let v = self.score.load(s, x.add(i), bias.add(i));
            max = [max[1], s.max(v, max[0])];
            i += S::LANES;
        }
        let mut tail = s.splat(f32::NEG_INFINITY);
        if full < end {
            tail = self
                .score
                .load_partial(s, x.add(full), bias.add(full), end - full);
            max[0] = s.max(tail, max[0]);
        }
        let max = s.reduce_max(s.max(max[0], max[1]));
        let from = s.splat(base(max));
        let mut sum = [s.splat(0.0); 2];
        if full < end {
            sum[0] = math::exp_nonpositive(s, s.sub(tail, from));
        }
        i = cols.start;
        while i < full {
            let v = self.score.load(s, x.add(i), bias.add(i));
            let v = math::exp_nonpositive(s, s.sub(v, from));
            sum = [sum[1], s.add(sum[0], v)];
            i += S::LANES;
        }
        let sum = s.reduce_add(s.add(sum[0], sum[1]));
        Stat { max, sum }
    }

    #[inline(always)]
    fn join(a: Stat, b: Stat) -> Stat {
        let max = a.max.max(b.max);
        let part = |s: Stat| {
            if s.max == max {
                s.sum
            } else {
                s.sum * (s.max - max).exp()
            }
        };
        Stat {
            max,
            sum: part(a) + part(b),
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: Stat) {
        let x = self.x.row(row);
        let bias = self.score.bias(x, row);
        let y = self.y.get().add(row * self.cols);
        let end = cols.end.min(self.score.len(row, self.cols)).max(cols.start);
        let full = cols.start + (end - cols.start) / S::LANES * S::LANES;
        let last = Last::<S, LOG>::new::<T, P>(s, stat);
        let mut i = cols.start;
        while i < full {
            let v = self.score.load(s, x.add(i), bias.add(i));
            T::store(s, y.add(i), last.of(s, v));
            i += S::LANES;
        }
        if full < end {
            let v = self
                .score
                .load_partial(s, x.add(full), bias.add(full), end - full);
            T::store_partial(s, y.add(full), end - full, last.of(s, v));
        }
        y.add(end).write_bytes(0, cols.end - end);
    }

    #[inline(always)]
    unsafe fn whole<S: Simd>(&self, s: S, row: usize, cols: usize, scratch: *mut f32) {
        if LOG {
            let stat = self.measure(s, row, 0..cols);
            return self.apply(s, row, 0..cols, stat);
        }
        let x = self.x.row(row);
        let bias = self.score.bias(x, row);
        let y = self.y.get().add(row * cols);
        // In f32 the output itself holds what is between the passes.
        let e = if in_f32::<T>() { y.cast() } else { scratch };
        let n = self.score.len(row, cols);
        let full = n / S::LANES * S::LANES;
        let mut tail = s.splat(f32::NEG_INFINITY);
        if full < n {
            tail = self
                .score
                .load_partial(s, x.add(full), bias.add(full), n - full);
        }
        let lowest = s.splat(f32::NEG_INFINITY);
        // The largest so far stands second: there a NaN can't get.
        let mut max = [s.max(tail, lowest), lowest, lowest, lowest];
        let mut i = 0;
        while i < full {
            let v = self.score.load(s, x.add(i), bias.add(i));
            if P::MASKED {
                s.store_f32(e.add(i), v);
            }
            max = [max[1], max[2], max[3], s.max(v, max[0])];
            i += S::LANES;
        }
        let max = s.reduce_max(s.max(s.max(max[0], max[1]), s.max(max[2], max[3])));
        let from = s.splat(if P::MASKED { base(max) } else { max });
        tail = math::exp_nonpositive(s, s.sub(tail, from));
        let mut sum = [s.splat(0.0); 2];
        i = 0;
        while i < full {
            let v = if P::MASKED {
                s.load_f32(e.add(i))
            } else {
                T::load(s, x.add(i))
            };
            let v = math::exp_nonpositive(s, s.sub(v, from));
            s.store_f32(e.add(i), v);
            sum = [sum[1], s.add(sum[0], v)];
            i += S::LANES;
        }
        if full < n {
            sum[0] = s.add(sum[0], tail);
        }
        let inverse = s.splat(inverse::<T, P>(s.reduce_add(s.add(sum[0], sum[1]))));
        i = 0;
        while i < full {
            T::store(s, y.add(i), s.mul(s.load_f32(e.add(i)), inverse));
            i += S::LANES;
        }
        if full < n {
            T::store_partial(s, y.add(full), n - full, s.mul(tail, inverse));
        }
        y.add(n).write_bytes(0, cols - n);
    }
}

const fn in_f32<T>() -> bool {
    size_of::<T>() == size_of::<f32>()
}

/// 1 / sum, or 0 where a masked row has no scores.
#[inline(always)]
fn inverse<T: Element, P: Score<T>>(sum: f32) -> f32 {
    if P::MASKED && sum == 0.0 {
        0.0
    } else {
        1.0 / sum
    }
}

/// The step from a score to the result, for a row that has been measured.
struct Last<S: Simd, const LOG: bool> {
    from: S::F,
    factor: S::F,
}

impl<S: Simd, const LOG: bool> Last<S, LOG> {
    #[inline(always)]
    fn new<T: Element, P: Score<T>>(s: S, stat: Stat) -> Self {
        let from = if P::MASKED { base(stat.max) } else { stat.max };
        let factor = if LOG {
            math::log(s, s.splat(stat.sum))
        } else {
            s.splat(inverse::<T, P>(stat.sum))
        };
        Last {
            from: s.splat(from),
            factor,
        }
    }
    #[inline(always)]
    fn of(&self, s: S, score: S::F) -> S::F {
        let v = s.sub(score, self.from);
        if LOG {
            s.sub(v, self.factor)
        } else {
            s.mul(math::exp_nonpositive(s, v), self.factor)
        }
    }
}
