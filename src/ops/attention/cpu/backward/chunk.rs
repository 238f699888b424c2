//! The gradients of q, k and v of a part of the queries that share a head of keys.

use super::tiles::Tiles;
use super::{Backward, Target, CHUNK};
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::{cols_of_tile, rows_of_tile, Tile, COLS};
use crate::cpu::parallel;
use crate::cpu::simd::{self, Kernel, Simd};
use crate::ops::attention::cpu::call::Query;
use crate::ops::attention::cpu::rows::Rows;
use crate::ops::attention::cpu::spans::{spans, Span};
use crate::ops::attention::cpu::{KEY_BLOCK, SCORE_ROW};
use crate::ops::attention::geometry::Geometry;
use std::ops::Range;

/// Queries that share a head of keys.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub segment: usize,
    pub kv_head: usize,
    /// Rows as [`Call::query`](crate::ops::attention::cpu::call::Call::query) counts them.
    pub first: usize,
    pub rows: usize,
    /// How many parts the head's queries are cut into.
    pub count: usize,
}

/// Computes a part.
pub struct Gradients<'a, T: Element> {
    backward: &'a Backward<'a, T>,
    part: &'a Part,
    tiles: Tiles,
    targets: [Option<Target<T>>; 3],
    /// The sums of dK and dV: a row for each key, as wide as whole tiles.
    sums: [*mut f32; 2],
}

impl<'a, T: Element> Gradients<'a, T> {
    /// # Safety
    /// `tiles` are valid for the backward's geometry. `sums` have room for rows of all keys, in whole blocks, and nothing else
    /// touches them; the targets have room for all rows, and nothing else touches those of the part's queries, and, if the
    /// part is the only one of its head, those of its keys.
    pub unsafe fn new(
        backward: &'a Backward<'a, T>,
        part: &'a Part,
        tiles: Tiles,
        targets: [Option<Target<T>>; 3],
        sums: [*mut f32; 2],
    ) -> Self {
        Gradients {
            backward,
            part,
            tiles,
            targets,
            sums,
        }
    }
}

impl<T: Element> Kernel for Gradients<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (b, part) = (self.backward, self.part);
        let segment = &b.call.segments[part.segment];
        let blocks = segment.keys.next_multiple_of(KEY_BLOCK);
        for (sums, width) in self.sums.into_iter().zip(self.widths()) {
            // SAFETY: the sums have rows for whole blocks.
            unsafe { clear(s, sums, blocks * width) };
        }
        let (mut queries, mut deltas) = (Vec::new(), Vec::new());
        let mut kept = vec![None; self.tiles.slots];
        for start in (0..part.rows).step_by(CHUNK) {
            let rows = part.first + start..part.first + part.rows.min(start + CHUNK);
            queries.clear();
            queries.extend(rows.map(|r| b.call.query(segment, part.kv_head, r)));
            deltas.clear();
            deltas.extend(queries.iter().map(|query| b.deltas[b.call.number(query)]));
            // SAFETY: the tiles have room for a chunk, and these queries exist.
            unsafe {
                self.tiles.pack_queries(s, b, &queries);
                clear(s, self.tiles.dq, self.tiles.rows * self.tiles.width);
            }
            for first in (0..segment.keys).step_by(KEY_BLOCK) {
                let len = KEY_BLOCK.min(segment.keys - first);
                let spans = spans::<S>(&queries, first, len);
                if spans.iter().all(|span| span.is_empty()) {
                    continue;
                }
                let slot = first / KEY_BLOCK % self.tiles.slots;
                // SAFETY: the tiles are valid for the geometry; the segment has these keys; all that is read has been
                // written by the steps before.
                unsafe {
                    if kept[slot] != Some(first) {
                        let head = (part.segment, part.kv_head);
                        self.tiles.pack_keys(s, &b.call, head, (first, len), slot);
                        kept[slot] = Some(first);
                    }
                    self.tiles
                        .multiply::<S, T>(s, b.geometry(), &spans, slot, len);
                    let chunk = (&queries[..], &deltas[..]);
                    let rows = self.tiles.weigh(s, b, chunk, &spans, first, false);
                    self.add_keys(s, &spans, rows, first);
                    self.add_queries(s, &spans, slot);
                }
            }
            self.write_queries(s, &queries);
        }
        if part.count == 1 {
            self.write_keys(s);
        }
    }
}

