//! The forward of many queries, tile by tile.
//!
//! A unit of work is a chunk of the queries that share a head of keys. It goes through the keys block by block:
//!
//! ```text
//!              keys: a block of 192, packed
//!            ┌──────┬──────┬──────┐
//! queries    │ S = Q·Kᵀ, then e^(S − max)       the chunk's scores stay in the cache
//! of the     ├──────┼──────┼──────┤             tiles that no query of theirs sees are skipped
//! chunk      │      │      │      │
//!            └──────┴──────┴──────┘
//!            O = O · e^(old max − new max) + P·V
//! ```
//!
//! Packed blocks are kept while there is room, for the next chunks of the same keys. What is packed next is asked for from memory
//! row by row, beside the softmax, which leaves memory idle ([`ahead`]).

mod ahead;
mod softmax;

use super::call::{Call, Query};
use super::output::Output;
use super::rows::{Block, KvRows};
use super::spans::{multiply, spans, Span};
use super::{KEY_BLOCK, SCORE_ROW};
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::{cols_of_tile, pack, rows_of_tile, Tile, COLS, ROWS};
use crate::cpu::parallel;
use crate::cpu::scratch;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use ahead::Ahead;
use softmax::State;

/// The most queries of a chunk: at a dim of 128 the chunk and a block of keys take half a megabyte, half of many L2 caches.
const CHUNK: usize = 192;
/// How much of packed keys and values a thread keeps, in f32 elements: 4 MB.
const KEPT: usize = 1 << 20;

/// Queries that share a head of keys.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    pub segment: usize,
    pub kv_head: usize,
    /// Rows as [`Call::query`] counts them.
    pub first: usize,
    pub rows: usize,
}

/// All queries, in chunks of at most `most`. How they are cut depends on the shapes alone.
pub fn units<T: Element, R>(call: &Call<T, R>, most: usize) -> Vec<Unit> {
    let mut units = Vec::new();
    for (i, segment) in call.segments.iter().enumerate() {
        let rows = call.geometry.group() * segment.queries;
        let len = rows.div_ceil(rows.div_ceil(most).max(1));
        let len = len.next_multiple_of(ROWS);
        for kv_head in 0..call.geometry.kv_heads {
            for first in (0..rows).step_by(len.max(1)) {
                units.push(Unit {
                    segment: i,
                    kv_head,
                    first,
                    rows: len.min(rows - first),
                });
            }
        }
    }
    units
}

/// Computes all outputs.
pub fn run<T: Element, R: KvRows>(call: &Call<T, R>, output: Output<T>) {
    let g = &call.geometry;
    let most = match g.dim + g.value_dim {
        ..=256 => CHUNK,
        _ => CHUNK / 2,
    };
    let units = units(call, most);
    let rows = units.iter().map(|unit| unit.rows).max().unwrap_or(0);
    let rows = rows.next_multiple_of(ROWS);
    let width = g.value_dim.next_multiple_of(COLS);
    let blocks = g.keys.div_ceil(KEY_BLOCK).max(1);
    let slots = (KEPT / (KEY_BLOCK * (g.dim + width))).clamp(1, blocks);
    let cost = rows * g.keys * (g.dim + g.value_dim) / 8;
    let lens = [
        rows * g.dim,
        rows * width,
        rows * SCORE_ROW,
        slots * KEY_BLOCK * g.dim,
        slots * KEY_BLOCK * width,
    ];
    parallel::ranges(units.len(), cost, 1, |range| {
        scratch::with(lens, |[q, sums, scores, keys, values]| {
            let tiles = Tiles {
                q,
                sums,
                scores,
                keys,
                values,
                slots,
                width,
            };
            dispatch(Chunks {
                call,
                output,
                units: &units[range],
                tiles,
            })
        })
    });
}

/// The memory of a thread, with room for the longest of its units.
#[derive(Clone, Copy)]
struct Tiles {
    /// The queries, in strips.
    q: *mut f32,
    /// The sums of weighted values: a row of `width` for each query.
    sums: *mut f32,
    /// A row of `SCORE_ROW` for each query.
    scores: *mut f32,
    /// Blocks of keys, in strips, and of values, in panels: `slots` of each.
    keys: *mut f32,
    values: *mut f32,
    slots: usize,
    width: usize,
}

struct Chunks<'a, T: Element, R> {
    call: &'a Call<'a, T, R>,
    output: Output<T>,
    units: &'a [Unit],
    tiles: Tiles,
}

