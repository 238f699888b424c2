//! Sums and maxima over the rows of a matrix, column by column, in f32. Which rows are added in which order depends on the
//! shape alone, so that a sum has the same bits on every run.

use super::alloc;
use super::element::{convert, Element};
use super::parallel::{self, Shared};
use super::pieces::{for_each_piece, Pieces};
use super::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Elements that count as one unit of [`parallel`]'s cost. One core adds as fast as the caches deliver, and a second one
/// helps only with what comes from memory: with this, sums are shared out from 16 MB of f32 on.
pub const ADDS_PER_COST: usize = 32;

/// The columns that one thread sums at a time: 4 KB of accumulators stay in the L1 cache, and the
/// rows are read in runs long enough for the prefetcher.
const TILE: usize = 1024;

/// How rows are joined to one, column by column.
///
/// What an implementation must satisfy: `join` is `inline(always)`, and a lane of a result depends on the same lane of the
/// arguments alone.
pub trait JoinRows: Copy + Send + Sync {
    /// Whether a column starts from the first of all its rows, instead of from 0.
    const FROM_FIRST: bool = false;
    fn join<S: Simd>(s: S, joined: S::F, row: S::F) -> S::F;
}

/// Σ of the rows
#[derive(Clone, Copy)]
pub struct Sum;

impl JoinRows for Sum {
    #[inline(always)]
    fn join<S: Simd>(s: S, joined: S::F, row: S::F) -> S::F {
        s.add(joined, row)
    }
}

/// The largest element of each column. A NaN in the first row stays; others are passed over.
#[derive(Clone, Copy)]
pub struct Max;

impl JoinRows for Max {
    const FROM_FIRST: bool = true;
    #[inline(always)]
    fn join<S: Simd>(s: S, joined: S::F, row: S::F) -> S::F {
        // `max` returns its second operand if either is NaN.
        s.max(row, joined)
    }
}

/// `[outer, n, inner] → [outer, inner]`: `scale` times the middle dim joined. A maximum needs n > 0.
pub fn reduce_middle<J: JoinRows, I: Element, O: Element>(
    x: &[I],
    [outer, n, inner]: [usize; 3],
    scale: f32,
) -> Vec<O> {
    if n == 0 {
        return vec![O::narrow(0.0 * scale); outer * inner];
    }
    /// Fewer elements, 1 MB of f32, are joined in one block.
    const LARGE: usize = 256 * 1024;
    /// Where the columns alone give fewer tiles to share out, rows are cut into blocks.
    const MIN_TILES: usize = 32;
    /// With shorter blocks of rows, the partial results would no longer be a small part of the memory that is read.
    const MIN_BLOCK: usize = 16;
    let tiles = outer * inner.div_ceil(TILE);
    let blocks = match n * inner * outer {
        LARGE.. => MIN_TILES.div_ceil(tiles).min(n / MIN_BLOCK).max(1),
        _ => 1,
    };
    if blocks == 1 {
        return reduce_blocks::<J, I, O>(x, [outer, n, inner], n, scale);
    }
    let block = n.div_ceil(blocks);
    let partials: Vec<f32> = reduce_blocks::<J, I, f32>(x, [outer, n, inner], block, 1.0);
    let blocks = n.div_ceil(block);
    reduce_blocks::<J, f32, O>(&partials, [outer, blocks, inner], blocks, scale)
}

/// `[outer, n, inner] → [outer, n / block rounded up, inner]`
fn reduce_blocks<J: JoinRows, I: Element, O: Element>(
    x: &[I],
    [outer, n, inner]: [usize; 3],
    block: usize,
    scale: f32,
) -> Vec<O> {
    assert_eq!(x.len(), outer * n * inner);
    let blocks = n.div_ceil(block);
    // SAFETY: the tiles of all blocks are disjoint and cover all of the output. Block `at` has the rows from `row` on of its
    // outer index, as far as there are n.
    unsafe {
        alloc::build(outer * blocks * inner, |out: *mut O| {
            let out = Shared::new(out);
            for_each_tile(outer * blocks, block, inner, |at, tile, cols| {
                let (outer, row) = (at / blocks, at % blocks * block);
                dispatch(ReduceRows::<J, I, O> {
                    x: &x[(outer * n + row) * inner + tile..],
                    first: &x[outer * n * inner + tile..],
                    out: Shared::new(out.get().add(at * inner + tile)),
                    rows: block.min(n - row),
                    stride: inner,
                    adjacent: inner == cols,
                    cols,
                    scale,
                    joined_by: PhantomData,
                });
            });
        })
    }
}

