//! Softmax over rows: find the maximum, compute the exponentials and their sum, normalise.
//!
//! The exponentials of a whole row stay in f32 between the last two steps, in the output itself if that is f32. Rows that
//! are cut into blocks compute them twice instead.

use super::max_sum::{finite_max, MaxSum};
use super::scores::{Score, ScoreRow};
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, RowPart, TwoPassRow};
use std::ops::Range;

/// # Safety
/// `x` and `y` have `rows` rows of `cols` elements, and so has the score's mask. `x` and `y` may be the same.
pub unsafe fn run<T: Element, P: Score<T>>(
    x: &RowView<T>,
    y: Shared<T>,
    score: P,
    [rows, cols]: [usize; 2],
) {
    // SAFETY: the op's x and y have these rows, and so has the score's mask.
    unsafe { two_pass::run(SoftmaxRows { x, y, cols, score }, rows, cols) }
}

#[derive(Clone, Copy)]
struct SoftmaxRows<'a, T, P> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    cols: usize,
    score: P,
}

impl<T: Element, P: Score<T>> SoftmaxRows<'_, T, P> {
    const IS_F32: bool = size_of::<T>() == size_of::<f32>();

    #[inline(always)]
    fn scores(&self, row: usize) -> ScoreRow<T, P> {
        ScoreRow::new(self.score, self.x, row, self.cols)
    }

    /// What to subtract from the scores.
    #[inline(always)]
    fn subtrahend(max: f32) -> f32 {
        if P::MASKED {
            finite_max(max)
        } else {
            max
        }
    }

    /// 1 / sum, or 0 for a masked row without scores.
    #[inline(always)]
    fn inverse(sum: f32) -> f32 {
        if P::MASKED && sum == 0.0 {
            0.0
        } else {
            1.0 / sum
        }
    }
}

impl<T: Element, P: Score<T>> TwoPassRow for SoftmaxRows<'_, T, P> {
    type Stat = MaxSum;
    const OWN_LOOP: bool = true;
    const NEEDS_SCRATCH: bool = !Self::IS_F32;

    fn cost(cols: usize) -> usize {
        cols * parallel::EXP
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> MaxSum {
        // SAFETY: x has this row of `cols` elements, and these columns lie in it.
        unsafe { MaxSum::measure(s, self.scores(row), cols) }
    }

    fn join(&self, a: MaxSum, b: MaxSum) -> MaxSum {
        a.join(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: MaxSum) {
        // SAFETY: x and y have this row of `cols` elements. All columns from `cols.start` to `end` have a score: `end` is at
        // most `scores.len`, or else `cols.start`. No other thread is given any of the columns.
        unsafe {
            let (scores, y) = (self.scores(row), self.y.get().add(row * self.cols));
            let end = cols.end.min(scores.len).max(cols.start);
            let full = cols.start + (end - cols.start) / S::LANES * S::LANES;
            let subtract = s.splat(Self::subtrahend(stat.max));
            let inverse = s.splat(Self::inverse(stat.sum));
            let mut i = cols.start;
            while i < full {
                let e = math::exp_nonpositive(s, s.sub(scores.load(s, i), subtract));
                T::store(s, y.add(i), s.mul(e, inverse));
                i += S::LANES;
            }
            if full < end {
                let e = math::exp_nonpositive(s, s.sub(scores.load_tail(s, full, end), subtract));
                T::store_partial(s, y.add(full), end - full, s.mul(e, inverse));
            }
            y.add(end).write_bytes(0, cols.end - end);
        }
    }

    #[inline(always)]
    unsafe fn process_row<S: Simd>(&self, s: S, part: RowPart<MaxSum>) {
        let (row, scratch) = (part.row, part.scratch);
        if let Some(stat) = part.stat {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.apply(s, row, part.cols, stat) };
        }
        // All columns of the row, by the name that `scores.len` comes from: the compiler sees that there is nothing to clear
        // behind the scores of a row without a mask. A call of memset for it took 14 of a row's 75 ns, with 128 columns.
        let cols = self.cols;
        // SAFETY: x and y have this row of `cols` elements, of which the first `scores.len` have a score, and `full` is at most
        // that. `e` has room for `cols` f32 and a vector more if it is the scratch, for `cols` if it is y, and only whole
        // vectors of the first `full` elements are stored to it. If y is x, an element is read before it is written.
        unsafe {
            let (scores, y) = (self.scores(row), self.y.get().add(row * cols));
            let e = if Self::IS_F32 { y.cast() } else { scratch };
            let full = scores.len / S::LANES * S::LANES;
            let has_tail = full < scores.len;

            // Find the maximum. Scores that are computed are stored, for the second pass.
            let lowest = s.splat(f32::NEG_INFINITY);
            let mut tail = lowest;
            if has_tail {
                tail = scores.load_tail(s, full, scores.len);
            }
            // `max` returns its second operand if either is NaN. The maximum so far is second, so that a NaN is passed over
            // here; the sum will find it.
            let mut max = [s.max(tail, lowest), lowest, lowest, lowest];
            let mut i = 0;
            while i < full {
                let v = scores.load(s, i);
                if P::MASKED {
                    s.store_f32(e.add(i), v);
                }
                max = [max[1], max[2], max[3], s.max(v, max[0])];
                i += S::LANES;
            }
            let max = s.reduce_max(s.max(s.max(max[0], max[1]), s.max(max[2], max[3])));

            // Compute the exponentials and their sum.
            let subtract = s.splat(Self::subtrahend(max));
            tail = math::exp_nonpositive(s, s.sub(tail, subtract));
            let mut sum = [s.splat(0.0); 2];
            i = 0;
            while i < full {
                let v = match P::MASKED {
                    true => s.load_f32(e.add(i)),
                    false => scores.load(s, i),
                };
                let v = math::exp_nonpositive(s, s.sub(v, subtract));
                s.store_f32(e.add(i), v);
                sum = [sum[1], s.add(sum[0], v)];
                i += S::LANES;
            }
            if has_tail {
                sum[0] = s.add(sum[0], tail);
            }
            let sum = s.reduce_add(s.add(sum[0], sum[1]));

            // Normalise.
            let inverse = s.splat(Self::inverse(sum));
            i = 0;
            while i < full {
                T::store(s, y.add(i), s.mul(s.load_f32(e.add(i)), inverse));
                i += S::LANES;
            }
            if has_tail {
                let left = scores.len - full;
                T::store_partial(s, y.add(full), left, s.mul(tail, inverse));
            }
            y.add(scores.len).write_bytes(0, cols - scores.len);
        }
    }
}
