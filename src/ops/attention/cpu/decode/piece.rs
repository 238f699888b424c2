//! One piece of the keys of a head, for all queries that share it.

use super::{Head, MOST, PIECE};
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::COLS;
use crate::cpu::simd::{Kernel, Simd, MAX_LANES};
use crate::ops::attention::cpu::call::{Call, Query};
use crate::ops::attention::cpu::rows::KvRows;
use crate::ops::attention::cpu::scores::{self, Factors, NoSlopes};
use crate::ops::attention::cpu::spans::zero;
use crate::ops::attention::cpu::KEY_BLOCK;
use std::ops::Range;

/// Queries that a key is multiplied with while it is in registers.
const GROUP: usize = 4;
/// Keys and values that are read again for the next queries, from the L1 cache.
const STEP: usize = 32;
/// Vectors of values in registers.
const WIDE: usize = 4;
/// How many rows ahead keys and values are asked for.
const AHEAD: usize = 8;

/// One piece of a head of keys.
pub(super) struct Piece<'a, T: Element, K> {
    pub call: &'a Call<'a, T, K>,
    pub head: &'a Head,
    /// Its first key.
    pub first: usize,
    /// Scratch memory: a row of whole vectors for each query.
    pub q: *mut f32,
    /// Scratch memory: a row of [`PIECE`] scores for each query.
    pub scores: *mut f32,
    /// The results of its queries.
    pub maxima: *mut f32,
    pub sums: *mut f32,
    pub values: *mut f32,
    pub width: usize,
}

impl<T: Element, K: KvRows> Kernel for Piece<'_, T, K> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let call = self.call;
        let Head { kv_head, rows, .. } = *self.head;
        let segment = &call.segments[self.head.segment];
        let mut queries = [const { None }; MOST];
        let (mut start, mut end) = (usize::MAX, 0);
        for (r, to) in queries.iter_mut().enumerate().take(rows) {
            let query = call.query(segment, kv_head, r);
            let last = self.first + PIECE;
            let seen = query.start.max(self.first)..query.end.min(last);
            if !seen.is_empty() {
                (start, end) = (start.min(seen.start), end.max(seen.end));
            }
            *to = Some((query, seen));
        }
        if start >= end {
            return;
        }
        let keys = start..end;
        // SAFETY: the scratch has a row of q and of scores for each query; the keys of the union of what they see exist.
        unsafe {
            for (r, query) in queries.iter().flatten().enumerate() {
                self.load_query(s, &query.0, r);
            }
            for step in keys.clone().step_by(STEP) {
                let step = step..end.min(step + STEP);
                for group in (0..rows).step_by(GROUP) {
                    let at = (segment.batch, kv_head, segment.key);
                    self.dots(s, at, (group, rows - group), step.clone());
                }
            }
            for (r, query) in queries.iter().flatten().enumerate() {
                self.weigh(s, &query.0, r, query.1.clone(), &keys);
            }
            for step in keys.clone().step_by(STEP) {
                let step = step..end.min(step + STEP);
                for group in (0..rows).step_by(GROUP) {
                    let at = (segment.batch, kv_head, segment.key);
                    match rows - group {
                        1 => self.values::<S, 1>(s, at, group, step.clone()),
                        2 => self.values::<S, 2>(s, at, group, step.clone()),
                        3 => self.values::<S, 3>(s, at, group, step.clone()),
                        _ => self.values::<S, GROUP>(s, at, group, step.clone()),
                    }
                }
            }
        }
    }
}

