//! Products of many rows, by the `gemm` crate.

use super::matrix::Matrix;
use super::narrow::Narrow;
use super::Product;
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use gemm::Parallelism;
use std::ops::Range;

/// `out = scale · x·Wᵀ` by this thread, added to what is there if `add` is set.
///
/// # Safety
/// `out` is valid for writes of x.rows rows of w.rows elements, `row` elements apart, which nothing else touches. If `add` is
/// set, they are initialised.
pub unsafe fn product(
    out: *mut f32,
    row: usize,
    add: bool,
    (x, w): (Matrix<f32>, Matrix<f32>),
    scale: f32,
) {
    assert_eq!(x.cols, w.cols);
    // SAFETY: x and W have all elements of their rows and columns, as every `Matrix` has, and the caller has room for the
    // result. `gemm` reads `out` only if `add` is set.
    unsafe {
        gemm::gemm(
            x.rows,
            w.rows,
            x.cols,
            out,
            1,
            row as isize,
            add,
            x.as_ptr(),
            x.col as isize,
            x.row as isize,
            w.as_ptr(),
            w.row as isize,
            w.col as isize,
            1.0,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// The most rows of a tile on either side: 256 × 256 sums of f32 are 256 KB, which an L2 cache holds.
const MAX_TILE: usize = 256;

/// The rows of a tile along the longer side of a product, `cost` being that of one row. Every thread should get two tiles.
pub fn tile_len(long: usize, cost: usize) -> usize {
    if !parallel::is_shared(long, cost) {
        return MAX_TILE;
    }
    let len = long.div_ceil(2 * parallel::threads());
    len.next_multiple_of(16).min(MAX_TILE)
}

/// Calls `tile(rows, outputs)` for parts of the longer side, in parallel. Each is multiplied by one thread: handing parts
/// of one product to several, as `gemm` does, leaves them waiting for one another.
fn tiles<T: Element>(p: &Product<T>, tile: impl Fn(Range<usize>, Range<usize>) + Send + Sync) {
    let (rows, outputs) = (p.x.rows, p.w.rows);
    let by_row = rows > outputs;
    let (long, short) = if by_row {
        (rows, outputs)
    } else {
        (outputs, rows)
    };
    // A multiplication and addition is an eighth of a cheap element.
    let cost = (short * p.x.cols / 8).max(1);
    let len = tile_len(long, cost);
    parallel::ranges(long, cost, len, |range| {
        for start in range.clone().step_by(len) {
            let part = start..range.end.min(start + len);
            match by_row {
                true => tile(part, 0..outputs),
                false => tile(0..rows, part),
            }
        }
    });
}

/// The product, tile by tile; 16-bit types are widened by the thread that multiplies them, W never as a whole. Sums are
/// gathered beside the output, whose rows may lie so far apart that they displace one another from the cache: 512 × 4096 ·
/// 4096 × 4096 takes 15 % longer if they are not.
///
/// # Safety
/// `out` is valid for writes of the result, rows one behind the other, and nothing else touches it.
pub unsafe fn run<T: Element, O: Element>(p: &Product<T>, out: *mut O) {
    let shape = (p.x.rows, p.w.rows);
    assert!(p.low.is_none_or(|low| (low.u.rows, low.b.rows) == shape));
    assert!(p
        .addend
        .is_none_or(|m| (m.rows, m.cols) == shape && m.has_dense_rows()));
    let by_row = p.x.rows > p.w.rows;
    let wide = match p.x.as_f32() {
        None if !by_row => Some(Wide::new(p.x)),
        _ => None,
    };
    let out = Shared::new(out);
    tiles(p, |rows, outputs| {
        let (mut x_buffer, mut w_buffer) = (Vec::new(), Vec::new());
        let x = match &wide {
            Some(wide) => wide.matrix(),
            None => p.x.rows(rows.clone()).widened_into(&mut x_buffer),
        };
        for start in outputs.clone().step_by(MAX_TILE) {
            let outputs = start..outputs.end.min(start + MAX_TILE);
            let w = p.w.rows(outputs.clone()).widened_into(&mut w_buffer);
            // SAFETY: the ranges of `tiles` don't overlap, so that no other thread has this tile, and the caller has room
            // for all of them. The assertions above are what `tile` asks of the product.
            unsafe { tile(p, (x, w), rows.clone(), outputs, out) };
        }
    });
}

/// `out = x·Wᵀ`, added to the numbers in `out` if `add` is set: one part of a sum of products.
///
/// # Safety
/// `out` is valid for reads and writes of the result, rows one behind the other, and nothing else touches it. If `add` is set,
/// it is initialised.
pub unsafe fn accumulate((x, w): (Matrix<f32>, Matrix<f32>), out: *mut f32, add: bool) {
    let (out, stride) = (Shared::new(out), w.rows);
    tiles(&Product::new(x, w), |rows, outputs| {
        let x = x.rows(rows.clone());
        for start in outputs.clone().step_by(MAX_TILE) {
            let outputs = start..outputs.end.min(start + MAX_TILE);
            let (w, width) = (w.rows(outputs.clone()), outputs.len());
            let mut memory = Vec::<f32>::with_capacity(rows.len() * width);
            let sums = memory.as_mut_ptr();
            // SAFETY: `sums` has room for `width` sums of each row, which the product initialises. The ranges of `tiles` don't
            // overlap, so that no other thread has this tile of the result, for which the caller has room.
            unsafe {
                product(sums, width, false, (x, w), 1.0);
                let out = out.get().add(rows.start * stride + outputs.start);
                let addend = add.then_some((out.cast_const(), stride));
                Narrow::new((sums, rows.len(), width), addend, out, stride).run(Act::Identity)
            }
        }
    });
}

/// A copy in f32 that keeps the dense side dense.
struct Wide {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
    by_column: bool,
}

impl Wide {
    fn new<T: Element>(m: Matrix<T>) -> Self {
        let by_column = m.is_by_column();
        Wide {
            data: if by_column { m.t() } else { m }.widened(1.0),
            rows: m.rows,
            cols: m.cols,
            by_column,
        }
    }

    fn matrix(&self) -> Matrix<'_, f32> {
        match self.by_column {
            true => Matrix::contiguous(&self.data, self.cols, self.rows).t(),
            false => Matrix::contiguous(&self.data, self.rows, self.cols),
        }
    }
}

/// Writes these outputs of these rows, of which `operands` are the rows of x and of W.
///
/// # Safety
/// `out` is valid for writes of the result of `p`, and no other thread writes these outputs of these rows. The product of low
/// rank and the addend, where there are such, have the result's shape, and the addend's rows are dense.
unsafe fn tile<T: Element, O: Element>(
    p: &Product<T>,
    operands: (Matrix<f32>, Matrix<f32>),
    rows: Range<usize>,
    outputs: Range<usize>,
    out: Shared<O>,
) {
    let (width, stride) = (outputs.len(), p.w.rows);
    assert_eq!((operands.0.rows, operands.1.rows), (rows.len(), width));
    let mut memory = Vec::<f32>::with_capacity(rows.len() * width);
    let sums = memory.as_mut_ptr();
    // SAFETY: `sums` has room for `width` sums of each row, which the first product initialises. Row `rows.start` and output
    // `outputs.start` exist in the result, and in the addend of its shape.
    unsafe {
        product(sums, width, false, operands, p.scale);
        if let Some(low) = p.low {
            let mut wide = Vec::new();
            let b = low.b.rows(outputs.clone()).widened_into(&mut wide);
            product(sums, width, true, (low.u.rows(rows.clone()), b), 1.0);
        }
        let addend = |m: Matrix<T>| (m.as_ptr().add(rows.start * m.row + outputs.start), m.row);
        let out = out.get().add(rows.start * stride + outputs.start);
        Narrow::new((sums, rows.len(), width), p.addend.map(addend), out, stride).run(p.act)
    }
}
