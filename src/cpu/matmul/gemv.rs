//! Few rows of x against a W whose rows are dense: every element of W is read once and used for all rows of x.
//!
//! bf16 is multiplied by [`pairs`] where the CPU has the instruction, as it is. Everything else is widened to f32.

use super::ahead::Ahead;
use super::matrix::Matrix;
use super::micro::pairs;
use super::narrow::Narrow;
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::{dispatch, prefetch, Kernel, Simd};
use half::{bf16, f16};
use std::any::TypeId;
use std::ops::Range;

/// `x[i]·W[j] [+ u[i]·B[j]] [+ addend[i, j]]`
#[derive(Clone, Copy)]
pub struct Gemv<'a, T> {
    terms: Terms<'a, T>,
    addend: Option<Matrix<'a, T>>,
}

#[derive(Clone, Copy)]
enum Terms<'a, T> {
    /// x and W, u and B: the sums of their products are added up.
    Wide([(Matrix<'a, f32>, Matrix<'a, T>); 2]),
    /// x as it is and W, whose products are made of pairs.
    Paired(Matrix<'a, T>, Matrix<'a, T>),
}

/// Where the results of a product go: result (i, j) to `out[i · row + j · col]`. One of the two strides is 1.
#[derive(Clone, Copy)]
pub struct Output<O> {
    pub out: Shared<O>,
    pub row: usize,
    pub col: usize,
}

impl<'a, T: Element> Gemv<'a, T> {
    /// x, of few rows, and W; u and B, without columns where there are none. The rows of all four are dense.
    pub fn new(
        x: Matrix<'a, f32>,
        w: Matrix<'a, T>,
        low: (Matrix<'a, f32>, Matrix<'a, T>),
        addend: Option<Matrix<'a, T>>,
    ) -> Self {
        for (u, b) in [(x, w), low] {
            assert!(u.cols == b.cols && (u.rows, b.rows) == (x.rows, w.rows));
            assert!(u.has_dense_rows() && b.has_dense_rows());
        }
        assert!(addend.is_none_or(|m| (m.rows, m.cols) == (x.rows, w.rows)));
        let terms = Terms::Wide([(x, w), low]);
        Gemv { terms, addend }
    }

    /// x as it is and W, of a type and a length of rows that [`pairs`] suit on this CPU. The rows of both are dense.
    pub fn paired(x: Matrix<'a, T>, w: Matrix<'a, T>, addend: Option<Matrix<'a, T>>) -> Self {
        assert!(x.cols == w.cols && x.has_dense_rows() && w.has_dense_rows());
        assert!(pairs::suit_this_cpu::<T>(w.cols));
        assert!(addend.is_none_or(|m| (m.rows, m.cols) == (x.rows, w.rows)));
        let terms = Terms::Paired(x, w);
        Gemv { terms, addend }
    }

    /// The number of rows of x.
    #[inline(always)]
    fn rows(&self) -> usize {
        match &self.terms {
            Terms::Wide([(x, _), _]) => x.rows,
            Terms::Paired(x, _) => x.rows,
        }
    }

    /// Writes the activated results.
    ///
    /// # Safety
    /// `to` has room for every (i, j), and nothing else touches it.
    pub unsafe fn run<O: Element>(&self, act: Act, to: Output<O>) {
        let (w, rank) = match &self.terms {
            Terms::Wide([(_, w), (_, b)]) => (w, b.cols),
            Terms::Paired(_, w) => (w, 0),
        };
        let cost = (2 * w.cols + rank + 16) * self.rows().div_ceil(4);
        parallel::ranges(w.rows, cost, OUTPUTS, |outputs| match act {
            Act::Identity => dispatch(Share {
                gemv: self,
                outputs,
                to: Rounded::new(to),
            }),
            // SAFETY: the caller has room for every output, and no other range has these.
            _ => unsafe { self.activated(outputs, act, to) },
        });
    }