impl<T: Element> Gradients<'_, T> {
    /// The widths of the rows of dK's and dV's sums.
    #[inline(always)]
    fn widths(&self) -> [usize; 2] {
        let g = self.backward.geometry();
        [g.dim, g.value_dim].map(|dim| dim.next_multiple_of(COLS))
    }

    /// `dK += dSᵀ·Q` and `dV += Pᵀ·G` of a block.
    ///
    /// # Safety
    /// The rows of weights and slopes have been written, for whole blocks.
    #[inline(always)]
    unsafe fn add_keys<S: Simd>(&self, s: S, spans: &[Span], rows: Range<usize>, first: usize) {
        let (height, cols) = (rows_of_tile::<S>(), cols_of_tile::<S>());
        let (g, tiles) = (self.backward.geometry(), &self.tiles);
        let seen = spans.iter().filter(|span| !span.is_empty());
        let start = seen.clone().map(|span| span.start).min().unwrap_or(0);
        let end = seen.map(|span| span.end).max().unwrap_or(0);
        let [dk_width, dv_width] = self.widths();
        let products = [
            (
                1,
                g.dim,
                tiles.slopes,
                tiles.q_panels,
                self.sums[0],
                dk_width,
            ),
            (
                2,
                g.value_dim,
                tiles.weights,
                tiles.grad_panels,
                self.sums[1],
                dv_width,
            ),
        ];
        for (target, dim, scores, panels, sums, width) in products {
            if self.targets[target].is_none() {
                continue;
            }
            for (panel, col) in (0..dim).step_by(cols).enumerate() {
                for key in (start / height * height..end).step_by(height) {
                    // SAFETY: a block has whole tiles of keys, in the rows of scores and of sums; panels have `rows` rows.
                    unsafe {
                        Tile {
                            k: rows.len(),
                            a: scores.add(rows.start * SCORE_ROW + key),
                            a_step: SCORE_ROW,
                            b: panels.add((panel * tiles.rows + rows.start) * cols),
                            c: sums.add((first + key) * width + col),
                            c_row: width,
                            add: true,
                        }
                        .of_packed(s)
                    }
                }
            }
        }
    }

    /// `dQ += dS·K` of a block.
    ///
    /// # Safety
    /// The slopes of the spans have been written, and the block's keys packed.
    #[inline(always)]
    unsafe fn add_queries<S: Simd>(&self, s: S, spans: &[Span], slot: usize) {
        if self.targets[0].is_none() {
            return;
        }
        let (rows, cols) = (rows_of_tile::<S>(), cols_of_tile::<S>());
        let tiles = &self.tiles;
        let dim = self.backward.geometry().dim;
        for (i, col) in (0..dim).step_by(cols).enumerate() {
            for (panel, span) in spans.iter().enumerate() {
                if span.is_empty() {
                    continue;
                }
                // SAFETY: there are `rows` rows of slopes and of sums for each panel, and a panel of keys for each `cols`
                // columns.
                unsafe {
                    Tile {
                        k: span.len(),
                        a: tiles.slopes.add(panel * rows * SCORE_ROW + span.start),
                        a_step: 1,
                        b: tiles
                            .key_panels(slot)
                            .add((i * KEY_BLOCK + span.start) * cols),
                        c: tiles.dq.add(panel * rows * tiles.width + col),
                        c_row: tiles.width,
                        add: true,
                    }
                    .of_rows::<SCORE_ROW, S>(s)
                }
            }
        }
    }

    #[inline(always)]
    fn write_queries<S: Simd>(&self, s: S, queries: &[Query]) {
        let Some(target) = self.targets[0] else {
            return;
        };
        for (r, query) in queries.iter().enumerate() {
            // SAFETY: the target has a row for each query, which is no other part's; the sums have whole vectors.
            unsafe {
                let to = target.row(query.batch, query.head, query.at);
                let from = self.tiles.dq.add(r * self.tiles.width);
                narrow(s, from, to, self.backward.geometry().dim);
            }
        }
    }

    #[inline(always)]
    fn write_keys<S: Simd>(&self, s: S) {
        let (g, part) = (self.backward.geometry(), self.part);
        let segment = &self.backward.call.segments[part.segment];
        let dims = [g.dim, g.value_dim];
        for (i, dim) in dims.into_iter().enumerate() {
            let Some(target) = self.targets[1 + i] else {
                continue;
            };
            for key in 0..segment.keys {
                // SAFETY: the target has a row for each key, which is no other part's; the sums have whole vectors.
                unsafe {
                    let to = target.row(segment.batch, part.kv_head, segment.key + key);
                    narrow(s, self.sums[i].add(key * self.widths()[i]), to, dim);
                }
            }
        }
    }
}