impl<T: Element, K: KvRows> Piece<'_, T, K> {
    /// The distance of two rows of q: whole vectors, with zeros at the end.
    #[inline(always)]
    fn q_row(&self) -> usize {
        self.call.geometry.dim.next_multiple_of(COLS)
    }

    /// # Safety
    /// The scratch has a row `r`.
    #[inline(always)]
    unsafe fn load_query<S: Simd>(&self, s: S, query: &Query, r: usize) {
        let n = self.call.geometry.dim;
        let from = self.call.q.row(query.batch, query.head, query.at);
        // SAFETY: q has a row for the query, the scratch one of whole vectors.
        unsafe {
            let to = self.q.add(r * self.q_row());
            for i in (0..n).step_by(S::LANES) {
                s.store_f32(to.add(i), T::load_upto(s, from.add(i), n - i));
            }
        }
    }

    /// The products of up to four queries and some keys. As many keys are taken at once as give a whole vector of products, or
    /// nearly so: their sums of lanes are then additions of whole vectors.
    ///
    /// # Safety
    /// The queries `group..group + queries` have been loaded, the keys exist and belong to this piece.
    #[inline(always)]
    unsafe fn dots<S: Simd>(
        &self,
        s: S,
        at: (usize, usize, usize),
        (group, queries): (usize, usize),
        keys: Range<usize>,
    ) {
        // SAFETY: the contract is the same.
        unsafe {
            match (S::LANES, queries) {
                (16, 1) => self.products::<S, 1, 8>(s, at, group, keys),
                (16, 2) => self.products::<S, 2, 8>(s, at, group, keys),
                (16, 3) => self.products::<S, 3, 4>(s, at, group, keys),
                (16, _) => self.products::<S, GROUP, 4>(s, at, group, keys),
                (8, 1) => self.products::<S, 1, 4>(s, at, group, keys),
                (8, 2) => self.products::<S, 2, 4>(s, at, group, keys),
                (8, 3) => self.products::<S, 3, 2>(s, at, group, keys),
                (8, _) => self.products::<S, GROUP, 2>(s, at, group, keys),
                (_, 1) => self.products::<S, 1, 2>(s, at, group, keys),
                (_, 2) => self.products::<S, 2, 2>(s, at, group, keys),
                (_, 3) => self.products::<S, 3, 1>(s, at, group, keys),
                _ => self.products::<S, GROUP, 1>(s, at, group, keys),
            }
        }
    }

    /// The products of R queries and some keys, J keys at a time, R · J ≤ LANES.
    ///
    /// # Safety
    /// As for [`Piece::dots`].
    #[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
    #[inline(always)]
    unsafe fn products<S: Simd, const R: usize, const J: usize>(
        &self,
        s: S,
        (batch, kv_head, base): (usize, usize, usize),
        group: usize,
        keys: Range<usize>,
    ) {
        let (k, n) = (&self.call.k, self.call.geometry.dim);
        let q = self.q.wrapping_add(group * self.q_row());
        let last = keys.end - 1;
        let mut key = keys.start;
        while key <= last {
            // Where fewer than J keys are left, the last key is taken again. These are loops and not closures: a closure that is not
            // inlined would be compiled without the vector instructions.
            let mut rows = [k.row(batch, kv_head, base + key); J];
            for j in 1..J {
                rows[j] = k.row(batch, kv_head, base + (key + j).min(last));
            }
            if group == 0 {
                for j in 0..J {
                    k.prefetch(k.row(batch, kv_head, base + key + AHEAD + j), n);
                }
            }
            let mut sums = [[s.splat(0.0); J]; R];
            let mut i = 0;
            // SAFETY: a row of k has n elements, of q whole vectors.
            unsafe {
                while i + S::LANES <= n {
                    self.add_products(s, q, &rows, (i, S::LANES), &mut sums);
                    i += S::LANES;
                }
                if i < n {
                    self.add_products(s, q, &rows, (i, n - i), &mut sums);
                }
            }
            let mut square = [s.splat(0.0); MAX_LANES];
            for r in 0..R {
                for j in 0..J {
                    square[r * J + j] = sums[r][j];
                }
            }
            let totals = s.to_array(row_sums(s, square));
            for r in 0..R {
                for j in 0..J {
                    // SAFETY: the scratch has a row of scores for each query, and the keys belong to the piece.
                    unsafe {
                        let row = self.scores.add((group + r) * PIECE);
                        *row.add((key + j).min(last) - self.first) = totals[r * J + j];
                    }
                }
            }
            key += J;
        }
    }

    /// Adds the products of one vector of columns, `left` from `col` on. Where that is a constant, no lane has to be asked for.
    ///
    /// # Safety
    /// The rows exist and have these columns, and `q` points to rows of whole vectors for R queries.
    #[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
    #[inline(always)]
    unsafe fn add_products<S: Simd, const R: usize, const J: usize>(
        &self,
        s: S,
        q: *const f32,
        rows: &[K::Row; J],
        (col, left): (usize, usize),
        sums: &mut [[S::F; J]; R],
    ) {
        let mut x = [s.splat(0.0); J];
        for j in 0..J {
            // SAFETY: by the contract.
            x[j] = unsafe { self.call.k.load(s, rows[j], col, left) };
        }
        for r in 0..R {
            // SAFETY: by the contract.
            let q = unsafe { s.load_f32(q.add(r * self.q_row() + col)) };
            for j in 0..J {
                sums[r][j] = s.fma(q, x[j], sums[r][j]);
            }
        }
    }

    /// Weights of a query's products, zeros for what it does not see of `keys`.
    ///
    /// # Safety
    /// The products of `keys` have been written, and the query sees `seen`.
    #[inline(always)]
    unsafe fn weigh<S: Simd>(
        &self,
        s: S,
        query: &Query,
        r: usize,
        seen: Range<usize>,
        keys: &Range<usize>,
    ) {
        let seen = seen.start.clamp(keys.start, keys.end)..seen.end.clamp(keys.start, keys.end);
        // SAFETY: there is a row of scores, a maximum and a sum for each query.
        unsafe {
            let row = self.scores.add(r * PIECE);
            let at = |key: usize| key - self.first;
            if seen.is_empty() {
                return zero(row, at(keys.start)..at(keys.end));
            }
            zero(row, at(keys.start)..at(seen.start));
            zero(row, at(seen.end)..at(keys.end));
            let t = row.add(at(seen.start));
            let n = seen.len();
            let max = scores::finish(s, self.call, query, seen.start, t, n, NoSlopes);
            // Without a finite score, weights are e^−∞ = 0 and not e^(−∞ + ∞).
            let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
            *self.maxima.add(r) = max;
            *self.sums.add(r) = scores::exponentials(s, t, n, base);
            if let Some(mask) = self.call.dropout {
                let start = scores::dropout_start(self.call, query);
                // Factors come in fours.
                for key in (seen.start / 4 * 4..seen.end).step_by(KEY_BLOCK) {
                    let mut factors = [0f32; KEY_BLOCK];
                    s.call(Factors {
                        mask,
                        start: start + key,
                        out: &mut factors,
                    });
                    let first = key.max(seen.start);
                    let n = seen.end.min(key + KEY_BLOCK) - first;
                    let factors = factors.as_ptr().add(first - key);
                    scores::multiply(s, row.add(at(first)), factors, n);
                }
            }
        }
    }

    /// Adds the weighted values of some keys to the sums of R queries.
    ///
    /// # Safety
    /// The weights of these keys have been written for the queries `group..group + R`.
    #[inline(always)]
    unsafe fn values<S: Simd, const R: usize>(
        &self,
        s: S,
        (batch, kv_head, base): (usize, usize, usize),
        group: usize,
        keys: Range<usize>,
    ) {
        let n = self.call.geometry.value_dim;
        for col in (0..n).step_by(WIDE * S::LANES) {
            let whole = n - col >= WIDE * S::LANES;
            // SAFETY: rows of sums are whole vectors, as many as a multiple of COLS elements has.
            unsafe {
                let out = self.values.add(group * self.width + col);
                let at = (batch, kv_head, base);
                match whole {
                    true => self.columns::<S, R, WIDE>(s, at, (group, col), keys.clone(), out),
                    false => {
                        for i in (0..n - col).step_by(S::LANES) {
                            let at_col = (group, col + i);
                            self.columns::<S, R, 1>(s, at, at_col, keys.clone(), out.add(i));
                        }
                    }
                }
            }
        }
    }

    /// C vectors of columns of [`Piece::values`].
    ///
    /// # Safety
    /// As for it; `out` points to the first of these columns in the sums of the first query. The values have C whole vectors
    /// from `col` on, or C is 1.
    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        (batch, kv_head, base): (usize, usize, usize),
        (group, col): (usize, usize),
        keys: Range<usize>,
        out: *mut f32,
    ) {
        let (v, n) = (&self.call.v, self.call.geometry.value_dim);
        let mut sums = [[s.splat(0.0); C]; R];
        // SAFETY: by the contract.
        unsafe {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load_f32(out.add(r * self.width + c * S::LANES));
                }
            }
            for key in keys {
                let row = v.row(batch, kv_head, base + key);
                // A whole row, when its first columns are read.
                if col == 0 {
                    v.prefetch(v.row(batch, kv_head, base + key + AHEAD), n);
                }
                let mut x = [s.splat(0.0); C];
                for (c, x) in x.iter_mut().enumerate() {
                    let at = col + c * S::LANES;
                    // Several vectors are whole ones.
                    let left = if C > 1 { S::LANES } else { n - at };
                    *x = v.load(s, row, at, left);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let weight = *self.scores.add((group + r) * PIECE + key - self.first);
                    let weight = s.splat(weight);
                    for c in 0..C {
                        sums[c] = s.fma(weight, x[c], sums[c]);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (c, sum) in sums.into_iter().enumerate() {
                    s.store_f32(out.add(r * self.width + c * S::LANES), sum);
                }
            }
        }
    }
}

/// Of rows, the first LANES vectors: lane i of the result is the sum of row i, added as a tree.
#[inline(always)]
fn row_sums<S: Simd>(s: S, rows: [S::F; MAX_LANES]) -> S::F {
    let mut columns = s.transpose(rows);
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            if half < S::LANES {
                columns[i] = s.add(columns[i], columns[i + half]);
            }
        }
    }
    columns[0]
}
