//! Few rows of x against a W whose columns are dense, as those of a transposed matrix are: every element of W is read once,
//! in the order of memory.

use super::matrix::Matrix;
use super::narrow::Narrow;
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use std::ops::Range;

/// `out[i] = act(Σ x[i, k] · W[k] [+ Σ u[i, k] · B[k]] [+ addend[i]])`
pub struct Axpy<'a, T> {
    terms: [(Matrix<'a, f32>, Matrix<'a, T>); 2],
    addend: Option<Matrix<'a, T>>,
    act: Act,
}

/// The outputs of a range, of which the last may have fewer. Every thread gets a range at least. The upper bound, 8 KB of
/// f32, keeps the sums of a row in the L1 cache; the lower one makes a range some cache lines of every row of W, because
/// shorter pieces come slowly from memory.
fn outputs_of_range(outputs: usize) -> usize {
    let each = outputs / parallel::threads();
    each.next_multiple_of(64).clamp(128, 2048)
}

impl<'a, T: Element> Axpy<'a, T> {
    /// x `[rows, in]` and W `[in, out]`; u `[rows, rank]` and B `[rank, out]`, without rank where there are none. The rows of
    /// all matrices are dense.
    pub fn new(
        xw: (Matrix<'a, f32>, Matrix<'a, T>),
        ub: (Matrix<'a, f32>, Matrix<'a, T>),
        addend: Option<Matrix<'a, T>>,
        act: Act,
    ) -> Self {
        let shape = (xw.0.rows, xw.1.cols);
        for (x, w) in [xw, ub] {
            assert!(x.cols == w.rows && (x.rows, w.cols) == shape);
            assert!(x.has_dense_rows() && w.has_dense_rows());
        }
        assert!(addend.is_none_or(|m| (m.rows, m.cols) == shape && m.has_dense_rows()));
        Axpy {
            terms: [xw, ub],
            addend,
            act,
        }
    }

    /// # Safety
    /// `out` is valid for writes of `rows · out` elements, which nothing else touches.
    pub unsafe fn run<O: Element>(&self, out: *mut O) {
        let [(x, w), (_, b)] = self.terms;
        let (rows, outputs) = (x.rows, w.cols);
        let out = Shared::new(out);
        let cost = 2 * (w.rows + b.rows) * rows.div_ceil(4);
        parallel::ranges(outputs, cost, outputs_of_range(outputs), |range| {
            let width = range.len();
            let mut sums = vec![0f32; rows * width];
            for (i, sums) in sums.chunks_mut(4 * width).enumerate() {
                for (x, w) in self.terms {
                    dispatch(Share {
                        x: x.rows(4 * i..4 * i + sums.len() / width),
                        w,
                        outputs: range.clone(),
                        sums,
                    });
                }
            }
            let addend = |m: Matrix<T>| (m.as_ptr().wrapping_add(range.start), m.row);
            let (addend, out) = (self.addend.map(addend), out.get());
            let out = out.wrapping_add(range.start);
            // SAFETY: `sums` has `width` sums for each row. `new` checked that the addend has all outputs of all rows, and the
            // caller has room for them; no other range has these columns.
            unsafe { Narrow::new((sums.as_mut_ptr(), rows, width), addend, out, outputs) }
                .run(self.act)
        });
    }
}

/// Adds the products of one to four rows of x to the sums of these outputs.
struct Share<'a, T> {
    x: Matrix<'a, f32>,
    /// Rows dense.
    w: Matrix<'a, T>,
    outputs: Range<usize>,
    /// One for each output of each row.
    sums: &'a mut [f32],
}

impl<T: Element> Kernel for Share<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.x.rows {
            1 => self.rows::<S, 1>(s),
            2 => self.rows::<S, 2>(s),
            3 => self.rows::<S, 3>(s),
            _ => self.rows::<S, 4>(s),
        }
    }
}

/// Rows of W that are added for each time that the sums are loaded and stored.
const DEEP: usize = 4;

impl<T: Element> Share<'_, T> {
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, s: S) {
        assert!(self.x.rows == R && self.x.cols == self.w.rows);
        assert!(self.outputs.end <= self.w.cols && self.sums.len() == R * self.outputs.len());
        // SAFETY: k + D ≤ w.rows, and the assertions are the rest of what `pass` asks for.
        unsafe {
            let mut k = 0;
            while k + DEEP <= self.w.rows {
                self.pass::<S, R, DEEP>(s, k);
                k += DEEP;
            }
            while k < self.w.rows {
                self.pass::<S, R, 1>(s, k);
                k += 1;
            }
        }
    }

    /// # Safety
    /// x has R rows, W the rows from `k` to `k + D` and the columns `outputs`, and there are R sums for each of these.
    #[inline(always)]
    unsafe fn pass<S: Simd, const R: usize, const D: usize>(&mut self, s: S, k: usize) {
        let (width, sums) = (self.outputs.len(), self.sums.as_mut_ptr());
        let mut x = [[s.splat(0.0); D]; R];
        for (r, x) in x.iter_mut().enumerate() {
            for (d, x) in x.iter_mut().enumerate() {
                *x = s.splat(self.x.data[r * self.x.row + k + d]);
            }
        }
        let mut w = [self.w.as_ptr(); D];
        for (d, w) in w.iter_mut().enumerate() {
            *w = w.wrapping_add((k + d) * self.w.row + self.outputs.start);
        }
        for j in (0..width).step_by(S::LANES) {
            let left = width - j;
            let mut wide = [s.splat(0.0); D];
            for (wide, w) in wide.iter_mut().zip(&w) {
                // SAFETY: W has row k + d, whose elements are neighbours, and `left` outputs of it from j on.
                *wide = unsafe { T::load_upto(s, w.add(j), left) };
            }
            for (r, x) in x.iter().enumerate() {
                // SAFETY: r < R, and row r has `left` sums from j on.
                unsafe {
                    let sum = sums.add(r * width + j);
                    let mut acc = f32::load_upto(s, sum, left);
                    for (&x, &w) in x.iter().zip(&wide) {
                        acc = s.fma(x, w, acc);
                    }
                    f32::store_upto(s, sum, left, acc);
                }
            }
        }
    }
}
