//! Few rows against many: every element of W is read once, whatever its type, and used for all rows.

use super::matrix::Matrix;
use super::narrow::Narrow;
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use std::any::TypeId;
use std::ops::Range;

/// `x[i]·W[j] [+ u[i]·B[j]] [+ addend[i, j]]` for rows of W that are dense.
#[derive(Clone, Copy)]
pub struct Gemv<'a, T> {
    /// Few rows, dense.
    pub x: Matrix<'a, f32>,
    pub w: Matrix<'a, T>,
    /// u and B, both dense; without columns where there are none.
    pub low: (Matrix<'a, f32>, Matrix<'a, T>),
    pub addend: Option<Matrix<'a, T>>,
}

/// Where the results of a product go: result (i, j) to `out[i · row + j · col]`. One of the two strides is 1.
#[derive(Clone, Copy)]
pub struct Output<O> {
    pub out: Shared<O>,
    pub row: usize,
    pub col: usize,
}

impl<T: Element> Gemv<'_, T> {
    /// Writes the activated results.
    ///
    /// # Safety
    /// `to` has room for every (i, j).
    pub unsafe fn run<O: Element>(&self, act: Act, to: Output<O>) {
        let cost = (2 * self.w.cols + self.low.1.cols + 16) * self.x.rows.div_ceil(4);
        let direct = act == Act::Identity && TypeId::of::<O>() == TypeId::of::<f32>();
        parallel::ranges(self.w.rows, cost, OUTPUTS, |outputs| match direct {
            true => dispatch(Share {
                gemv: self,
                outputs,
                to: Output {
                    out: Shared::new(to.out.get().cast()),
                    row: to.row,
                    col: to.col,
                },
            }),
            // SAFETY: no other range has these outputs.
            false => unsafe { self.activated(outputs, act, to) },
        });
    }

    /// The sums are gathered beside the output in f32, activated, and then rounded to the output's type: the product is
    /// compiled for one type of outputs.
    ///
    /// # Safety
    /// As for [`Gemv::run`], and no other thread writes these outputs.
    unsafe fn activated<O: Element>(&self, outputs: Range<usize>, act: Act, to: Output<O>) {
        let (few, many, start) = (self.x.rows, outputs.len(), outputs.start);
        let by_row = to.col == 1;
        let (rows, width) = if by_row { (few, many) } else { (many, few) };
        scratch::with([few * many], |[sums]| {
            let part = Gemv {
                x: self.x,
                w: self.w.rows(outputs.clone()),
                low: (self.low.0, self.low.1.rows(outputs.clone())),
                addend: self.addend.map(|m| m.t().rows(outputs).t()),
            };
            dispatch(Share {
                gemv: &part,
                outputs: 0..many,
                to: Output {
                    out: Shared::new(sums),
                    row: if by_row { many } else { 1 },
                    col: if by_row { 1 } else { few },
                },
            });
            let stride = if by_row { to.row } else { to.col };
            let out = to.out.get().add(start * to.col);
            Narrow::<T, O>::new((sums, rows, width), None, out, stride).run(act)
        })
    }
}

/// Ranges begin at multiples of the outputs that are computed side by side.
const OUTPUTS: usize = 12;

/// Some outputs of all rows, by one thread.
struct Share<'a, T> {
    gemv: &'a Gemv<'a, T>,
    outputs: Range<usize>,
    to: Output<f32>,
}

impl<T: Element> Kernel for Share<'_, T> {
    type Output = ();

    /// Eight accumulators or more (rows × outputs × unrolled columns) hide the latency of FMA, and with twelve there are
    /// fewer loads than multiplications. More would not fit sixteen registers.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the outputs exist, and this thread alone writes them.
        unsafe {
            match self.gemv.x.rows {
                0 => {}
                1 => self.outputs::<S, 1, 4, 2>(s),
                2 => self.outputs::<S, 2, 4, 1>(s),
                _ => self.outputs::<S, 4, 3, 1>(s),
            }
        }
    }
}

impl<T: Element> Share<'_, T> {
    #[inline(always)]
    unsafe fn outputs<S: Simd, const R: usize, const C: usize, const U: usize>(&self, s: S) {
        let mut j = self.outputs.start;
        while j + C <= self.outputs.end {
            for i in (0..self.gemv.x.rows).step_by(R) {
                self.block::<S, R, C, U>(s, i, j);
            }
            j += C;
        }
        while j < self.outputs.end {
            for i in (0..self.gemv.x.rows).step_by(R) {
                self.block::<S, R, 1, U>(s, i, j);
            }
            j += 1;
        }
    }

    /// R rows of x from row `i` on (the last one again where there are fewer) against C rows of W.
    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const C: usize, const U: usize>(
        &self,
        s: S,
        i: usize,
        j: usize,
    ) {
        let Gemv { x, w, low, addend } = self.gemv;
        let mut acc = [[[s.splat(0.0); U]; C]; R];
        // A loop whose count is not known to the compiler: the product of low rank would else be compiled apart.
        let terms = [(*x, *w), *low];
        for (x, w) in &terms[..if low.1.cols > 0 { 2 } else { 1 }] {
            accumulate(s, (*x, i), (*w, j), &mut acc);
        }
        for (i, acc) in (i..x.rows).zip(&acc) {
            for (c, acc) in acc.iter().enumerate() {
                let joined = acc[1..].iter().fold(acc[0], |a, &b| s.add(a, b));
                let addend = addend.map_or(0.0, |m| m.data[i * m.row + (j + c) * m.col].widen());
                let at = i * self.to.row + (j + c) * self.to.col;
                *self.to.out.get().add(at) = s.reduce_add(joined) + addend;
            }
        }
    }
}

/// Adds the products of x's rows from `i` and W's rows from `j` on.
#[inline(always)]
unsafe fn accumulate<S: Simd, T: Element, const R: usize, const C: usize, const U: usize>(
    s: S,
    (x, i): (Matrix<f32>, usize),
    (w, j): (Matrix<T>, usize),
    acc: &mut [[[S::F; U]; C]; R],
) {
    let n = w.cols;
    if n == 0 {
        return;
    }
    let mut xs = [x.as_ptr(); R];
    for (r, p) in xs.iter_mut().enumerate() {
        *p = p.add((i + r).min(x.rows - 1) * x.row);
    }
    let mut ws = [w.as_ptr(); C];
    for (c, p) in ws.iter_mut().enumerate() {
        *p = p.add((j + c) * w.row);
    }
    let mut k = 0;
    while k + U * S::LANES <= n {
        for u in 0..U {
            let at = k + u * S::LANES;
            let mut wide = [s.splat(0.0); C];
            for (wide, w) in wide.iter_mut().zip(&ws) {
                *wide = T::load(s, w.add(at));
            }
            for (acc, x) in acc.iter_mut().zip(&xs) {
                let x = s.load_f32(x.add(at));
                for (acc, &w) in acc.iter_mut().zip(&wide) {
                    acc[u] = s.fma(x, w, acc[u]);
                }
            }
        }
        k += U * S::LANES;
    }
    while k < n {
        let left = n - k;
        let mut wide = [s.splat(0.0); C];
        for (wide, w) in wide.iter_mut().zip(&ws) {
            *wide = T::load_upto(s, w.add(k), left);
        }
        for (acc, x) in acc.iter_mut().zip(&xs) {
            let x = f32::load_upto(s, x.add(k), left);
            for (acc, &w) in acc.iter_mut().zip(&wide) {
                acc[0] = s.fma(x, w, acc[0]);
            }
        }
        k += S::LANES;
    }
}
