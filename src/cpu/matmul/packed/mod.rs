//! Products of many rows: `C = A·Bᵀ` for A `[m, k]` and B `[n, k]`. Either A is x and B is W, or the other way round.
//!
//! ```text
//!        k in steps of 384                        B, at most 512 rows, packed once and read by all threads:
//!        ┌──────┬──────┬───┐                      for each step along k, strips of 32 rows (two vectors),
//!   A    │ step │      │   │                      a strip's rows beside one another
//!        ├──────┼──────┼───┤
//!  rows  │█ six█│      │   │  ──→  ┌────────────┐
//!  of a  │ rows │      │   │       │█│ │ │ │ │ │  sums of 96 rows of A: they stay in the L2 cache
//! thread │      │      │   │       │            │  until all of k is added up
//!        └──────┴──────┴───┘       └────────────┘
//! ```
//!
//! Six rows of A at a time are read where they lie, if they are f32 or pairs of bf16: one step of them stays in the L1 cache while the
//! strips of B pass by. Other rows are copied as f32 first. Only B is packed. So a weight is not, as long as x has few rows: then x
//! is B. Of x and W that one is B for which there is less to do; [`finish`] chooses. Threads share out the rows of A. Where all of A
//! is cheap to read they share out the rows of B instead, and each thread packs its own rows.
//!
//! The sums of an output are added in an order that depends on k alone.

mod finish;
mod multiply;
mod operand;
mod strips;
#[cfg(test)]
mod tests;

use super::matrix::Matrix;
use super::micro::COLS;
use crate::cpu::element::Element;
use crate::cpu::parallel;
use crate::cpu::scratch;
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use multiply::{Multiply, To};
use operand::copy_len;
use std::ops::Range;
use strips::Strips;

pub use finish::{accumulate, product, run};

/// The most rows of B that are packed at a time: a step of them is half of an L2 cache of 1 MB.
const MOST_COLS: usize = 512;
/// Fewer where k is large, so that all of k takes 7 MB, which a thread keeps for the next product; but no fewer than this.
const FEWEST_COLS: usize = 128;
const MOST_PACKED: usize = (7 << 20) / size_of::<f32>();
/// The rows of A whose sums a thread keeps.
const MOST_ROWS: usize = 96;
/// Threads share out multiples of this many rows of A.
const ROWS_ALIGN: usize = 12;

/// Finished sums of the rows `rows` of A with the rows `cols` of B, rows `row` elements apart. They may be overwritten.
pub struct Sums {
    pub first: *mut f32,
    pub row: usize,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

/// `scale · A·Bᵀ [+ U·Vᵀ]`
pub struct Sides<'a, T> {
    pub main: (Matrix<'a, T>, Matrix<'a, T>),
    pub scale: f32,
    pub low: Option<(Matrix<'a, f32>, Matrix<'a, f32>)>,
}

/// What a part of the work takes beside the multiplications, in sixteenths of one by a vector for each element: measured on
/// Zen 4.
mod costs {
    /// Packing a B whose rows are dense takes a transposition.
    pub const TRANSPOSE: usize = 6;
    /// The same, of rows that come from memory and whose cache lines fall into the same sets.
    pub const SLOW_TRANSPOSE: usize = 16;
    /// Copying rows, or packing a B whose columns are dense.
    pub const COPY: usize = 2;
}

/// The work of `A·Bᵀ`, in sixteenths of a vector's multiplications and additions for each element of k.
pub fn cost<T: Element>(a: &Matrix<T>, b: &Matrix<T>) -> usize {
    let (row, bytes) = (b.row * size_of::<T>(), b.rows * b.cols * size_of::<T>());
    let pack = match b.has_dense_rows() {
        true if row.is_multiple_of(2048) && bytes > LARGE => costs::SLOW_TRANSPOSE,
        true => costs::TRANSPOSE,
        false => costs::COPY,
    };
    let copy = match a.has_dense_rows() && size_of::<T>() == 4 {
        true => 0,
        false => costs::COPY * b.rows.div_ceil(MOST_COLS),
    };
    a.rows * (b.rows.div_ceil(lanes()) * 16 + copy) + b.rows * pack
}

/// More bytes than an L2 cache has.
const LARGE: usize = 2 << 20;

/// The lanes of this machine's vectors.
fn lanes() -> usize {
    struct Lanes<'a>(&'a mut usize);
    impl Kernel for Lanes<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, _: S) {
            *self.0 = S::LANES;
        }
    }
    let mut lanes = 0;
    dispatch(Lanes(&mut lanes));
    lanes
}

