//! The softmax of a chunk's scores, block by block: weights by the largest score so far, and sums that are corrected for larger ones.

use super::{Ahead, Chunks};
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::rows_of_tile;
use crate::cpu::simd::Simd;
use crate::ops::attention::cpu::call::{Call, Query};
use crate::ops::attention::cpu::rows::KvRows;
use crate::ops::attention::cpu::scores::{self, Factors, NoSlopes};
use crate::ops::attention::cpu::spans::{seen, zero, Span};
use crate::ops::attention::cpu::{KEY_BLOCK, SCORE_ROW};
use std::ops::Range;

/// Where the softmax of a row stands.
#[derive(Clone, Copy)]
pub(super) struct State {
    pub max: f32,
    pub sum: f32,
}

impl<T: Element, R: KvRows> Chunks<'_, T, R> {
    /// Before any key: a sink takes part in the denominator.
    #[inline(always)]
    pub(super) fn state(&self, query: &Query) -> State {
        let sink = self.call.sinks.as_ref().map(|sinks| sinks[query.head]);
        State {
            max: sink.unwrap_or(f32::NEG_INFINITY),
            // e^(sink − max), which is NaN for a sink of +∞, as composed.
            sum: match sink {
                None | Some(f32::NEG_INFINITY) => 0.0,
                Some(sink) if sink.is_finite() => 1.0,
                Some(_) => f32::NAN,
            },
        }
    }

    /// Makes weights of the scores, as far as their maxima are known, and corrects the sums for larger ones.
    #[inline(always)]
    pub(super) fn softmax<S: Simd>(
        &self,
        s: S,
        queries: &[Query],
        states: &mut [State],
        spans: &[Span],
        (first, ahead): (usize, &Ahead),
    ) {
        let (rows, tiles) = (rows_of_tile::<S>(), &self.tiles);
        for (panel, span) in spans.iter().enumerate() {
            if span.is_empty() {
                continue;
            }
            for r in panel * rows..(panel + 1) * rows {
                // SAFETY: the memory has a row for each query, and rows of padding up to the end of the last panel.
                let (scores, sums) = unsafe {
                    (
                        tiles.scores.add(r * SCORE_ROW),
                        tiles.sums.add(r * tiles.width),
                    )
                };
                let (Some(query), Some(state)) = (queries.get(r), states.get_mut(r)) else {
                    // SAFETY: the row has `SCORE_ROW` elements, and the span is inside of a block.
                    unsafe { zero(scores, span.clone()) };
                    continue;
                };
                self.ask_for(ahead, r);
                let Range { start, end } = seen(query, first, span);
                // SAFETY: as above; the keys start..end are visible, and so they exist.
                unsafe {
                    zero(scores, span.start..start);
                    zero(scores, end..span.end);
                    if start < end {
                        let t = scores.add(start);
                        let keys = (first + start, end - start);
                        let scaled = weigh(s, self.call, query, state, t, keys);
                        rescale(s, sums, tiles.width, scaled);
                    }
                }
            }
        }
    }
}

/// Turns products of a query and the keys `(first, count)` into weights e^(score − max), in place. Returns the factor by which
/// the weights and sums of earlier keys have to be multiplied, because the maximum may have grown.
///
/// # Safety
/// `t` is valid for reads and writes of `count` elements, and the query sees these keys.
#[inline(always)]
unsafe fn weigh<S: Simd, T: Element, R>(
    s: S,
    call: &Call<T, R>,
    query: &Query,
    state: &mut State,
    t: *mut f32,
    (first, count): (usize, usize),
) -> f32 {
    // SAFETY: the contract is the same.
    let largest = unsafe { scores::finish(s, call, query, first, t, count, NoSlopes) };
    let old = state.max;
    // A NaN stays.
    let max = if largest > old { largest } else { old };
    // Without a finite score yet, weights are e^−∞ = 0 and not e^(−∞ + ∞).
    let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
    // Before the first finite score, sums are 0 or NaN, which no factor changes.
    let factor = match max == old || old == f32::NEG_INFINITY {
        true => 1.0,
        false => (old - base).exp(),
    };
    // SAFETY: the contract is the same.
    let sum = unsafe { scores::exponentials(s, t, count, base) };
    state.max = max;
    state.sum = state.sum * factor + sum;
    if let Some(mask) = call.dropout {
        let mut factors = [0f32; KEY_BLOCK];
        // Factors come in fours.
        let skipped = first % 4;
        let start = scores::dropout_start(call, query) + first - skipped;
        s.call(Factors {
            mask,
            start,
            out: &mut factors,
        });
        // SAFETY: a block has KEY_BLOCK keys, a multiple of four, so that `skipped` of them stand before these.
        unsafe { scores::multiply(s, t, factors.as_ptr().add(skipped), count) };
    }
    factor
}

/// # Safety
/// `sums` is valid for reads and writes of `width` elements, a multiple of the lanes.
#[inline(always)]
unsafe fn rescale<S: Simd>(s: S, sums: *mut f32, width: usize, factor: f32) {
    if factor == 1.0 {
        return;
    }
    let factor = s.splat(factor);
    for i in (0..width).step_by(S::LANES) {
        // SAFETY: by the contract.
        unsafe {
            let sum = s.load_f32(sums.add(i));
            s.store_f32(sums.add(i), s.mul(sum, factor));
        }
    }
}
