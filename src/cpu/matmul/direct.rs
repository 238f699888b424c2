//! Products whose sums are short, such as the outer product that is the weight gradient of one row, and small products: x and W
//! are read where they lie, because packing either takes longer than to multiply it.
//!
//! ```text
//!             W, one row for each term    ┌─────────┬─────────┐
//!                                         └─────────┴─────────┘  two vectors of outputs
//!    x        ┌───┐
//!  four rows  │   │  each term repeated   sums in eight registers, written once
//!             └───┘
//! ```
//!
//! The terms of an output are added one after the other.

use super::matrix::Matrix;
use super::Product;
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use std::ops::Range;

/// Sums of up to this many terms are short, whatever the number of outputs. Measured on Zen 4, here and packed: 1024 × 1024 outputs
/// of 8 terms 236 and 412 µs, of 1 term 167 and 378 µs.
const SHORT: usize = 8;
/// Up to this many multiplications a product is small. Measured on Zen 4, here and packed: of two squares of 40 × 40 numbers 2.3 and
/// 3.4 µs, of 16 × 16 numbers 0.32 and 0.46 µs.
const SMALL: usize = 64 << 10;
/// Rows and vectors of a block of sums.
const ROWS: usize = 4;
const VECTORS: usize = 2;

/// Whether this is the way to a product. Those of few rows or few outputs have other ways that pack nothing, and a share of the
/// outputs for each thread where there are too few rows to share out.
pub fn suits<T: Element>(p: &Product<T>, has_few: bool) -> bool {
    let terms = p.x.cols;
    let plain = p.low.is_none() && p.addend.is_none() && p.act == Act::Identity;
    let small = !has_few && p.x.rows * p.w.rows * terms <= SMALL;
    let short = terms <= SHORT && (p.x.rows > ROWS || !has_few);
    plain && p.w.t().has_dense_rows() && (short || small)
}

/// Writes the product.
///
/// # Safety
/// `out` is valid for writes of the result, rows one behind the other, and nothing else touches it.
pub unsafe fn run<T: Element, O: Element>(p: &Product<T>, out: *mut O) {
    let mut buffers = (Vec::new(), Vec::new());
    let (x, w) = (
        p.scaled_x(&mut buffers.0),
        p.w.t().widened_into(&mut buffers.1),
    );
    let (outputs, out) = (w.cols, Shared::new(out));
    // A multiplication and addition is an eighth of a cheap element, a store takes as long as one.
    let cost = outputs * (1 + x.cols / 8);
    parallel::ranges(x.rows, cost, ROWS, |rows| {
        // SAFETY: the caller has room for these rows, and no other range has them.
        unsafe { dispatch(Direct::new(x, w, rows, out.get())) }
    });
}

/// Some rows of `x·W` for x `[rows, terms]` and W `[terms, outputs]`, the rows of both dense.
struct Direct<'a, O> {
    x: Matrix<'a, f32>,
    w: Matrix<'a, f32>,
    rows: Range<usize>,
    out: *mut O,
}

impl<'a, O> Direct<'a, O> {
    /// # Safety
    /// `out` is valid for writes of these rows of the result, rows one behind the other, and nothing else touches them.
    unsafe fn new(x: Matrix<'a, f32>, w: Matrix<'a, f32>, rows: Range<usize>, out: *mut O) -> Self {
        assert!(x.cols == w.rows && rows.end <= x.rows);
        assert!(x.has_dense_rows() && w.has_dense_rows());
        Direct { x, w, rows, out }
    }
}

impl<O: Element> Kernel for Direct<'_, O> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for first in self.rows.clone().step_by(ROWS) {
            for j in (0..self.w.cols).step_by(VECTORS * S::LANES) {
                // SAFETY: `first` is one of the rows, and j < outputs.
                unsafe { self.block(s, first, j) };
            }
        }
    }
}

