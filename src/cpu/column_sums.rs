//! Sums over the rows of a matrix, column by column, in f32. Which rows are added in which order depends on the shape
//! alone, so that a sum has the same bits on every run.

use super::alloc;
use super::element::{convert, Element};
use super::parallel::{self, Shared};
use super::pieces::{for_each_piece, Pieces};
use super::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::mem::MaybeUninit;

/// Elements that count as one unit of [`parallel`]'s cost. One core adds as fast as the caches deliver, and a second one
/// helps only with what comes from memory: with this, sums are shared out from 16 MB of f32 on.
pub const ADDS_PER_COST: usize = 32;

/// The columns that one thread sums at a time: 4 KB of accumulators stay in the L1 cache, and the
/// rows are read in runs long enough for the prefetcher.
const TILE: usize = 1024;

/// `[outer, n, inner] → [outer, inner]`, the sums over the middle dim.
pub fn sum_middle<T: Element>(x: &[T], [outer, n, inner]: [usize; 3]) -> Vec<T> {
    if n == 0 {
        return vec![T::ZERO; outer * inner];
    }
    /// Fewer elements, 1 MB of f32, are summed in one block.
    const LARGE: usize = 256 * 1024;
    /// Where the columns alone give fewer tiles to share out, rows are cut into blocks.
    const MIN_TILES: usize = 32;
    /// With shorter blocks of rows, the partial sums would no longer be a small part of the memory that is read.
    const MIN_BLOCK: usize = 16;
    let tiles = outer * inner.div_ceil(TILE);
    let blocks = match n * inner * outer {
        LARGE.. => MIN_TILES.div_ceil(tiles).min(n / MIN_BLOCK).max(1),
        _ => 1,
    };
    if blocks == 1 {
        return sum_blocks(x, [outer, n, inner], n);
    }
    let block = n.div_ceil(blocks);
    let partials: Vec<f32> = sum_blocks(x, [outer, n, inner], block);
    let blocks = n.div_ceil(block);
    sum_blocks(&partials, [outer, blocks, inner], blocks)
}

/// `[outer, n, inner] → [outer, n / block rounded up, inner]`
fn sum_blocks<I: Element, O: Element>(
    x: &[I],
    [outer, n, inner]: [usize; 3],
    block: usize,
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
                dispatch(SumRows {
                    x: &x[(outer * n + row) * inner + tile..],
                    out: Shared::new(out.get().add(at * inner + tile)),
                    rows: block.min(n - row),
                    stride: inner,
                    cols,
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
        dispatch(SumRows {
            x: if rows == 0 { x } else { &x[tile..] },
            // SAFETY: tiles lie within the columns, for which `out` has room.
            out: Shared::new(unsafe { out.get().add(tile) }),
            rows,
            stride,
            cols,
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

/// `rows` rows of at most [`TILE`] columns. If there is a row, x has `(rows - 1) · stride + cols` elements.
struct SumRows<'a, I, O> {
    x: &'a [I],
    out: Shared<O>,
    rows: usize,
    stride: usize,
    cols: usize,
}

impl<I: Element, O: Element> Kernel for SumRows<'_, I, O> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sums = MaybeUninit::<[f32; TILE + MAX_LANES]>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        assert!(self.cols <= TILE);
        assert!(self.rows == 0 || self.x.len() >= (self.rows - 1) * self.stride + self.cols);
        // SAFETY: x has `cols` elements in each row, and so has `out` (this struct is made above alone). `sums` has a vector
        // more than `cols` ≤ TILE, so that whole vectors of it may be loaded and stored, and is zeroed as far as it is read.
        unsafe {
            let mut c = 0;
            while c < self.cols {
                s.store_f32(sums.add(c), s.splat(0.0));
                c += S::LANES;
            }
            let mut row = 0;
            while row < self.rows {
                let x = self.x.as_ptr().add(row * self.stride);
                let stride = self.stride;
                let rows = (self.rows - row).min(4);
                match rows {
                    4 => for_each_piece(s, 0..self.cols, &AddFour { x, stride, sums }),
                    _ => {
                        let add = AddFew {
                            x,
                            stride,
                            rows,
                            sums,
                        };
                        for_each_piece(s, 0..self.cols, &add)
                    }
                }
                row += rows;
            }
            convert(s, sums.cast_const(), self.out.get(), self.cols);
        }
    }
}

/// Adds four rows to the sums, which are loaded and stored once. A column is added up in the same order in a whole
/// vector and in the last, partial one: its sum must not depend on how many columns stand beside it.
struct AddFour<I> {
    x: *const I,
    stride: usize,
    sums: *mut f32,
}

impl<I: Element> Pieces for AddFour<I> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, at: usize, left: usize) {
        let mut rows = [s.splat(0.0); 4];
        // SAFETY: four rows have the elements that the caller names, and the sums have room for a whole vector from there on.
        unsafe {
            for (r, row) in rows.iter_mut().enumerate() {
                *row = I::load_piece::<S, FULL>(s, self.x.add(at + r * self.stride), left);
            }
            let sum = s.add(s.add(rows[0], rows[1]), s.add(rows[2], rows[3]));
            let sums = self.sums.add(at);
            s.store_f32(sums, s.add(s.load_f32(sums), sum));
        }
    }
}

/// Adds the last one, two or three rows to the sums.
struct AddFew<I> {
    x: *const I,
    stride: usize,
    rows: usize,
    sums: *mut f32,
}

impl<I: Element> Pieces for AddFew<I> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, c: usize, left: usize) {
        // SAFETY: as for four rows.
        unsafe {
            let mut sum = I::load_piece::<S, FULL>(s, self.x.add(c), left);
            for r in 1..self.rows {
                let x = self.x.add(c + r * self.stride);
                sum = s.add(sum, I::load_piece::<S, FULL>(s, x, left));
            }
            let sums = self.sums.add(c);
            s.store_f32(sums, s.add(s.load_f32(sums), sum));
        }
    }
}
