//! Products `out = act(scale · x·Wᵀ [+ u·Bᵀ] [+ addend])`, which write each output once and compute in f32.
//!
//! Few rows of x take a GEMV that reads W once, by its rows or by its columns. For many rows, x or W is packed and
//! multiplied by register blocks; see [`packed`]. Short sums, and products too small to pack for, read W where it lies; see
//! [`direct`].

mod ahead;
mod axpy;
mod batch;
mod direct;
mod gemv;
mod matrix;
pub mod micro;
mod narrow;
mod packed;

pub use batch::batch;
pub use matrix::{Matrix, Stored};
pub use narrow::{rounded, Narrow};
pub use packed::{accumulate, product};

use super::alloc;
use super::element::Element;
use super::parallel::Shared;
use super::simd::MAX_LANES;
use crate::act::Act;
use axpy::Axpy;
use gemv::{Gemv, Output};
use micro::pairs;

/// `act(scale · x·Wᵀ [+ u·Bᵀ] [+ addend])`
#[derive(Clone, Copy)]
pub struct Product<'a, T> {
    /// `[rows, in]`
    pub x: Matrix<'a, T>,
    /// `[out, in]`
    pub w: Matrix<'a, T>,
    pub scale: f32,
    pub low: Option<Low<'a, T>>,
    /// `[rows, out]`, rows dense; a bias is one whose rows are all the same.
    pub addend: Option<Matrix<'a, T>>,
    pub act: Act,
}

/// The product of low rank `u·Bᵀ`.
#[derive(Clone, Copy)]
pub struct Low<'a, T> {
    /// `[rows, rank]`
    pub u: Matrix<'a, f32>,
    /// `[out, rank]`
    pub b: Matrix<'a, T>,
}

impl<'a, T: Element> Product<'a, T> {
    pub fn new(x: Matrix<'a, T>, w: Matrix<'a, T>) -> Self {
        Product {
            x,
            w,
            scale: 1.0,
            low: None,
            addend: None,
            act: Act::Identity,
        }
    }

    /// The result, rows one behind the other.
    pub fn run<O: Element>(&self) -> Vec<O> {
        // SAFETY: `build` makes room for all results, and `write` initialises each of them.
        unsafe { alloc::build(self.x.rows * self.w.rows, |out| self.write(out)) }
    }

    /// # Safety
    /// `out` is valid for writes of the result, rows one behind the other, and nothing else touches it.
    pub unsafe fn write<O: Element>(&self, out: *mut O) {
        let (rows, outputs) = (self.x.rows, self.w.rows);
        if rows * outputs == 0 {
            return;
        }
        let few_rows = rows <= most_rows(&self.w);
        let few_outputs = outputs <= most_rows(&self.x);
        // SAFETY: the caller has room for result (i, j) at i · outputs + j. That is where all of these write it: the second
        // GEMV has the roles of i and j swapped, and with them the strides.
        unsafe {
            if direct::suits(self, few_rows || few_outputs) {
                direct::run(self, out)
            } else if few_rows && self.w.has_dense_rows() {
                self.gemv(out, outputs, 1)
            } else if few_rows && self.w.is_by_column() && outputs >= MAX_LANES {
                self.axpy(out)
            } else if few_outputs && self.x.has_dense_rows() && self.low.is_none() {
                let swapped = Product {
                    x: self.w,
                    w: self.x,
                    addend: self.addend.map(Matrix::t),
                    ..*self
                };
                swapped.gemv(out, 1, outputs)
            } else {
                packed::run(self, out)
            }
        }
    }

    /// x as f32, multiplied by the scale; in `buffer`, unless that is x itself.
    fn scaled_x<'b>(&self, buffer: &'b mut Vec<f32>) -> Matrix<'b, f32>
    where
        'a: 'b,
    {
        match self.x.as_f32() {
            Some(x) if self.scale == 1.0 && x.has_dense_rows() => x,
            _ => {
                *buffer = self.x.widened(self.scale);
                Matrix::contiguous(buffer, self.x.rows, self.x.cols)
            }
        }
    }

    /// # Safety
    /// As for [`Product::write`].
    unsafe fn axpy<O: Element>(&self, out: *mut O) {
        let (mut wide, mut buffer) = (Vec::new(), Vec::new());
        let x = self.scaled_x(&mut wide);
        let low = match self.low {
            Some(low) => (low.u, low.b.t().with_dense_rows(&mut buffer)),
            None => (
                Matrix::contiguous(&[], self.x.rows, 0),
                Matrix::contiguous(&[], 0, self.w.rows),
            ),
        };
        let axpy = Axpy::new((x, self.w.t()), low, self.addend, self.act);
        // SAFETY: the caller has room for the result.
        unsafe { axpy.run(out) }
    }

    /// Writes result (i, j) to `out[i · row + j · col]`.
    ///
    /// # Safety
    /// `out` is valid for writes of all results, and nothing else touches it.
    unsafe fn gemv<O: Element>(&self, out: *mut O, row: usize, col: usize) {
        let (out, w) = (Shared::new(out), self.w);
        let to = Output { out, row, col };
        let plain = self.scale == 1.0 && self.low.is_none();
        if plain && pairs::suit_this_cpu::<T>(w.cols) {
            let mut buffer = Vec::new();
            let gemv = Gemv::paired(self.x.with_dense_rows(&mut buffer), w, self.addend);
            // SAFETY: the caller has room for every (i, j).
            return unsafe { gemv.run(self.act, to) };
        }
        let (mut wide, mut buffer) = (Vec::new(), Vec::new());
        let x = self.scaled_x(&mut wide);
        let low = match self.low {
            Some(low) => (low.u, low.b.with_dense_rows(&mut buffer)),
            None => (
                Matrix::contiguous(&[], self.x.rows, 0),
                Matrix::contiguous(&[], w.rows, 0),
            ),
        };
        let gemv = Gemv::new(x, w, low, self.addend);
        // SAFETY: the caller has room for every (i, j).
        unsafe { gemv.run(self.act, to) }
    }
}

/// The most rows of x for which W, `many`, is read by a GEMV and not multiplied by register blocks, whose vectors hold eight or
/// sixteen rows. Measured on Zen 4, one core, 768 × 768 and 2048 × 2048.
fn most_rows<T: Element>(many: &Matrix<T>) -> usize {
    /// From here on W comes from memory, where a GEMV waits for each row.
    const LARGE: usize = 8 << 20;
    let large = many.rows * many.cols * size_of::<T>() >= LARGE;
    let by_column = !many.has_dense_rows();
    match (pairs::suit_this_cpu::<T>(many.cols), size_of::<T>()) {
        (true, _) if large && !by_column => 8,
        (true, _) => 4,
        (_, 4) if large => 8,
        _ if by_column => 16,
        _ => 12,
    }
}