impl<O: Element> Direct<'_, O> {
    /// The sums of four rows from `first` on (the last one again where there are fewer), of two vectors of outputs from `j` on.
    ///
    /// # Safety
    /// `first` is one of these rows, and W has column `j`.
    #[inline(always)]
    unsafe fn block<S: Simd>(&self, s: S, first: usize, j: usize) {
        let left = self.w.cols - j;
        let mut x = [self.x.as_ptr(); ROWS];
        for (r, x) in x.iter_mut().enumerate() {
            *x = x.wrapping_add((first + r).min(self.rows.end - 1) * self.x.row);
        }
        let mut w = self.w.as_ptr().wrapping_add(j);
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        for k in 0..self.x.cols {
            let mut wide = [s.splat(0.0); VECTORS];
            for (v, wide) in wide.iter_mut().enumerate() {
                let left = left.saturating_sub(v * S::LANES);
                // SAFETY: row k of W has `left` elements from there on.
                *wide = unsafe { f32::load_upto(s, w.wrapping_add(v * S::LANES), left) };
            }
            for (sums, x) in sums.iter_mut().zip(&x) {
                // SAFETY: x points to a row of x, which has element k.
                let x = s.splat(unsafe { *x.add(k) });
                for (sum, &w) in sums.iter_mut().zip(&wide) {
                    *sum = s.fma(x, w, *sum);
                }
            }
            w = w.wrapping_add(self.w.row);
        }
        for (i, sums) in (first..self.rows.end).zip(&sums) {
            let to = self.out.wrapping_add(i * self.w.cols + j);
            for (v, &sum) in sums.iter().enumerate() {
                let left = left.saturating_sub(v * S::LANES);
                // SAFETY: `new` was promised room for row i, which has `left` outputs from there on.
                unsafe { O::store_upto(s, to.wrapping_add(v * S::LANES), left, sum) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;
    use crate::layout::MatrixLayout;
    use half::{bf16, f16};

    /// Numbers of few digits, whose products and sums are exact.
    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i * 7 % 11) as f32 - 5.0).collect()
    }

    const SHAPES: [(usize, usize, usize); 7] = [
        (1, 1, 1),
        (64, 64, 1),
        (5, 33, 2),
        (4, 3, 4),
        (7, 100, 3),
        (20, 25, 17),
        (13, 70, 0),
    ];

    /// A matrix of such numbers whose rows are `row` elements apart, with NaN between them; in order, widened.
    fn matrix<T: Element>(rows: usize, cols: usize, row: usize) -> (Vec<T>, MatrixLayout) {
        let mut data = vec![T::narrow(f32::NAN); rows.saturating_sub(1) * row + cols];
        for (i, row) in data.chunks_mut(row.max(cols).max(1)).take(rows).enumerate() {
            let numbers = numbers((i + 1) * cols);
            for (to, &from) in row.iter_mut().zip(&numbers[i * cols..]) {
                *to = T::narrow(from);
            }
        }
        let col = 1;
        #[rustfmt::skip]
        let layout = MatrixLayout { rows, cols, row, col };
        (data, layout)
    }

    /// Each product of a shape, x `[rows, terms]` and W `[terms, outputs]`, with rows that are neighbours, that lie apart, and one
    /// row of x for all.
    fn products<T: Element>(check: impl Fn(Matrix<T>, Matrix<T>, Vec<f32>)) {
        for (rows, outputs, terms) in SHAPES {
            for x_row in [terms, terms + 3, 0] {
                for w_row in [outputs, outputs + 3] {
                    let (x, x_layout) = matrix::<T>(rows, terms, x_row);
                    let (w, w_layout) = matrix::<T>(terms, outputs, w_row);
                    let (x, w) = (Matrix::new(&x, x_layout), Matrix::new(&w, w_layout));
                    let sum = |i: usize, j: usize| {
                        let term = |k: usize| {
                            x.data[i * x.row + k].widen() * w.data[k * w.row + j].widen()
                        };
                        (0..terms).map(term).sum::<f32>()
                    };
                    let want = (0..rows * outputs).map(|at| sum(at / outputs, at % outputs));
                    check(x, w, want.collect());
                }
            }
        }
    }

    fn rounded<O: Element>(want: &[f32]) -> Vec<f32> {
        want.iter().map(|&y| O::narrow(y).widen()).collect()
    }

    /// The first row, the last one, and then all between them, which must leave those two as they are.
    fn on_every_instruction_set<O: Element>() {
        products::<f32>(|x, w, want| {
            for isa in Isa::available() {
                let mut out = vec![O::narrow(f32::NAN); want.len()];
                let inner = x.rows.min(1)..x.rows.max(2) - 1;
                for rows in [0..inner.start, inner.end..x.rows, inner.clone()] {
                    // SAFETY: available on this machine, and `out` has room for all rows.
                    unsafe { isa.run(Direct::new(x, w, rows, out.as_mut_ptr())) };
                }
                let got: Vec<f32> = out.iter().map(|y| y.widen()).collect();
                assert_eq!(got, rounded::<O>(&want), "{isa:?}");
            }
        });
    }

    #[test]
    fn every_instruction_set_multiplies() {
        on_every_instruction_set::<f32>();
        on_every_instruction_set::<f16>();
        on_every_instruction_set::<bf16>();
    }

    fn every_output_is_its_sum_of<T: Element>() {
        products::<T>(|x, w, want| {
            let scale = 2.0;
            let product = Product::new(x, w.t());
            assert!(suits(&product, false));
            let got = product.run::<T>().into_iter().map(T::widen);
            assert_eq!(got.collect::<Vec<_>>(), rounded::<T>(&want));
            let product = Product { scale, ..product };
            let want: Vec<f32> = want.iter().map(|y| scale * y).collect();
            assert_eq!(product.run::<f32>(), want);
            let got = product.run::<bf16>().into_iter().map(|y| y.widen());
            assert_eq!(got.collect::<Vec<_>>(), rounded::<bf16>(&want));
        });
    }

    #[test]
    fn every_output_is_its_sum() {
        every_output_is_its_sum_of::<f32>();
        every_output_is_its_sum_of::<f16>();
        every_output_is_its_sum_of::<bf16>();
    }

    /// Columns of x that are dense, as those of an outer product are, are brought in order first.
    #[test]
    fn columns_of_x_may_be_dense() {
        for (rows, outputs, terms) in SHAPES {
            let (x, w) = (numbers(rows * terms), numbers(outputs * terms));
            let x = Matrix::contiguous(&x, terms, rows).t();
            let product = Product::new(x, Matrix::contiguous(&w, terms, outputs).t());
            assert!(suits(&product, false));
            let sum = |i: usize, j: usize| {
                let term = |k| x.data[k * rows + i] * w[k * outputs + j];
                (0..terms).map(term).sum::<f32>()
            };
            let want = (0..rows * outputs).map(|at| sum(at / outputs, at % outputs));
            assert_eq!(product.run::<f32>(), want.collect::<Vec<_>>());
        }
    }

    #[test]
    fn epilogues_and_long_sums_go_elsewhere() {
        let (x, w) = (numbers(100 * 100), numbers(100 * 100));
        let of = |terms| {
            Product::new(
                Matrix::contiguous(&x[..terms * 100], terms, 100).t(),
                Matrix::contiguous(&w[..terms * 100], terms, 100).t(),
            )
        };
        assert!(suits(&of(1), true) && !suits(&of(100), false));
        let act = Act::Relu;
        assert!(!suits(&Product { act, ..of(1) }, false));
        let row = numbers(100);
        let addend = Some(Matrix::repeated(&row, 100));
        assert!(!suits(&Product { addend, ..of(1) }, false));
    }
}
