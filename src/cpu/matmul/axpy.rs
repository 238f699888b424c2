//! Few rows against a W whose columns are dense, as a transposed one's are: every element is read once, in its order.

use super::matrix::Matrix;
use super::narrow::Narrow;
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use std::ops::Range;

/// `out[i] = act(Σ x[i, k] · W[k] [+ Σ u[i, k] · B[k]] [+ addend[i]])`
pub struct Axpy<'a, T, O> {
    /// Dense.
    pub x: Matrix<'a, f32>,
    /// `[in, out]`, rows dense.
    pub w: Matrix<'a, T>,
    /// u, dense, and B `[rank, out]`, rows dense; without rank where there are none.
    pub low: (Matrix<'a, f32>, Matrix<'a, T>),
    pub addend: Option<Matrix<'a, T>>,
    pub act: Act,
    pub out: Shared<O>,
}

/// Outputs of a range, of which the last may have fewer: every thread gets one at least, and each should be some pages of
/// every row, whose short pieces come slowly from memory.
fn outputs_of_range(outputs: usize) -> usize {
    let each = outputs / parallel::threads();
    each.next_multiple_of(64).clamp(128, 2048)
}

impl<T: Element, O: Element> Axpy<'_, T, O> {
    /// # Safety
    /// `out` has room for the result, rows one behind the other.
    pub unsafe fn run(&self) {
        let (rows, outputs) = (self.x.rows, self.w.cols);
        let cost = 2 * (self.w.rows + self.low.1.rows) * rows.div_ceil(4);
        parallel::ranges(outputs, cost, outputs_of_range(outputs), |range| {
            let mut sums = vec![0f32; rows * range.len()];
            let to = sums.as_mut_ptr();
            for i in (0..rows).step_by(4) {
                for (x, w) in [(self.x, self.w), self.low] {
                    dispatch(Share {
                        x,
                        w,
                        i,
                        outputs: range.clone(),
                        sums: to.wrapping_add(i * range.len()),
                    });
                }
            }
            let addend = |m: Matrix<T>| (m.as_ptr().wrapping_add(range.start), m.row);
            let (addend, out) = (self.addend.map(addend), self.out.get());
            let out = out.wrapping_add(range.start);
            // SAFETY: there are sums for these columns of all rows, the addend has them, and `out` has room for them. No other
            // range has these columns.
            unsafe { Narrow::new((to, rows, range.len()), addend, out, outputs) }.run(self.act)
        });
    }
}

/// Adds the products of at most four rows of x from row `i` on.
struct Share<'a, T> {
    x: Matrix<'a, f32>,
    w: Matrix<'a, T>,
    i: usize,
    outputs: Range<usize>,
    /// One for each output of each of these rows.
    sums: *mut f32,
}

impl<T: Element> Kernel for Share<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the outputs exist, and so many sums.
        unsafe {
            match self.x.rows - self.i {
                1 => self.rows::<S, 1>(s),
                2 => self.rows::<S, 2>(s),
                3 => self.rows::<S, 3>(s),
                _ => self.rows::<S, 4>(s),
            }
        }
    }
}

/// Rows of W that are read side by side: so many fewer times the sums are.
const DEEP: usize = 4;

impl<T: Element> Share<'_, T> {
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&self, s: S) {
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

    #[inline(always)]
    unsafe fn pass<S: Simd, const R: usize, const D: usize>(&self, s: S, k: usize) {
        let width = self.outputs.len();
        let mut x = [[s.splat(0.0); D]; R];
        for (r, x) in x.iter_mut().enumerate() {
            for (d, x) in x.iter_mut().enumerate() {
                *x = s.splat(self.x.data[(self.i + r) * self.x.row + k + d]);
            }
        }
        let mut w = [self.w.as_ptr(); D];
        for (d, w) in w.iter_mut().enumerate() {
            *w = w.add((k + d) * self.w.row + self.outputs.start);
        }
        for j in (0..width).step_by(S::LANES) {
            let left = width - j;
            let mut wide = [s.splat(0.0); D];
            for (wide, w) in wide.iter_mut().zip(&w) {
                *wide = T::load_upto(s, w.add(j), left);
            }
            for (r, x) in x.iter().enumerate() {
                let sum = self.sums.add(r * width + j);
                let mut acc = f32::load_upto(s, sum, left);
                for (&x, &w) in x.iter().zip(&wide) {
                    acc = s.fma(x, w, acc);
                }
                f32::store_upto(s, sum, left, acc);
            }
        }
    }
}