impl<T: Element> Sides<'_, T> {
    /// Computes all sums, in parallel, and calls `finish` with blocks of them that cover the result without overlap.
    pub fn multiply(&self, finish: &(dyn Fn(Sums) + Sync)) {
        let mut buffers = (vec![], vec![], vec![], vec![]);
        let a = readable(self.main.0, &mut buffers.0);
        let b = readable(self.main.1, &mut buffers.1);
        let (u, v) = match self.low {
            Some((u, v)) => (readable(u, &mut buffers.2), readable(v, &mut buffers.3)),
            None => (
                Matrix::contiguous(&[], a.rows, 0),
                Matrix::contiguous(&[], b.rows, 0),
            ),
        };
        assert!(a.cols == b.cols && u.cols == v.cols);
        assert!((u.rows, v.rows) == (a.rows, b.rows));
        let k = (a.cols + u.cols).max(1);
        let most = (MOST_PACKED / k).clamp(FEWEST_COLS, MOST_COLS) / FEWEST_COLS * FEWEST_COLS;
        let some_cols = |cols: Range<usize>| {
            for start in cols.clone().step_by(most) {
                let cols = start..cols.end.min(start + most);
                let lens = [a.cols, u.cols].map(|k| strips::len(cols.len(), k));
                scratch::with(lens, |[main, low]| {
                    // SAFETY: `len` is the room that packing takes, and B and V have these rows. Nothing else touches the
                    // memory.
                    let (main, low) = unsafe {
                        (
                            Strips::pack(b, cols.clone(), main),
                            Strips::pack(v, cols.clone(), low),
                        )
                    };
                    self.block((a, u), (&main, &low), finish);
                })
            }
        };
        // Where the whole of A is cheap to read, threads share out the rows of B, and each packs its own: to fetch what another
        // core has packed takes longer than to pack it. 33 rows of 768 → 768 run at twice the speed so.
        let few_rows = a.rows.div_ceil(ROWS_ALIGN) < 4 * parallel::threads();
        let by_cols = match few_rows {
            true => a.rows / ROWS_ALIGN < b.rows / COLS,
            false => {
                let bytes = a.rows * a.cols * size_of::<T>();
                bytes <= 2 * LARGE && b.rows.div_ceil(COLS) >= 4 * parallel::threads()
            }
        };
        match by_cols {
            true => parallel::ranges(b.rows, a.rows * cost_of_sum(k), COLS, some_cols),
            false => some_cols(0..b.rows),
        }
    }

    /// The sums of all rows of A with some packed rows of B. Threads share the rows of A.
    fn block(
        &self,
        (a, u): (Matrix<T>, Matrix<f32>),
        (main, low): (&Strips<T>, &Strips<f32>),
        finish: &(dyn Fn(Sums) + Sync),
    ) {
        let cols = main.rows();
        let row = cols.len().next_multiple_of(MAX_LANES);
        let cost = cols.len() * cost_of_sum(a.cols + u.cols);
        parallel::ranges(a.rows, cost, ROWS_ALIGN, |range| {
            let parts = range.len().div_ceil(MOST_ROWS);
            let len = range.len().div_ceil(parts).next_multiple_of(ROWS_ALIGN);
            scratch::with([copy_len(len), len * row], |[room, sums]| {
                for start in range.clone().step_by(len) {
                    let to = To {
                        rows: start..range.end.min(start + len),
                        room,
                        sums,
                        row,
                    };
                    // SAFETY: A and U have these rows; there is room for a row of sums each, and for a copy.
                    unsafe {
                        dispatch(Multiply::new(a, main, &to, Some(self.scale)));
                        if u.cols > 0 {
                            dispatch(Multiply::new(u, low, &to, None));
                        }
                    }
                    finish(Sums {
                        first: sums,
                        row,
                        rows: to.rows,
                        cols: cols.clone(),
                    });
                }
            })
        });
    }
}

/// In the units of [`parallel`]: a multiplication and addition is an eighth of a cheap element.
fn cost_of_sum(k: usize) -> usize {
    k / 8 + 1
}

/// The matrix with dense rows or columns: a copy where it has neither.
fn readable<'b, 'a: 'b, T: Element>(m: Matrix<'a, T>, buffer: &'b mut Vec<T>) -> Matrix<'b, T> {
    match m.is_by_column() {
        true => m,
        false => m.with_dense_rows(buffer),
    }
}
