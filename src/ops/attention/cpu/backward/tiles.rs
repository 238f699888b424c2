//! The scores of a chunk of queries and a block of keys, computed again, and their gradients.

use super::Backward;
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::matmul::micro::{cols_of_tile, pack, rows_of_tile, COLS};
use crate::cpu::simd::Simd;
use crate::ops::attention::cpu::call::{Call, Query};
use crate::ops::attention::cpu::scores::{self, Factors, KeptSlopes};
use crate::ops::attention::cpu::spans::{self, seen, zero, Span};
use crate::ops::attention::cpu::{KEY_BLOCK, SCORE_ROW};
use crate::ops::attention::geometry::Geometry;
use std::ops::Range;

/// How much of packed keys and values a thread keeps, in f32 elements: 2 MB.
const KEPT: usize = 1 << 19;

/// The memory of a thread.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Queries and gradients of a chunk, in strips and in panels.
    pub q: *mut f32,
    pub q_panels: *mut f32,
    pub grad: *mut f32,
    pub grad_panels: *mut f32,
    /// The sums of dQ.
    pub dq: *mut f32,
    /// Rows of `SCORE_ROW`: products and then weights; products of gradients and values and then the scores' gradients.
    pub weights: *mut f32,
    pub slopes: *mut f32,
    /// Blocks of keys in strips and in panels, of values in strips: `slots` of each.
    keys: *mut f32,
    key_panels: *mut f32,
    values: *mut f32,
    pub slots: usize,
    /// The rows that a chunk has room for.
    pub rows: usize,
    /// The width of a row of dQ.
    pub width: usize,
}

/// How much memory each part of [`Tiles`] takes, for chunks of `rows` queries.
pub fn lens(g: &Geometry, rows: usize) -> [usize; 10] {
    let (dim, value_dim) = padded(g);
    let block = slots(g) * KEY_BLOCK;
    [
        rows * g.dim,
        rows * dim,
        rows * g.value_dim,
        rows * value_dim,
        rows * dim,
        rows * SCORE_ROW,
        rows * SCORE_ROW,
        block * g.dim,
        block * dim,
        block * g.value_dim,
    ]
}

fn padded(g: &Geometry) -> (usize, usize) {
    (
        g.dim.next_multiple_of(COLS),
        g.value_dim.next_multiple_of(COLS),
    )
}

fn slots(g: &Geometry) -> usize {
    let (dim, value_dim) = padded(g);
    let blocks = g.keys.div_ceil(KEY_BLOCK).max(1);
    (KEPT / (KEY_BLOCK * (2 * dim + value_dim))).clamp(1, blocks)
}

impl Tiles {
    /// `memory` is what [`lens`] asks for.
    pub fn new(g: &Geometry, rows: usize, memory: [*mut f32; 10]) -> Self {
        let [q, q_panels, grad, grad_panels, dq, weights, slopes, keys, key_panels, values] =
            memory;
        Tiles {
            q,
            q_panels,
            grad,
            grad_panels,
            dq,
            weights,
            slopes,
            keys,
            key_panels,
            values,
            slots: slots(g),
            rows,
            width: padded(g).0,
        }
    }

    /// Packs the chunk's queries and their gradients.
    ///
    /// # Safety
    /// The memory is valid for the geometry of `b`, and has room for the queries, which exist.
    #[inline(always)]
    pub unsafe fn pack_queries<S: Simd, T: Element>(
        &self,
        s: S,
        b: &Backward<T>,
        queries: &[Query],
    ) {
        let g = b.geometry();
        let q = |i: usize| {
            b.call
                .q
                .row(queries[i].batch, queries[i].head, queries[i].at)
        };
        let grad = |i: usize| b.grad.row(queries[i].batch, queries[i].head, queries[i].at);
        let (n, height) = (queries.len(), rows_of_tile::<S>());
        // SAFETY: q and grad_out have a row for each query; the memory has room for `rows` of each.
        unsafe {
            pack::strips_of(s, n, g.dim, height, q, self.q);
            pack::panels(s, (n, self.rows), g.dim, q, self.q_panels);
            pack::strips_of(s, n, g.value_dim, height, grad, self.grad);
            pack::panels(s, (n, self.rows), g.value_dim, grad, self.grad_panels);
        }
    }

    /// Packs the `len` keys from `first` on, and their values.
    ///
    /// # Safety
    /// The memory is valid for the geometry of `call`, which has these keys, and `slot` is one of its slots.
    #[inline(always)]
    pub unsafe fn pack_keys<S: Simd, T: Element>(
        &self,
        s: S,
        call: &Call<T>,
        (segment, kv_head): (usize, usize),
        (first, len): (usize, usize),
        slot: usize,
    ) {
        let (g, segment) = (&call.geometry, call.segments[segment]);
        let at = |i: usize| segment.key + first + i;
        let key = |i: usize| call.k.row(segment.batch, kv_head, at(i));
        let value = |i: usize| call.v.row(segment.batch, kv_head, at(i));
        let (block, width) = (slot * KEY_BLOCK, cols_of_tile::<S>());
        // SAFETY: k and v have a row for each of these keys; a slot has room for a block of each.
        unsafe {
            let (keys, values) = (
                self.keys.add(block * g.dim),
                self.values.add(block * g.value_dim),
            );
            pack::strips_of(s, len, g.dim, width, key, keys);
            let panels = self.key_panels.add(block * self.width);
            pack::panels(s, (len, KEY_BLOCK), g.dim, key, panels);
            pack::strips_of(s, len, g.value_dim, width, value, values);
        }
    }

