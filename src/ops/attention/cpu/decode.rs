//! The forward of few queries: keys and values are read once, as they are, at the speed of memory.
//!
//! Keys are cut into pieces of [`PIECE`], so that few heads keep all threads busy too. A unit of work is one piece of a head of
//! keys, for all queries that share it: scores as dot products, weights e^(score − max) with the piece's own maximum, and the
//! sums of weighted values. Then each query adds up its pieces, in their order:
//!
//! ```text
//! M = max mᵢ      L = Σ lᵢ·e^(mᵢ − M)      O = Σ oᵢ·e^(mᵢ − M)
//! ```

use super::call::{Call, Query};
use super::output::Output;
use super::scores::{self, Factors, NoSlopes};
use super::spans::zero;
use super::KEY_BLOCK;
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::COLS;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::{dispatch, prefetch, Kernel, Simd};
use std::ops::Range;

/// The most queries that share a head of keys.
pub const MOST: usize = 16;
/// The keys of a unit.
const PIECE: usize = 512;
/// Queries that a key is multiplied with while it is in registers.
const GROUP: usize = 4;
/// Keys and values that are read again for the next queries, from the L1 cache.
const STEP: usize = 32;
/// Vectors of values in registers.
const WIDE: usize = 4;
/// How many rows ahead values are asked for.
const AHEAD: usize = 8;

/// Whether a call has so few queries that packing keys would not pay.
pub fn suits<T: Element>(call: &Call<T>) -> bool {
    let rows = call.segments.iter().map(|segment| segment.queries).max();
    rows.unwrap_or(0) * call.geometry.group() <= MOST
}

/// The memory of all pieces: for each, `rows` maxima, sums and rows of `width`.
struct Pieces {
    rows: usize,
    width: usize,
    /// Pieces of a head.
    count: usize,
    maxima: Vec<f32>,
    sums: Vec<f32>,
    values: Vec<f32>,
}

/// Computes all outputs.
pub fn run<T: Element>(call: &Call<T>, output: Output<T>) {
    let g = &call.geometry;
    let queries = call.segments.iter().map(|segment| segment.queries).max();
    let rows = queries.unwrap_or(0) * g.group();
    let keys = call.segments.iter().map(|segment| segment.keys).max();
    let count = keys.unwrap_or(0).div_ceil(PIECE).max(1);
    let heads = call.segments.len() * g.kv_heads;
    let width = g.value_dim.next_multiple_of(COLS);
    let mut pieces = Pieces {
        rows,
        width,
        count,
        maxima: vec![f32::NEG_INFINITY; heads * count * rows],
        sums: vec![0.0; heads * count * rows],
        values: vec![0.0; heads * count * rows * width],
    };
    let [maxima, sums] =
        [&mut pieces.maxima, &mut pieces.sums].map(|v| Shared::new(v.as_mut_ptr()));
    let values = Shared::new(pieces.values.as_mut_ptr());
    let cost = PIECE * rows * (g.dim + g.value_dim) / 8;
    let dim = g.dim.next_multiple_of(COLS);
    parallel::ranges(heads * count, cost, 1, |range| {
        scratch::with([rows * dim, rows * PIECE], |[q, scores]| {
            for unit in range.clone() {
                let at = unit * rows;
                // SAFETY: each unit has `rows` maxima, sums and rows of values of its own, and the thread its scratch.
                dispatch(Piece {
                    call,
                    head: unit / count,
                    first: unit % count * PIECE,
                    q,
                    scores,
                    maxima: maxima.get().wrapping_add(at),
                    sums: sums.get().wrapping_add(at),
                    values: values.get().wrapping_add(at * width),
                    width,
                });
            }
        })
    });
    parallel::ranges(heads, count * rows * width / 4, 1, |range| {
        dispatch(Join {
            call,
            output,
            pieces: &pieces,
            heads: range,
        })
    });
}

/// One piece of a head of keys.
struct Piece<'a, T: Element> {
    call: &'a Call<'a, T>,
    /// Of all segments.
    head: usize,
    first: usize,
    q: *mut f32,
    scores: *mut f32,
    maxima: *mut f32,
    sums: *mut f32,
    values: *mut f32,
    width: usize,
}

impl<T: Element> Kernel for Piece<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let call = self.call;
        let segment = &call.segments[self.head / call.geometry.kv_heads];
        let kv_head = self.head % call.geometry.kv_heads;
        let rows = segment.queries * call.geometry.group();
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
                    match rows - group {
                        1 => self.dots::<S, 1>(s, at, group, step.clone()),
                        2 => self.dots::<S, 2>(s, at, group, step.clone()),
                        3 => self.dots::<S, 3>(s, at, group, step.clone()),
                        _ => self.dots::<S, GROUP>(s, at, group, step.clone()),
                    }
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

