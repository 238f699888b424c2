//! One piece of the keys of a head, for all queries that share it.

use super::{Head, MOST, PIECE};
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::COLS;
use crate::cpu::simd::{Kernel, Simd, MAX_LANES};
use crate::ops::attention::cpu::call::{Call, Query};
use crate::ops::attention::cpu::rows::{Block, Fetch, KvRows};
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
/// How far ahead keys and values are asked for, in bytes. Measured on keys and values of 134 MB: with 4 KB they are read at 75 % of
/// the speed of a plain sum of the same memory, with 12 KB at the same speed, and with 32 KB, most of an L1 cache, at 85 %.
const AHEAD: usize = 12 * 1024;

/// [`AHEAD`] in rows of `dim` numbers.
#[inline(always)]
fn rows_ahead(rows: &impl Fetch, dim: usize) -> usize {
    AHEAD.div_ceil(rows.row_bytes(dim).max(1)).clamp(8, 64)
}

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
        let block = |rows| Block {
            rows,
            batch: segment.batch,
            head: kv_head,
            first: segment.key,
        };
        // SAFETY: the scratch has a row of q and of scores for each query; the keys of the union of what they see exist.
        unsafe {
            for (r, query) in queries.iter().flatten().enumerate() {
                self.load_query(s, &query.0, r);
            }
            let at = block(&call.k);
            match K::direct(at, call.geometry.dim) {
                Some(k) => self.dots(s, &k, rows, keys.clone()),
                None => self.dots(s, &at, rows, keys.clone()),
            }
            for (r, query) in queries.iter().flatten().enumerate() {
                self.weigh(s, &query.0, r, query.1.clone(), &keys);
            }
            let at = block(&call.v);
            match K::direct(at, call.geometry.value_dim) {
                Some(v) => self.values(s, &v, rows, keys),
                None => self.values(s, &at, rows, keys),
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

    /// The products of all queries and some keys.
    ///
    /// # Safety
    /// The queries have been loaded; `k` has rows for the keys, which belong to this piece.
    #[inline(always)]
    unsafe fn dots<S: Simd>(&self, s: S, k: &impl Fetch, rows: usize, keys: Range<usize>) {
        for step in keys.clone().step_by(STEP) {
            let step = step..keys.end.min(step + STEP);
            for group in (0..rows).step_by(GROUP) {
                // SAFETY: the contract is the same.
                unsafe { self.dots_of_group(s, k, (group, rows - group), step.clone()) };
            }
        }
    }

    /// The products of up to four queries and some keys. As many keys are taken at once as give a whole vector of products, or
    /// nearly so: their sums of lanes are then additions of whole vectors.
    ///
    /// # Safety
    /// As for [`Piece::dots`].
    #[inline(always)]
    unsafe fn dots_of_group<S: Simd>(
        &self,
        s: S,
        k: &impl Fetch,
        (group, queries): (usize, usize),
        keys: Range<usize>,
    ) {
        // SAFETY: the contract is the same.
        unsafe {
            match (S::LANES, queries) {
                (16, 1) => self.products::<S, _, 1, 8>(s, k, group, keys),
                (16, 2) => self.products::<S, _, 2, 8>(s, k, group, keys),
                (16, 3) => self.products::<S, _, 3, 4>(s, k, group, keys),
                (16, _) => self.products::<S, _, GROUP, 4>(s, k, group, keys),
                (8, 1) => self.products::<S, _, 1, 4>(s, k, group, keys),
                (8, 2) => self.products::<S, _, 2, 4>(s, k, group, keys),
                (8, 3) => self.products::<S, _, 3, 2>(s, k, group, keys),
                (8, _) => self.products::<S, _, GROUP, 2>(s, k, group, keys),
                (_, 1) => self.products::<S, _, 1, 2>(s, k, group, keys),
                (_, 2) => self.products::<S, _, 2, 2>(s, k, group, keys),
                (_, 3) => self.products::<S, _, 3, 1>(s, k, group, keys),
                _ => self.products::<S, _, GROUP, 1>(s, k, group, keys),
            }
        }
    }

    /// The products of R queries and some keys, J keys at a time, R · J ≤ LANES.
    ///
    /// # Safety
    /// As for [`Piece::dots`].
    #[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
    #[inline(always)]
    unsafe fn products<S: Simd, F: Fetch, const R: usize, const J: usize>(
        &self,
        s: S,
        k: &F,
        group: usize,
        keys: Range<usize>,
    ) {
        let n = self.call.geometry.dim;
        let q = self.q.wrapping_add(group * self.q_row());
        let scores = self.scores.wrapping_add(group * PIECE);
        let ahead = rows_ahead(k, n);
        let mut key = keys.start;
        while key < keys.end {
            // Where fewer than J keys are left, the last key is taken again. These are loops and not closures: a closure that is not
            // inlined would be compiled without the vector instructions.
            let left = keys.end - key;
            let mut rows = [k.row(key); J];
            for j in 1..J {
                rows[j] = k.row(key + j.min(left - 1));
            }
            let mut sums = [[s.splat(0.0); J]; R];
            let mut i = 0;
            // SAFETY: a row of k has n elements, of q whole vectors.
            unsafe {
                while i + S::LANES <= n {
                    if group == 0 {
                        for j in 0..J {
                            k.ask_for(key + ahead + j, i);
                        }
                    }
                    self.add_products(s, q, (k, &rows), (i, S::LANES), &mut sums);
                    i += S::LANES;
                }
                if i < n {
                    self.add_products(s, q, (k, &rows), (i, n - i), &mut sums);
                }
            }
            let mut square = [s.splat(0.0); MAX_LANES];
            for r in 0..R {
                for j in 0..J {
                    square[r * J + j] = sums[r][j];
                }
            }
            let totals = s.to_array(s.sum_rows(square));
            for r in 0..R {
                // SAFETY: the scratch has a row of scores for each query, and the keys belong to the piece.
                unsafe {
                    let (from, to) = (
                        totals.as_ptr().add(r * J),
                        scores.add(r * PIECE + key - self.first),
                    );
                    match left >= J {
                        true => std::ptr::copy_nonoverlapping(from, to, J),
                        false => std::ptr::copy_nonoverlapping(from, to, left),
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
    unsafe fn add_products<S: Simd, F: Fetch, const R: usize, const J: usize>(
        &self,
        s: S,
        q: *const f32,
        (k, rows): (&F, &[F::Row; J]),
        (col, left): (usize, usize),
        sums: &mut [[S::F; J]; R],
    ) {
        let mut x = [s.splat(0.0); J];
        for j in 0..J {
            // SAFETY: by the contract.
            x[j] = unsafe { k.load(s, rows[j], col, left) };
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

    /// Adds the weighted values of some keys to the sums of all queries.
    ///
    /// # Safety
    /// `v` has rows for the keys, whose weights have been written for all queries.
    #[inline(always)]
    unsafe fn values<S: Simd>(&self, s: S, v: &impl Fetch, rows: usize, keys: Range<usize>) {
        for step in keys.clone().step_by(STEP) {
            for group in (0..rows).step_by(GROUP) {
                let step = step..keys.end.min(step + STEP);
                // SAFETY: the contract is the same.
                unsafe {
                    match rows - group {
                        1 => self.values_of_group::<S, _, 1>(s, v, group, step),
                        2 => self.values_of_group::<S, _, 2>(s, v, group, step),
                        3 => self.values_of_group::<S, _, 3>(s, v, group, step),
                        _ => self.values_of_group::<S, _, GROUP>(s, v, group, step),
                    }
                }
            }
        }
    }

    /// [`Piece::values`] for R queries.
    ///
    /// # Safety
    /// As for it.
    #[inline(always)]
    unsafe fn values_of_group<S: Simd, F: Fetch, const R: usize>(
        &self,
        s: S,
        v: &F,
        group: usize,
        keys: Range<usize>,
    ) {
        let n = self.call.geometry.value_dim;
        for col in (0..n).step_by(WIDE * S::LANES) {
            let whole = n - col >= WIDE * S::LANES;
            // SAFETY: rows of sums are whole vectors, as many as a multiple of COLS elements has.
            unsafe {
                match whole {
                    true => self.columns::<S, F, R, WIDE>(s, v, (group, col), keys.clone()),
                    false => {
                        for col in (col..n).step_by(S::LANES) {
                            self.columns::<S, F, R, 1>(s, v, (group, col), keys.clone());
                        }
                    }
                }
            }
        }
    }

    /// C vectors of columns of [`Piece::values`].
    ///
    /// # Safety
    /// As for it. The values have C whole vectors from `col` on, or C is 1.
    #[inline(always)]
    unsafe fn columns<S: Simd, F: Fetch, const R: usize, const C: usize>(
        &self,
        s: S,
        v: &F,
        (group, col): (usize, usize),
        keys: Range<usize>,
    ) {
        let n = self.call.geometry.value_dim;
        let out = self.values.wrapping_add(group * self.width + col);
        let weights = self.scores.wrapping_add(group * PIECE);
        let ahead = rows_ahead(v, n);
        let mut sums = [[s.splat(0.0); C]; R];
        // SAFETY: by the contract.
        unsafe {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load_f32(out.add(r * self.width + c * S::LANES));
                }
            }
            for key in keys {
                let row = v.row(key);
                let mut x = [s.splat(0.0); C];
                for (c, x) in x.iter_mut().enumerate() {
                    let at = col + c * S::LANES;
                    if group == 0 {
                        v.ask_for(key + ahead, at);
                    }
                    // Several vectors are whole ones.
                    let left = if C > 1 { S::LANES } else { n - at };
                    *x = v.load(s, row, at, left);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let weight = s.splat(*weights.add(r * PIECE + key - self.first));
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