/// Writes the sums of the first `cols` columns to `out`. The rows of `x` are `stride` elements long.
///
/// # Safety
/// `out` is valid for writes of `cols` elements.
pub unsafe fn sum_rows<T: Element>(x: &[f32], stride: usize, cols: usize, out: *mut T) {
    assert!(cols <= stride);
    let rows = x.len().checked_div(stride).unwrap_or(0);
    let out = Shared::new(out);
    for_each_tile(1, rows, cols, |_, tile, cols| {
        let x = if rows == 0 { x } else { &x[tile..] };
        dispatch(ReduceRows::<Sum, f32, T> {
            x,
            first: x,
            // SAFETY: tiles lie within the columns, for which `out` has room.
            out: Shared::new(unsafe { out.get().add(tile) }),
            rows,
            stride,
            // The sums of a column are the same bits however many columns stand beside it.
            adjacent: false,
            cols,
            scale: 1.0,
            joined_by: PhantomData,
        })
    });
}

/// Calls `work(block, first column, columns)` for the tiles of `blocks` blocks of rows, in parallel.
fn for_each_tile(
    blocks: usize,
    rows: usize,
    cols: usize,
    work: impl Fn(usize, usize, usize) + Send + Sync,
) {
    let tiles = cols.div_ceil(TILE);
    let cost = (rows * cols.min(TILE)).div_ceil(ADDS_PER_COST);
    parallel::ranges(blocks * tiles, cost, 1, |units| {
        for unit in units {
            let tile = unit % tiles * TILE;
            work(unit / tiles, tile, TILE.min(cols - tile));
        }
    });
}

/// `scale` times `rows` joined rows of at most [`TILE`] columns. If there is a row, x has `(rows - 1) · stride + cols` elements.
/// `first` begins with the row that columns start from, if they do.
struct ReduceRows<'a, J, I, O> {
    x: &'a [I],
    first: &'a [I],
    out: Shared<O>,
    rows: usize,
    stride: usize,
    /// Whether rows may be joined as longer ones, being all there is between their first and their last element.
    adjacent: bool,
    cols: usize,
    scale: f32,
    joined_by: PhantomData<J>,
}

impl<J: JoinRows, I: Element, O: Element> ReduceRows<'_, J, I, O> {
    /// How many rows are taken as one where rows are shorter than a few vectors: these would mostly be parts of vectors.
    fn rows_taken_as_one(&self) -> usize {
        const LONG_ENOUGH: usize = 4 * MAX_LANES;
        /// Of the longer rows that are made of short ones.
        const WIDTH: usize = 16 * MAX_LANES;
        let taken = WIDTH / self.cols.max(1);
        match self.adjacent && self.cols < LONG_ENOUGH && self.rows >= 2 * taken {
            true => taken,
            false => 1,
        }
    }
}