impl<T: Element> Piece<'_, T> {
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

    /// The products of R queries and some keys, two keys at a time.
    ///
    /// # Safety
    /// The queries `group..group + R` have been loaded, the keys exist and belong to this piece.
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize>(
        &self,
        s: S,
        (batch, kv_head, base): (usize, usize, usize),
        group: usize,
        keys: Range<usize>,
    ) {
        let (k, n) = (&self.call.k, self.call.geometry.dim);
        for key in keys.clone().step_by(2) {
            // The last of an odd number is computed twice.
            let other = (key + 1).min(keys.end - 1);
            let rows = [key, other].map(|key| k.row(batch, kv_head, base + key));
            let mut sums = [[s.splat(0.0); 2]; R];
            for i in (0..n).step_by(S::LANES) {
                // SAFETY: a row of k has n elements, of q whole vectors.
                unsafe {
                    let x = rows.map(|row| T::load_upto(s, row.add(i), n - i));
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let q = s.load_f32(self.q.add((group + r) * self.q_row() + i));
                        sums[0] = s.fma(q, x[0], sums[0]);
                        sums[1] = s.fma(q, x[1], sums[1]);
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                // SAFETY: the scratch has a row of scores for each query, and both keys belong to the piece.
                unsafe {
                    let row = self.scores.add((group + r) * PIECE);
                    *row.add(key - self.first) = s.reduce_add(sums[0]);
                    *row.add(other - self.first) = s.reduce_add(sums[1]);
                }
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
                prefetch_row(v.row(batch, kv_head, base + key + AHEAD), n, col);
                let mut x = [s.splat(0.0); C];
                for (c, x) in x.iter_mut().enumerate() {
                    let at = col + c * S::LANES;
                    *x = T::load_upto(s, row.add(at), n - at);
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

/// Asks for a row of n elements when its first columns are read.
#[inline(always)]
fn prefetch_row<T>(row: *const T, n: usize, col: usize) {
    if col == 0 {
        for i in (0..n * size_of::<T>()).step_by(64) {
            prefetch(row.cast::<u8>().wrapping_add(i));
        }
    }
}

/// Adds up the pieces of each query.
struct Join<'a, T: Element> {
    call: &'a Call<'a, T>,
    output: Output<T>,
    pieces: &'a Pieces,
    heads: Range<usize>,
}

impl<T: Element> Kernel for Join<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pieces {
            rows,
            width,
            count,
            maxima,
            sums,
            values,
        } = self.pieces;
        let mut total = vec![0f32; *width];
        for head in self.heads.clone() {
            let kv_heads = self.call.geometry.kv_heads;
            let segment = &self.call.segments[head / kv_heads];
            for r in 0..segment.queries * self.call.geometry.group() {
                let query = self.call.query(segment, head % kv_heads, r);
                let sink = self.call.sinks.as_ref().map(|sinks| sinks[query.head]);
                let mut max = sink.unwrap_or(f32::NEG_INFINITY);
                for piece in 0..*count {
                    let m = maxima[(head * count + piece) * rows + r];
                    // A NaN stays.
                    max = if m > max { m } else { max };
                }
                let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
                let mut sum = sink.map_or(0.0, |sink| (sink - base).exp());
                total.fill(0.0);
                for piece in 0..*count {
                    let at = (head * count + piece) * rows + r;
                    // A piece without a score has −∞ and sums of 0; one whose scores are all NaN has −∞ and a sum of NaN.
                    let factor = match maxima[at] == f32::NEG_INFINITY {
                        true => 1.0,
                        false => (maxima[at] - base).exp(),
                    };
                    sum += sums[at] * factor;
                    let row = &values[at * width..][..*width];
                    for i in (0..*width).step_by(S::LANES) {
                        // SAFETY: both rows have whole vectors.
                        unsafe {
                            let x = s.load_f32(row.as_ptr().add(i));
                            let to = total.as_mut_ptr().add(i);
                            s.store_f32(to, s.fma(s.splat(factor), x, s.load_f32(to)));
                        }
                    }
                }
                // SAFETY: the row of sums has whole vectors, and no other thread has this query.
                unsafe {
                    self.output
                        .write(s, self.call, &query, total.as_ptr(), max, sum)
                };
            }
        }
    }
}