impl<T: Element, R: KvRows> Kernel for Chunks<'_, T, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (mut queries, mut states) = (Vec::new(), Vec::new());
        let mut kept = vec![None; self.tiles.slots];
        for (i, unit) in self.units.iter().enumerate() {
            let next = self.units.get(i + 1);
            let segment = &self.call.segments[unit.segment];
            let rows = unit.first..unit.first + unit.rows;
            queries.clear();
            queries.extend(rows.map(|r| self.call.query(segment, unit.kv_head, r)));
            states.clear();
            states.extend(queries.iter().map(|query| self.state(query)));
            self.begin(s, &queries);
            let end = queries.iter().map(|query| query.end).max().unwrap_or(0);
            for first in (0..segment.keys).step_by(KEY_BLOCK) {
                let len = KEY_BLOCK.min(segment.keys - first);
                let spans = spans::<S>(&queries, first, len);
                if spans.iter().all(|span| span.is_empty()) {
                    continue;
                }
                let block = (unit.segment, unit.kv_head, first);
                let slot = first / KEY_BLOCK % self.tiles.slots;
                if kept[slot] != Some(block) {
                    self.pack(s, block, len, slot);
                    kept[slot] = Some(block);
                }
                self.multiply_keys(s, &spans, slot, len);
                let keys = self
                    .next_keys(unit, next, first)
                    .filter(|block| kept[block.2 / KEY_BLOCK % self.tiles.slots] != Some(*block));
                let ahead = Ahead {
                    queries: next.filter(|_| first + KEY_BLOCK >= end),
                    keys,
                    rows: queries.len(),
                };
                self.softmax(s, &queries, &mut states, &spans, (first, &ahead));
                self.multiply_values(s, &spans, slot);
            }
            self.end(s, &queries, &states);
        }
    }
}

impl<T: Element, R: KvRows> Chunks<'_, T, R> {
    /// Packs the queries and clears their sums.
    #[inline(always)]
    fn begin<S: Simd>(&self, s: S, queries: &[Query]) {
        let (call, tiles) = (self.call, &self.tiles);
        let row = |i: usize| {
            let Query {
                batch, head, at, ..
            } = queries[i];
            call.q.row(batch, head, at)
        };
        let height = rows_of_tile::<S>();
        let rows = queries.len().next_multiple_of(height);
        // SAFETY: q has a row for each query; the memory has room for `rows` of each.
        unsafe {
            pack::strips_of(s, queries.len(), call.geometry.dim, height, row, tiles.q);
            for i in (0..rows * tiles.width).step_by(S::LANES) {
                s.store_f32(tiles.sums.add(i), s.splat(0.0));
            }
        }
    }

    #[inline(always)]
    fn pack<S: Simd>(&self, s: S, block: (usize, usize, usize), len: usize, slot: usize) {
        let (call, tiles) = (self.call, &self.tiles);
        let (segment, kv_head, first) = block;
        let segment = call.segments[segment];
        let g = &call.geometry;
        let block = |rows| Block {
            rows,
            batch: segment.batch,
            head: kv_head,
            first: segment.key + first,
        };
        // SAFETY: k and v have a row for each of the segment's keys; a slot has room for a block of each.
        unsafe {
            let keys = tiles.keys.add(slot * KEY_BLOCK * g.dim);
            R::pack_keys(block(&call.k), s, len, g.dim, keys);
            let values = tiles.values.add(slot * KEY_BLOCK * tiles.width);
            pack::panels_of(s, (len, KEY_BLOCK), g.value_dim, &block(&call.v), values);
        }
    }

    /// The scores of a block, without their scale.
    #[inline(always)]
    fn multiply_keys<S: Simd>(&self, s: S, spans: &[Span], slot: usize, len: usize) {
        let (dim, tiles) = (self.call.geometry.dim, &self.tiles);
        // SAFETY: the memory has a strip of queries and the rows of a tile for each panel, and a strip of keys for each tile's.
        unsafe {
            let keys = tiles.keys.add(slot * KEY_BLOCK * dim);
            multiply::<S, T>(s, (spans, len), dim, (tiles.q, keys), tiles.scores)
        }
    }

    #[inline(always)]
    fn multiply_values<S: Simd>(&self, s: S, spans: &[Span], slot: usize) {
        let (rows, cols) = (rows_of_tile::<S>(), cols_of_tile::<S>());
        let tiles = &self.tiles;
        for (col, at) in (0..self.call.geometry.value_dim).step_by(cols).enumerate() {
            for (panel, span) in spans.iter().enumerate() {
                if span.is_empty() {
                    continue;
                }
                // SAFETY: the memory has `rows` rows of weights and sums for each panel, and a panel of a block's values
                // for each `cols` of their columns; the weights of the span have been written.
                unsafe {
                    let values = tiles.values.add(slot * KEY_BLOCK * tiles.width);
                    Tile {
                        k: span.len(),
                        a: tiles.scores.add(panel * rows * SCORE_ROW + span.start),
                        a_step: 1,
                        b: values.add((col * KEY_BLOCK + span.start) * cols),
                        c: tiles.sums.add(panel * rows * tiles.width + at),
                        c_row: tiles.width,
                        add: true,
                    }
                    .of_rows::<SCORE_ROW, S>(s)
                }
            }
        }
    }

    #[inline(always)]
    fn end<S: Simd>(&self, s: S, queries: &[Query], states: &[State]) {
        let tiles = &self.tiles;
        for (r, (query, state)) in queries.iter().zip(states).enumerate() {
            // SAFETY: the sums of the row have been written, and no other unit has this query.
            unsafe {
                let sums = tiles.sums.add(r * tiles.width);
                self.output
                    .write(s, self.call, query, sums, state.max, state.sum)
            }
        }
    }
}