    /// `Q·Kᵀ` and `G·Vᵀ` of the spans.
    ///
    /// # Safety
    /// Queries and a block of `len` keys have been packed.
    #[inline(always)]
    pub unsafe fn multiply<S: Simd, T: Element>(
        &self,
        s: S,
        g: &Geometry,
        spans: &[Span],
        slot: usize,
        len: usize,
    ) {
        let products = [
            (g.dim, self.q, self.keys, self.weights),
            (g.value_dim, self.grad, self.values, self.slopes),
        ];
        for (dim, a, b, c) in products {
            // SAFETY: there is a strip and the rows of a tile for each panel, and a strip of the block for each tile's keys.
            unsafe {
                let b = b.add(slot * KEY_BLOCK * dim);
                spans::multiply::<S, T>(s, (spans, len), dim, (a, b), c)
            }
        }
    }

    /// Makes weights and the scores' gradients of the products, for the rows of the panels from the first to the last that sees
    /// anything; both are zeros where a query sees nothing. Returns these rows.
    ///
    /// With `of_mask` they are the gradients of what a mask was added to, otherwise those of the products.
    ///
    /// # Safety
    /// [`Tiles::multiply`] has been called for these spans of the keys from `first` on.
    #[inline(always)]
    pub unsafe fn weigh<S: Simd, T: Element>(
        &self,
        s: S,
        b: &Backward<T>,
        (queries, deltas): (&[Query], &[f32]),
        spans: &[Span],
        first: usize,
        of_mask: bool,
    ) -> Range<usize> {
        let rows = rows_of_tile::<S>();
        let begin = spans.iter().position(|span| !span.is_empty()).unwrap_or(0);
        let end = spans
            .iter()
            .rposition(|span| !span.is_empty())
            .map_or(0, |i| i + 1);
        for r in begin * rows..end * rows {
            // SAFETY: there is a row for each query, and there are rows of padding up to the end of the last panel.
            let (weights, slopes) = unsafe {
                (
                    self.weights.add(r * SCORE_ROW),
                    self.slopes.add(r * SCORE_ROW),
                )
            };
            let span = &spans[r / rows];
            let seen = match queries.get(r) {
                Some(query) => seen(query, first, span),
                None => 0..0,
            };
            // SAFETY: rows have room for a block; the query sees these keys, and so they exist.
            unsafe {
                for row in [weights, slopes] {
                    zero(row, 0..seen.start);
                    zero(row, seen.end..KEY_BLOCK);
                }
                if !seen.is_empty() {
                    let (weights, slopes) = (weights.add(seen.start), slopes.add(seen.start));
                    let keys = (first + seen.start, seen.len());
                    let row = (&queries[r], deltas[r]);
                    weigh_row(s, b, row, keys, weights, slopes, of_mask);
                }
            }
        }
        begin * rows..(end * rows).max(begin * rows)
    }

    /// The panels of a block's keys.
    #[inline(always)]
    pub fn key_panels(&self, slot: usize) -> *mut f32 {
        self.key_panels.wrapping_add(slot * KEY_BLOCK * self.width)
    }
}

/// The weights, dropped where dropout drops them, and the scores' gradients of the keys `(first, count)`, in place.
///
/// # Safety
/// `weights` holds the products of the query and these keys, `slopes` those of its gradient and their values; the query sees
/// these keys, at most a block of them.
#[inline(always)]
unsafe fn weigh_row<S: Simd, T: Element>(
    s: S,
    b: &Backward<T>,
    (query, delta): (&Query, f32),
    (first, count): (usize, usize),
    weights: *mut f32,
    slopes: *mut f32,
    of_mask: bool,
) {
    let call = &b.call;
    let mut caps = [1f32; KEY_BLOCK];
    // SAFETY: the contract is the same; `caps` has room for a block.
    unsafe {
        let caps = KeptSlopes(caps.as_mut_ptr());
        scores::finish(s, call, query, first, weights, count, caps)
    };
    let mut factors = [1f32; KEY_BLOCK];
    let mut skipped = 0;
    if let Some(mask) = call.dropout {
        // Factors come in fours.
        skipped = first % 4;
        let start = scores::dropout_start(call, query) + first - skipped;
        s.call(Factors {
            mask,
            start,
            out: &mut factors,
        });
    }
    let [max, log_sum] = b.log_sum(call.number(query)).map(|x| s.splat(x));
    let (delta, zero) = (s.splat(delta), s.splat(0.0));
    let scale = s.splat(call.scale);
    for i in (0..count).step_by(S::LANES) {
        let left = count - i;
        // SAFETY: `left` elements of each row follow. A block begins with a multiple of four, so that `skipped` keys of
        // it stand before these.
        unsafe {
            // The forward may have added up a score in another order: no score is above the maximum but by rounding.
            let below = s.min(zero, s.sub(f32::load_upto(s, weights.add(i), left), max));
            let p = math::exp_nonpositive(s, s.sub(below, log_sum));
            let factor = f32::load_upto(s, factors.as_ptr().add(skipped + i), left);
            let dp = s.mul(f32::load_upto(s, slopes.add(i), left), factor);
            let mut slope = s.mul(p, s.sub(dp, delta));
            if !of_mask {
                let cap = f32::load_upto(s, caps.as_ptr().add(i), left);
                slope = s.mul(s.mul(slope, cap), scale);
            }
            f32::store_upto(s, weights.add(i), left, s.mul(p, factor));
            f32::store_upto(s, slopes.add(i), left, slope);
        }
    }
}