impl<J: JoinRows, I: Element, O: Element> Kernel for ReduceRows<'_, J, I, O> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut joined = MaybeUninit::<[f32; TILE + MAX_LANES]>::uninit();
        let joined = joined.as_mut_ptr().cast::<f32>();
        let taken = self.rows_taken_as_one();
        let (width, stride) = (taken * self.cols, taken * self.stride);
        let long_rows = self.rows / taken;
        assert!(width <= TILE);
        assert!(self.rows == 0 || self.x.len() >= (self.rows - 1) * self.stride + self.cols);
        assert!(!J::FROM_FIRST || self.first.len() >= self.cols);
        // SAFETY: x has `cols` elements in each row, and `first` has them if it is read, and so has `out` (this struct is made
        // above alone). Rows that are taken as one lie one behind the other. `joined` has a vector more than `width` ≤ TILE,
        // so that whole vectors of it may be loaded and stored, and is written as far as it is read.
        unsafe {
            let mut c = 0;
            while c < width {
                s.store_f32(joined.add(c), s.splat(0.0));
                c += S::LANES;
            }
            if J::FROM_FIRST {
                for start in (0..width).step_by(self.cols) {
                    convert(s, self.first.as_ptr(), joined.add(start), self.cols);
                }
            }
            let mut row = 0;
            while row < long_rows {
                let x = self.x.as_ptr().add(row * stride);
                let rows = (long_rows - row).min(4);
                let few = JoinFew::<J, I> {
                    x,
                    stride,
                    rows,
                    joined,
                    joined_by: PhantomData,
                };
                match rows {
                    4 => for_each_piece(s, 0..width, &JoinFour(few)),
                    _ => for_each_piece(s, 0..width, &few),
                }
                row += rows;
            }
            // What was taken as one, and the rows left over.
            for c in (0..self.cols).step_by(S::LANES) {
                let left = self.cols - c;
                let mut sum = f32::load_upto(s, joined.add(c), left);
                for one in 1..taken {
                    let row = f32::load_upto(s, joined.add(one * self.cols + c), left);
                    sum = J::join(s, sum, row);
                }
                for row in long_rows * taken..self.rows {
                    let row = I::load_upto(s, self.x.as_ptr().add(row * self.stride + c), left);
                    sum = J::join(s, sum, row);
                }
                O::store_upto(
                    s,
                    self.out.get().add(c),
                    left,
                    s.mul(sum, s.splat(self.scale)),
                );
            }
        }
    }
}

/// Joins four rows with the accumulators, which are loaded and stored once. A column is joined in the same order in a whole
/// vector and in the last, partial one: its sum must not depend on how many columns stand beside it.
struct JoinFour<J, I>(JoinFew<J, I>);

impl<J: JoinRows, I: Element> Pieces for JoinFour<J, I> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, at: usize, left: usize) {
        let few = &self.0;
        let mut rows = [s.splat(0.0); 4];
        // SAFETY: four rows have the elements that the caller names, and `joined` has room for a whole vector from there on.
        unsafe {
            for (r, row) in rows.iter_mut().enumerate() {
                *row = I::load_piece::<S, FULL>(s, few.x.add(at + r * few.stride), left);
            }
            let p = few.joined.add(at);
            let before = s.load_f32(p);
            let after = match J::FROM_FIRST {
                // As a tree: fewer additions wait for one another, and fewer digits are lost.
                false => {
                    let pairs = [J::join(s, rows[0], rows[1]), J::join(s, rows[2], rows[3])];
                    J::join(s, before, J::join(s, pairs[0], pairs[1]))
                }
                // One after the other: a NaN in `before` stays, those in the rows are passed over.
                true => {
                    let pair = J::join(s, J::join(s, before, rows[0]), rows[1]);
                    J::join(s, J::join(s, pair, rows[2]), rows[3])
                }
            };
            s.store_f32(p, after);
        }
    }
}

/// Joins the last one, two or three rows with the accumulators.
struct JoinFew<J, I> {
    x: *const I,
    stride: usize,
    rows: usize,
    joined: *mut f32,
    joined_by: PhantomData<J>,
}

impl<J: JoinRows, I: Element> Pieces for JoinFew<J, I> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, at: usize, left: usize) {
        // SAFETY: as for four rows.
        unsafe {
            let p = self.joined.add(at);
            let mut joined = s.load_f32(p);
            for r in 0..self.rows {
                let x = self.x.add(at + r * self.stride);
                joined = J::join(s, joined, I::load_piece::<S, FULL>(s, x, left));
            }
            s.store_f32(p, joined);
        }
    }
}
