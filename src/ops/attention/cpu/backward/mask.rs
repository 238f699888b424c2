//! The gradient of an additive mask: that of the scores, summed over the dims in which the mask is repeated.
//!
//! A unit of work has all scores that a row of the mask is added to, or that a chunk of its rows is, and goes through them in
//! order.

use super::tiles::{self, Tiles};
use super::{Backward, CHUNK};
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::ROWS;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::{self, Kernel, Simd};
use crate::ops::attention::cpu::spans::spans;
use crate::ops::attention::cpu::{KEY_BLOCK, SCORE_ROW};
use candle_core::Shape;
use std::ops::Range;

/// The gradient of a mask of this shape, which broadcasts to the scores'.
pub fn gradient<T: Element>(b: &Backward<T>, shape: &Shape) -> Vec<T> {
    let g = b.geometry();
    let mut dims = [1; 4];
    for (to, &dim) in dims.iter_mut().rev().zip(shape.dims().iter().rev()) {
        *to = dim;
    }
    let [batches, heads, queries, keys] = dims;
    let mut sums = vec![0f32; shape.elem_count()];
    let rows = g.queries.min(CHUNK).next_multiple_of(ROWS);
    let chunks = queries.div_ceil(CHUNK);
    let target = Shared::new(sums.as_mut_ptr());
    let repeats = g.batch * g.heads / (batches * heads).max(1);
    let cost = repeats * rows * g.keys * (g.dim + g.value_dim) / 8;
    parallel::ranges(batches * heads * chunks, cost, 1, |range| {
        scratch::with(tiles::lens(g, rows), |memory| {
            for unit in range.clone() {
                let (row, chunk) = (unit / chunks, unit % chunks);
                let (batch, head) = (row / heads, row % heads);
                let all = |n: usize, at: usize, of: usize| if n == 1 { 0..of } else { at..at + 1 };
                // SAFETY: the rows of this unit are no other's; there is memory for `rows` queries.
                simd::dispatch(Rows {
                    backward: b,
                    tiles: Tiles::new(g, rows, memory),
                    batches: all(batches, batch, g.batch),
                    heads: all(heads, head, g.heads),
                    queries: match queries {
                        1 => 0..g.queries,
                        _ => chunk * CHUNK..g.queries.min((chunk + 1) * CHUNK),
                    },
                    sums: target.get().wrapping_add(row * queries * keys),
                    strides: [queries, keys].map(|n| n > 1),
                    keys,
                });
            }
        })
    });
    sums.into_iter().map(T::narrow).collect()
}

struct Rows<'a, T: Element> {
    backward: &'a Backward<'a, T>,
    tiles: Tiles,
    batches: Range<usize>,
    heads: Range<usize>,
    queries: Range<usize>,
    /// The mask's rows of this batch row and head.
    sums: *mut f32,
    /// Whether the mask has a row for each query, and an element for each key.
    strides: [bool; 2],
    keys: usize,
}

impl<T: Element> Kernel for Rows<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for batch in self.batches.clone() {
            for head in self.heads.clone() {
                for first in self.queries.clone().step_by(CHUNK) {
                    let chunk = first..self.queries.end.min(first + CHUNK);
                    self.add(s, batch, head, chunk);
                }
            }
        }
    }
}

impl<T: Element> Rows<'_, T> {
    #[inline(always)]
    fn add<S: Simd>(&self, s: S, batch: usize, head: usize, chunk: Range<usize>) {
        let (b, tiles) = (self.backward, &self.tiles);
        let g = b.geometry();
        // A mask has no packed sequences beside it: a segment is a batch row.
        let segment = &b.call.segments[batch];
        let (kv_head, in_group) = (head / g.group(), head % g.group());
        let (mut queries, mut deltas) = (Vec::new(), Vec::new());
        for i in chunk.clone() {
            let query = b
                .call
                .query(segment, kv_head, in_group * segment.queries + i);
            deltas.push(b.deltas[b.call.number(&query)]);
            queries.push(query);
        }
        // SAFETY: the tiles have room for a chunk, and these queries exist.
        unsafe { tiles.pack_queries(s, b, &queries) };
        for first in (0..segment.keys).step_by(KEY_BLOCK) {
            let len = KEY_BLOCK.min(segment.keys - first);
            let spans = spans::<S>(&queries, first, len);
            if spans.iter().all(|span| span.is_empty()) {
                continue;
            }
            // SAFETY: the segment has these keys; all that is read has been written by the steps before. The mask has a
            // row for each query, or one, of an element for each key, or of one, and no other thread adds to these.
            unsafe {
                tiles.pack_keys(s, &b.call, (batch, kv_head), (first, len), 0);
                tiles.multiply::<S, T>(s, g, &spans, 0, len);
                let rows = tiles.weigh(s, b, (&queries, &deltas), &spans, first, true);
                for (r, query) in queries.iter().enumerate().take(rows.end).skip(rows.start) {
                    let slopes = tiles.slopes.add(r * SCORE_ROW);
                    let at = if self.strides[0] { query.at } else { 0 };
                    let row = self.sums.add(at * self.keys);
                    for i in 0..len {
                        let to = if self.strides[1] { first + i } else { 0 };
                        *row.add(to) += *slopes.add(i);
                    }
                }
            }
        }
    }
}
