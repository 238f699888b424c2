//! Products `out = act(scale · x·Wᵀ [+ u·Bᵀ] [+ addend])`, which write each output once and compute in f32.
//!
//! Few rows take a GEMV that reads W once, by its rows or by its columns. Many rows are a matter for the `gemm` crate, in
//! tiles that accumulate all terms before they are written; 16-bit types are widened on the way.

mod axpy;
mod batch;
mod gemv;
mod matrix;
mod narrow;
mod tiles;

pub use batch::batch;
pub use matrix::{Matrix, Stored};
pub use narrow::Narrow;
pub use tiles::{product, tile_len};

use super::alloc;
use super::element::Element;
use super::parallel::Shared;
use super::simd::MAX_LANES;
use crate::act::Act;
use axpy::Axpy;
use gemv::{Gemv, Output};

/// One product.
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

/// A product of low rank that is added.
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
        // SAFETY: `write` initialises every output.
        unsafe { alloc::build(self.x.rows * self.w.rows, |out| self.write(out)) }
    }

    /// # Safety
    /// `out` has room for the result, rows one behind the other.
    unsafe fn write<O: Element>(&self, out: *mut O) {
        let (rows, outputs) = (self.x.rows, self.w.rows);
        if rows * outputs == 0 {
            return;
        }
        if rows <= most_rows(&self.w) && self.w.has_dense_rows() {
            return self.gemv(out, outputs, 1);
        }
        if rows <= most_rows(&self.w) && self.w.is_by_column() && outputs >= MAX_LANES {
            return self.axpy(out);
        }
        if outputs <= most_rows(&self.x) && self.x.has_dense_rows() && self.low.is_none() {
            // W's rows are the few here.
            let swapped = Product {
                x: self.w,
                w: self.x,
                addend: self.addend.map(Matrix::t),
                ..*self
            };
            return swapped.gemv(out, 1, outputs);
        }
        tiles::run(self, out)
    }

    unsafe fn axpy<O: Element>(&self, out: *mut O) {
        let x = self.x.widened(self.scale);
        let mut buffer = Vec::new();
        let low = match self.low {
            Some(low) => (low.u, low.b.t().with_dense_rows(&mut buffer)),
            None => (
                Matrix::contiguous(&[], self.x.rows, 0),
                Matrix::contiguous(&[], 0, self.w.rows),
            ),
        };
        let axpy = Axpy {
            x: Matrix::contiguous(&x, self.x.rows, self.x.cols),
            w: self.w.t(),
            low,
            addend: self.addend,
            act: self.act,
            out: Shared::new(out),
        };
        axpy.run()
    }

    unsafe fn gemv<O: Element>(&self, out: *mut O, row: usize, col: usize) {
        let x = self.x.widened(self.scale);
        let mut buffer = Vec::new();
        let low = match self.low {
            Some(low) => (low.u, low.b.with_dense_rows(&mut buffer)),
            None => (
                Matrix::contiguous(&[], self.x.rows, 0),
                Matrix::contiguous(&[], self.w.rows, 0),
            ),
        };
        let gemv = Gemv {
            x: Matrix::contiguous(&x, self.x.rows, self.x.cols),
            w: self.w,
            low,
            addend: self.addend,
        };
        let out = Shared::new(out);
        gemv.run(self.act, Output { out, row, col })
    }
}

/// How many rows are few beside this many elements. Where they come from memory it is they that take the time, and
/// reading them once is worth more than what GEMM does better; from the cache it is not, unless they would have to be
/// widened for GEMM.
fn most_rows<T>(many: &Matrix<T>) -> usize {
    const LARGE: usize = 8 << 20;
    match many.rows * many.cols * size_of::<T>() {
        LARGE.. => 16,
        _ if size_of::<T>() < 4 => 8,
        _ => 3,
    }
}
