//! What a row's softmax has to know of the row: its largest score and the sum of the exponentials.

use super::scores::{Score, ScoreRow};
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::simd::Simd;
use std::ops::Range;

/// The largest of some scores, and Σ exp(score − max) over them. NaNs are passed over by the maximum and found by the sum.
#[derive(Clone, Copy)]
pub struct MaxSum {
    pub max: f32,
    pub sum: f32,
}

/// What to subtract from the scores: the maximum, or 0 where that is −∞ and would make NaNs of −∞ − −∞.
#[inline(always)]
pub fn finite_max(max: f32) -> f32 {
    if max == f32::NEG_INFINITY {
        0.0
    } else {
        max
    }
}

impl MaxSum {
    /// # Safety
    /// The row has scores as [`ScoreRow::load`] asks for.
    #[inline(always)]
    pub unsafe fn measure<S: Simd, T: Element, P: Score<T>>(
        s: S,
        scores: ScoreRow<T, P>,
        cols: Range<usize>,
    ) -> Self {
        // SAFETY: only scores below `end` ≤ `scores.len` are loaded: `full` lies whole vectors behind `cols.start` and at most
        // at `end`, and if `end` lies before `cols.start`, both loops are empty.
        unsafe {
            let end = cols.end.min(scores.len);
            let full = cols.start + end.saturating_sub(cols.start) / S::LANES * S::LANES;
            let mut max = [s.splat(f32::NEG_INFINITY); 2];
            let mut i = cols.start;
            while i < full {
                max = [max[1], s.max(scores.load(s, i), max[0])];
                i += S::LANES;
            }
            let mut tail = s.splat(f32::NEG_INFINITY);
            if full < end {
                tail = scores.load_tail(s, full, end);
                max[0] = s.max(tail, max[0]);
            }
            let max = s.reduce_max(s.max(max[0], max[1]));
            let subtract = s.splat(finite_max(max));
            let mut sum = [s.splat(0.0); 2];
            if full < end {
                sum[0] = math::exp_nonpositive(s, s.sub(tail, subtract));
            }
            i = cols.start;
            while i < full {
                let v = math::exp_nonpositive(s, s.sub(scores.load(s, i), subtract));
                sum = [sum[1], s.add(sum[0], v)];
                i += S::LANES;
            }
            let sum = s.reduce_add(s.add(sum[0], sum[1]));
            MaxSum { max, sum }
        }
    }

    pub fn join(self, other: Self) -> Self {
        let max = self.max.max(other.max);
        let about_max = |part: Self| {
            if part.max == max {
                part.sum
            } else {
                part.sum * (part.max - max).exp()
            }
        };
        MaxSum {
            max,
            sum: about_max(self) + about_max(other),
        }
    }
}