    /// The sums are gathered beside the output in f32, activated, and then rounded to the output's type.
    ///
    /// # Safety
    /// As for [`Gemv::run`], and no other thread writes these outputs.
    unsafe fn activated<O: Element>(&self, outputs: Range<usize>, act: Act, to: Output<O>) {
        let (few, many, start) = (self.rows(), outputs.len(), outputs.start);
        let by_row = to.col == 1;
        let (rows, width) = if by_row { (few, many) } else { (many, few) };
        scratch::with([few * many], |[sums]| {
            let part = Gemv {
                terms: match self.terms {
                    Terms::Wide(terms) => {
                        Terms::Wide(terms.map(|(x, w)| (x, w.rows(outputs.clone()))))
                    }
                    Terms::Paired(x, w) => Terms::Paired(x, w.rows(outputs.clone())),
                },
                addend: self.addend.map(|m| m.t().rows(outputs).t()),
            };
            dispatch(Share {
                gemv: &part,
                outputs: 0..many,
                to: Rounded::new(Output {
                    out: Shared::new(sums),
                    row: if by_row { many } else { 1 },
                    col: if by_row { 1 } else { few },
                }),
            });
            let stride = if by_row { to.row } else { to.col };
            // SAFETY: the scratch has few · many sums, all of which `Share` has written. They go to the outputs from `start`
            // on, for which the caller has room, and nothing else touches either.
            unsafe {
                let out = to.out.get().add(start * to.col);
                Narrow::<T, O>::new((sums, rows, width), None, out, stride).run(act)
            }
        })
    }
}

/// An [`Output`] of any element type. The type is a value, so that the product is compiled once for all of them.
#[derive(Clone, Copy)]
struct Rounded {
    out: Shared<u8>,
    row: usize,
    col: usize,
    to: RoundTo,
}

#[derive(Clone, Copy)]
enum RoundTo {
    F32,
    F16,
    Bf16,
}

impl Rounded {
    fn new<O: Element>(to: Output<O>) -> Self {
        let element = TypeId::of::<O>();
        Rounded {
            out: Shared::new(to.out.get().cast()),
            row: to.row,
            col: to.col,
            to: match () {
                _ if element == TypeId::of::<f16>() => RoundTo::F16,
                _ if element == TypeId::of::<bf16>() => RoundTo::Bf16,
                _ => RoundTo::F32,
            },
        }
    }

    /// Rounds result (i, j) and writes it to its place.
    ///
    /// # Safety
    /// The output has room for (i, j), and nothing else touches it.
    #[inline(always)]
    unsafe fn write<S: Simd>(self, s: S, i: usize, j: usize, result: f32) {
        let (out, at) = (self.out.get(), i * self.row + j * self.col);
        // SAFETY: `out` is the output's pointer, of the type that `to` names, and has room for element `at`.
        unsafe {
            match self.to {
                RoundTo::F32 => *out.cast::<f32>().add(at) = result,
                RoundTo::F16 => *out.cast::<f16>().add(at) = f16::narrow_in(s, result),
                RoundTo::Bf16 => *out.cast::<bf16>().add(at) = bf16::narrow_in(s, result),
            }
        }
    }
}

/// Ranges begin at multiples of this many outputs, a multiple of the three or four that are computed side by side.
const OUTPUTS: usize = 12;

/// Some outputs of all rows, by one thread. It is made in this file alone, of outputs that `gemv` has, for which `to` has
/// room and which nothing else touches.
struct Share<'a, T> {
    gemv: &'a Gemv<'a, T>,
    outputs: Range<usize>,
    to: Rounded,
}

impl<T: Element> Kernel for Share<'_, T> {
    /// Eight accumulators or more (rows × outputs × unrolled columns) hide the latency of FMA, and with twelve there are
    /// fewer loads than multiplications. More would not fit sixteen registers.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.gemv.rows() {
            0 => {}
            1 => self.outputs::<S, 1, 4, 2>(s),
            2 => self.outputs::<S, 2, 4, 1>(s),
            _ => self.outputs::<S, 4, 3, 1>(s),
        }
    }
}

