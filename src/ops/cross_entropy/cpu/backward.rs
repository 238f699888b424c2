//! The gradient of the logits: `g · (scale · exp(x − max) − spread · w[c] − hit · [c = t])`, element by element.

use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::ops::cross_entropy::FACTORS;
use crate::ops::targets::IGNORED;
use std::ops::Range;

/// Columns that a thread writes at a time.
const BLOCK: usize = 16 * 1024;

/// What the gradients of all rows are made of, beside the logits.
pub(crate) struct RowGradients<'a, T> {
    /// [`FACTORS`] of each row.
    factors: &'a [u32],
    /// One for all rows, or one for each.
    grad: &'a [T],
    /// For each column, where labels are smoothed by them.
    weight: Option<&'a [T]>,
    /// The logits are `cap · tanh(v / cap)`, and the gradient is that of v: the slope is `1 − (x / cap)²`.
    cap: Option<f32>,
    rows: usize,
    cols: usize,
}

impl<'a, T: Element> RowGradients<'a, T> {
    pub(crate) fn new(
        factors: &'a [u32],
        grad: &'a [T],
        weight: Option<&'a [T]>,
        [rows, cols]: [usize; 2],
    ) -> Self {
        assert_eq!(factors.len(), rows * FACTORS);
        assert!(rows == 0 || grad.len() == 1 || grad.len() == rows);
        assert!(weight.is_none_or(|w| w.len() == cols));
        RowGradients {
            factors,
            grad,
            weight,
            cap: None,
            rows,
            cols,
        }
    }

    pub(crate) fn capped(self, cap: Option<f32>) -> Self {
        RowGradients { cap, ..self }
    }

    /// The gradient of logits x, which have the rows and columns.
    pub(crate) fn run(&self, x: &RowView<T>) -> Vec<T> {
        // SAFETY: x has the rows, and every element of each is written.
        unsafe { alloc::build(self.rows * self.cols, |dx| self.write(x, Shared::new(dx))) }
    }

    /// Replaces contiguous logits by their gradient.
    pub(crate) fn overwrite(&self, x: &mut [T]) {
        assert_eq!(x.len(), self.rows * self.cols);
        let dx = Shared::new(x.as_mut_ptr());
        // SAFETY: x has the rows, and is used through the pointer alone until they are written.
        unsafe { self.write(&RowView::from_raw(dx.get(), self.cols), dx) }
    }

    /// # Safety
    /// `x` and `dx` have the rows and columns. They may be the same.
    unsafe fn write(&self, x: &RowView<T>, dx: Shared<T>) {
        let (blocks, len) = (self.cols.div_ceil(BLOCK), self.cols.min(BLOCK));
        parallel::ranges(self.rows * blocks, len * parallel::EXP, 1, |units| {
            // SAFETY: the caller's promise; the units are apart, and no other range has these.
            unsafe { dispatch(Blocks::new(self, (x, dx), units, blocks)) }
        });
    }
}

/// Some blocks of columns.
struct Blocks<'a, T> {
    of: &'a RowGradients<'a, T>,
    x: &'a RowView<'a, T>,
    dx: Shared<T>,
    units: Range<usize>,
    /// Blocks of a row.
    blocks: usize,
}

impl<'a, T: Element> Blocks<'a, T> {
    /// # Safety
    /// As for [`RowGradients::write`]; no other thread is given these units.
    unsafe fn new(
        of: &'a RowGradients<'a, T>,
        (x, dx): (&'a RowView<'a, T>, Shared<T>),
        units: Range<usize>,
        blocks: usize,
    ) -> Self {
        Blocks {
            of,
            x,
            dx,
            units,
            blocks,
        }
    }
}

impl<T: Element> Kernel for Blocks<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let of = self.of;
        for unit in self.units {
            let (row, start) = (unit / self.blocks, unit % self.blocks * BLOCK);
            let n = BLOCK.min(of.cols - start);
            let [max, scale, hit, spread, target] =
                [0, 1, 2, 3, 4].map(|i| of.factors[row * FACTORS + i]);
            let [max, scale, hit, spread] = [max, scale, hit, spread].map(f32::from_bits);
            let grad = of.grad[if of.grad.len() == 1 { 0 } else { row }].widen_in(s);
            // SAFETY: x and dx have this row, and these columns of it, as has the weight; no other thread has them. The
            // logit of the target is read before it may be overwritten.
            unsafe {
                let x = self.x.row(row).add(start);
                let dx = self.dx.get().add(row * of.cols + start);
                if target == IGNORED {
                    dx.write_bytes(0, n);
                    continue;
                }
                let target = (target as usize).wrapping_sub(start);
                let logit = if target < n {
                    (*x.add(target)).widen_in(s)
                } else {
                    0.0
                };
                let row = Row {
                    max,
                    scale: scale * grad,
                    spread: spread * grad,
                    cap: of.cap.map(|cap| 1.0 / cap),
                };
                match of.weight {
                    Some(weight) => row.write(s, x, Some(weight.as_ptr().add(start)), dx, n),
                    None => row.write(s, x, None, dx, n),
                }
                if target < n {
                    let weight = of.weight.map_or(1.0, |w| w[start + target].widen_in(s));
                    let mut d = row.scale * (logit - max).exp() - row.spread * weight - hit * grad;
                    if let Some(inverse) = row.cap {
                        d *= 1.0 - (logit * inverse) * (logit * inverse);
                    }
                    dx.add(target).write(T::narrow_in(s, d));
                }
            }
        }
    }
}

/// The factors of a row, times the gradient of its loss.
#[derive(Clone, Copy)]
struct Row {
    max: f32,
    scale: f32,
    spread: f32,
    /// 1 / cap
    cap: Option<f32>,
}

impl Row {
    /// # Safety
    /// `x` and `weight` are valid for reads, `dx` for writes of `n` elements. `x` and `dx` may be the same.
    #[inline(always)]
    unsafe fn write<S: Simd, T: Element>(
        self,
        s: S,
        x: *const T,
        weight: Option<*const T>,
        dx: *mut T,
        n: usize,
    ) {
        let mut i = 0;
        // SAFETY: i stays below n, and all loads and stores are of the elements that are left, or of a vector of them.
        unsafe {
            while i < n {
                let left = n - i;
                let w = match weight {
                    Some(w) => T::load_upto(s, w.add(i), left),
                    None => s.splat(1.0),
                };
                let d = self.gradient(s, T::load_upto(s, x.add(i), left), w);
                T::store_upto(s, dx.add(i), left, d);
                i += S::LANES;
            }
        }
    }

    #[inline(always)]
    fn gradient<S: Simd>(self, s: S, x: S::F, weight: S::F) -> S::F {
        let e = math::exp_nonpositive(s, s.sub(x, s.splat(self.max)));
        let d = s.fnma(weight, s.splat(self.spread), s.mul(e, s.splat(self.scale)));
        match self.cap {
            Some(inverse) => {
                let y = s.mul(x, s.splat(inverse));
                s.mul(d, s.fnma(y, y, s.splat(1.0)))
            }
            None => d,
        }
    }
}