/// # Safety
/// `to` is valid for writes of `n` elements, `from` for reads of as many rounded up to whole vectors.
#[inline(always)]
unsafe fn narrow<S: Simd, T: Element>(s: S, from: *const f32, to: *mut T, n: usize) {
    for i in (0..n).step_by(S::LANES) {
        // SAFETY: by the contract.
        unsafe { T::store_upto(s, to.add(i), n - i, s.load_f32(from.add(i))) };
    }
}

/// # Safety
/// `p` is valid for writes of `n` elements, a multiple of the lanes.
#[inline(always)]
unsafe fn clear<S: Simd>(s: S, p: *mut f32, n: usize) {
    for i in (0..n).step_by(S::LANES) {
        // SAFETY: by the contract.
        unsafe { s.store_f32(p.add(i), s.splat(0.0)) };
    }
}

/// Δ of the queries of a range of numbers.
pub struct Deltas<'a, T: Clone, Y: Clone> {
    pub geometry: &'a Geometry,
    pub y: &'a Rows<'a, Y>,
    pub grad: &'a Rows<'a, T>,
    pub range: Range<usize>,
    /// As many as the range has.
    pub out: &'a mut [f32],
}

impl<T: Element, Y: Element> Kernel for Deltas<'_, T, Y> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let g = self.geometry;
        let n = g.value_dim;
        for (number, out) in self.range.zip(self.out) {
            let (row, at) = (number / g.queries, number % g.queries);
            let (batch, head) = (row / g.heads, row % g.heads);
            let (y, grad) = (self.y.row(batch, head, at), self.grad.row(batch, head, at));
            let mut sum = s.splat(0.0);
            for i in (0..n).step_by(S::LANES) {
                // SAFETY: both have a row of n elements for each query.
                unsafe {
                    let y = Y::load_upto(s, y.add(i), n - i);
                    sum = s.fma(y, T::load_upto(s, grad.add(i), n - i), sum);
                }
            }
            *out = s.reduce_add(sum);
        }
    }
}

/// The sums of parts, which are added in their order.
pub struct Sums<'a, T: Element> {
    backward: &'a Backward<'a, T>,
    parts: &'a [Part],
    sums: Vec<f32>,
    lens: [usize; 2],
}

impl<'a, T: Element> Sums<'a, T> {
    /// A part has `lens` elements of dK and then of dV.
    pub fn new(
        backward: &'a Backward<'a, T>,
        parts: &'a [Part],
        sums: Vec<f32>,
        lens: [usize; 2],
    ) -> Self {
        assert!(sums.len() >= parts.len() * (lens[0] + lens[1]));
        Sums {
            backward,
            parts,
            sums,
            lens,
        }
    }

    /// Writes dK and dV.
    pub fn write(&self, targets: [Option<Target<T>>; 2]) {
        let g = self.backward.geometry();
        let count = self.parts.first().map_or(1, |part| part.count);
        let heads = self.parts.len() / count;
        let cost = count * (g.dim + g.value_dim) / 4;
        parallel::ranges(heads * g.keys, cost, 16, |range| {
            for row in range {
                let (head, key) = (row / g.keys, row % g.keys);
                let part = &self.parts[head * count];
                if key < self.backward.call.segments[part.segment].keys {
                    simd::dispatch(AddParts {
                        sums: self,
                        head,
                        key,
                        targets,
                    })
                }
            }
        })
    }
}

struct AddParts<'a, T: Element> {
    sums: &'a Sums<'a, T>,
    head: usize,
    key: usize,
    targets: [Option<Target<T>>; 2],
}

impl<T: Element> Kernel for AddParts<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (backward, parts) = (self.sums.backward, &self.sums.parts);
        let (sums, lens) = (&self.sums.sums, &self.sums.lens);
        let g = backward.geometry();
        let count = parts.first().map_or(1, |part| part.count);
        let part = &parts[self.head * count];
        let segment = &backward.call.segments[part.segment];
        for (i, dim) in [g.dim, g.value_dim].into_iter().enumerate() {
            let Some(target) = self.targets[i] else {
                continue;
            };
            let width = dim.next_multiple_of(COLS);
            let each = lens[0] + lens[1];
            let at = self.head * count * each + i * lens[0] + self.key * width;
            for col in (0..dim).step_by(S::LANES) {
                let mut sum = s.splat(0.0);
                for part in 0..count {
                    let from = &sums[at + part * each + col..][..S::LANES];
                    // SAFETY: the slice has a whole vector.
                    sum = s.add(sum, unsafe { s.load_f32(from.as_ptr()) });
                }
                // SAFETY: the target has a row for each key, and each row is written once.
                unsafe {
                    let to = target.row(segment.batch, part.kv_head, segment.key + self.key);
                    T::store_upto(s, to.add(col), dim - col, sum);
                }
            }
        }
    }
}
