//! Products with a weight that is decoded to f32 tile by tile, by the thread that multiplies the tile.

use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::matmul::{product, Matrix, Narrow};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::{alloc, scratch};
use crate::ops::quantize::cpu::Decoder;
use std::ops::Range;

/// Rows or columns of W that are decoded at a time at most. Of 4096 columns, 64 rows are 1 MB, about an L2 cache.
const MAX_TILE_ROWS: usize = 64;
const MAX_TILE_COLS: usize = 512;
/// A tile of columns begins with the first code of a byte, of every packing: 1, 2, 4, 5 or 8 codes to a byte.
const COLS_ALIGN: usize = 40;

/// Which product, and so which part of W a tile is.
#[derive(Clone, Copy)]
pub enum Side {
    /// `x·Wᵀ`: whole rows of W, which has this many.
    Rows(usize),
    /// `x·W`: some columns of all rows.
    Cols,
}

/// The product, plus bias.
pub fn multiply<T: Element>(w: &Decoder, side: Side, x: Matrix<f32>, bias: Option<&[T]>) -> Vec<T> {
    let (rows, terms) = (x.rows, x.cols);
    let (width, most, align) = match side {
        Side::Rows(outputs) => (outputs, MAX_TILE_ROWS, 1),
        Side::Cols => (w.cols, MAX_TILE_COLS, COLS_ALIGN),
    };
    assert!(bias.is_none_or(|bias| bias.len() == width));
    // In the units of `parallel`: eight multiplications and additions are a cheap element, and to decode a weight is four.
    let cost = (rows * terms / 8).max(1) + 4 * terms;
    let len = tile_len(width, cost).min(most).next_multiple_of(align);
    // SAFETY: the tiles cover all columns of the result, and `Narrow` writes those of its tile for every row. The scratch
    // memory has room for the tile of W, `tile.len() · terms` weights on either side, and for its sums.
    unsafe {
        alloc::build(rows * width, |out: *mut T| {
            let out = Shared::new(out);
            parallel::ranges(width, cost, len, |range| {
                for start in range.clone().step_by(len) {
                    let tile = start..range.end.min(start + len);
                    let room = [tile.len() * terms, rows * tile.len()];
                    scratch::with(room, |[room, sums]| {
                        let tile_of_w = decode(w, side, terms, tile.clone(), room);
                        product(sums, tile.len(), false, (x, tile_of_w), 1.0);
                        let bias = bias.map(|bias| (bias[start..].as_ptr(), 0));
                        let sums = (sums, rows, tile.len());
                        Narrow::new(sums, bias, out.get().add(start), width).run(Act::Identity);
                    });
                }
            });
        })
    }
}

/// A tile of W as a matrix whose rows are multiplied with those of x, of `terms` columns.
///
/// # Safety
/// W has the rows or columns of the tile, and `room` has room for `terms` numbers of each.
unsafe fn decode<'a>(
    w: &Decoder,
    side: Side,
    terms: usize,
    tile: Range<usize>,
    room: *mut f32,
) -> Matrix<'a, f32> {
    let len = tile.len();
    // SAFETY: the caller promises the room, and that W has this tile. Every number that the slice shows is decoded before.
    unsafe {
        match side {
            Side::Rows(_) => {
                for (i, row) in tile.enumerate() {
                    w.decode(row, 0..terms, room.add(i * terms));
                }
            }
            Side::Cols => {
                for row in 0..terms {
                    w.decode(row, tile.clone(), room.add(row * len));
                }
            }
        }
        let numbers = std::slice::from_raw_parts(room, len * terms);
        match side {
            Side::Rows(_) => Matrix::contiguous(numbers, len, terms),
            Side::Cols => Matrix::contiguous(numbers, terms, len).t(),
        }
    }
}

/// The most rows of a tile on either side: 256 × 256 sums of f32 are 256 KB, which an L2 cache holds.
const MAX_TILE: usize = 256;

/// The rows of a tile along the longer side of a product, `cost` being that of one row. Every thread should get two tiles.
fn tile_len(long: usize, cost: usize) -> usize {
    if !parallel::is_shared(long, cost) {
        return MAX_TILE;
    }
    let len = long.div_ceil(2 * parallel::threads());
    len.next_multiple_of(16).min(MAX_TILE)
}