impl<T: Element> Share<'_, T> {
    #[inline(always)]
    fn outputs<S: Simd, const R: usize, const C: usize, const U: usize>(&self, s: S) {
        let rows = self.gemv.rows();
        // SAFETY: i < rows, x's, and the C outputs from j on, or one, are among this share's.
        unsafe {
            let mut j = self.outputs.start;
            while j + C <= self.outputs.end {
                for i in (0..rows).step_by(R) {
                    self.block::<S, R, C, U>(s, i, j);
                }
                j += C;
            }
            while j < self.outputs.end {
                for i in (0..rows).step_by(R) {
                    self.block::<S, R, 1, U>(s, i, j);
                }
                j += 1;
            }
        }
    }

    /// R rows of x from row `i` on (the last one again where there are fewer) against C rows of W.
    ///
    /// # Safety
    /// x has row `i`, and the outputs from `j` to `j + C` are among this share's.
    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const C: usize, const U: usize>(
        &self,
        s: S,
        i: usize,
        j: usize,
    ) {
        let terms = match &self.gemv.terms {
            Terms::Wide(terms) => terms,
            Terms::Paired(x, w) => {
                // SAFETY: x has row i, and the outputs are this share's. `paired` has asked whether pairs suit this CPU, whose best
                // instruction set is this one.
                return unsafe { self.pairs::<S, R, C>(s, (x, i), (w, j)) };
            }
        };
        let mut acc = [[[s.splat(0.0); U]; C]; R];
        // A loop whose count the compiler doesn't know: else it would compile `accumulate` twice.
        for (x, w) in &terms[..if terms[1].1.cols > 0 { 2 } else { 1 }] {
            // SAFETY: both x have row i, and both W the rows of this share. `Gemv::new` checked the columns.
            unsafe { accumulate(s, (x, i), (w, j), &mut acc) };
        }
        for (i, acc) in (i..self.gemv.rows()).zip(&acc) {
            for (c, acc) in acc.iter().enumerate() {
                let joined = acc[1..].iter().fold(acc[0], |a, &b| s.add(a, b));
                // SAFETY: x has row i, and the output is one of this share's.
                unsafe { self.write(s, i, j + c, s.reduce_add(joined)) };
            }
        }
    }

    /// As [`Share::block`], by pairs.
    ///
    /// # Safety
    /// x has row `i`, the outputs from `j` to `j + C` are among this share's, and pairs suit x and W on this CPU.
    #[inline(always)]
    unsafe fn pairs<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        (x, i): (&Matrix<T>, usize),
        (w, j): (&Matrix<T>, usize),
    ) {
        // So that nothing is compiled for instruction sets that have no pairs.
        assert!(pairs::fit::<S>(), "pairs of another instruction set");
        let mut xs = [x.as_ptr(); R];
        for (r, p) in xs.iter_mut().enumerate() {
            *p = p.wrapping_add((i + r).min(x.rows - 1) * x.row);
        }
        // SAFETY: x has row i, and W the C rows from j on, of as many columns, and the caller promises that pairs suit.
        let sums = unsafe { pairs::dot::<T, R, C>(xs, rows_from(w, j), w.cols, w.row) };
        for (i, sums) in (i..x.rows).zip(sums) {
            for (c, sum) in sums.into_iter().enumerate() {
                // SAFETY: x has row i, and the output is one of this share's.
                unsafe { self.write(s, i, j + c, sum) };
            }
        }
    }

    /// # Safety
    /// x has row `i`, and output `j` is one of this share's.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, i: usize, j: usize, sum: f32) {
        let addend = self.gemv.addend;
        let addend = addend.map_or(0.0, |m| m.data[i * m.row + j * m.col].widen_in(s));
        // SAFETY: `to` has room for (i, j), which the caller answers for.
        unsafe { self.to.write(s, i, j, sum + addend) };
    }
}

/// The C rows of W from `j` on.
#[inline(always)]
fn rows_from<T: Element, const C: usize>(w: &Matrix<T>, j: usize) -> [*const T; C] {
    let mut rows = [w.as_ptr(); C];
    for (c, p) in rows.iter_mut().enumerate() {
        *p = p.wrapping_add((j + c) * w.row);
    }
    rows
}

/// Adds the products of x's rows from `i` and W's rows from `j` on.
///
/// # Safety
/// x has row `i` and W the C rows from `j` on. Their rows are dense and equally long.
#[inline(always)]
unsafe fn accumulate<S: Simd, T: Element, const R: usize, const C: usize, const U: usize>(
    s: S,
    (x, i): (&Matrix<f32>, usize),
    (w, j): (&Matrix<T>, usize),
    acc: &mut [[[S::F; U]; C]; R],
) {
    let n = w.cols;
    let mut xs = [x.as_ptr(); R];
    for (r, p) in xs.iter_mut().enumerate() {
        *p = p.wrapping_add((i + r).min(x.rows - 1) * x.row);
    }
    let ws = rows_from::<T, C>(w, j);
    let ahead = match size_of::<T>() {
        4 => Ahead::in_rows::<T>(n),
        _ => Ahead::across_rows::<T>(n, w.row, C),
    };
    let mut k = 0;
    // SAFETY: the pointers are to rows that x and W have, of n neighbouring elements each. Whole vectors are loaded while
    // U of them are left, then at most as many elements as are left.
    unsafe {
        while k + U * S::LANES <= n {
            for u in 0..U {
                let at = k + u * S::LANES;
                let next = ahead.of(at);
                let mut wide = [s.splat(0.0); C];
                for (wide, w) in wide.iter_mut().zip(&ws) {
                    prefetch(w.wrapping_add(next));
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
}
