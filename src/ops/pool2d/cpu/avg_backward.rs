//! The gradient of means: each row of x adds up the rows of g whose windows it lies in, then spreads the sum along the columns.
//! Rows that lie in the same windows are the same.

use super::{ByStride, Divisors, Windows};
use crate::cpu::element::{convert, Element};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::rows::{join_rows, Sum, Weighted};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, scratch, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use crate::ops::pool2d::geometry::Geometry;
use crate::ops::pool2d::{Pool2dParams, NAME};
use std::ops::Range;

pub fn backward(g: &Geometry, (grad, l): Arg) -> OpResult {
    let dx = with_float!(NAME, grad, |grad: &[T]| {
        let grad = RowView::new(grad, l);
        Ok(T::wrap(spread(&grad, g, &Divisors::new(g))))
    })?;
    Ok((dx, g.x_shape()))
}

fn spread<T: Element>(grad: &RowView<T>, g: &Geometry, divisors: &Divisors) -> Vec<T> {
    let [height, width] = g.input;
    let Pool2dParams { kernel, stride, .. } = g.windows;
    let cost = 2 * width + (kernel[0].div_ceil(stride[0]) + 2 * kernel[1]) * g.output[1];
    // SAFETY: the ranges cover all rows of dx without overlap, and each row is written by the kernel that it is given to. The
    // scratch memory is the call's own.
    unsafe {
        alloc::build(g.planes() * height * width, |dx: *mut T| {
            let dx = Shared::new(dx);
            parallel::ranges(g.planes() * height, cost, 1, |range| {
                let mut rows = Vec::new();
                scratch::with([g.output[1], g.pitch()], |[sums, padded]| {
                    dispatch(Spread {
                        grad,
                        dx,
                        g,
                        divisors,
                        range,
                        rows: &mut rows,
                        sums,
                        padded,
                    })
                });
            });
        })
    }
}

/// Rows of x, of all planes. `sums` has room for a row of outputs, `padded` for [`Geometry::pitch`] columns.
struct Spread<'a, T> {
    grad: &'a RowView<'a, T>,
    dx: Shared<T>,
    g: &'a Geometry,
    divisors: &'a Divisors,
    range: Range<usize>,
    rows: &'a mut Vec<Weighted<T>>,
    sums: *mut f32,
    padded: *mut f32,
}

impl<T: Element> Kernel for Spread<'_, T> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let g = self.g;
        let ([height, width], outputs) = (g.input, g.output[1]);
        let mut before = None;
        for row in self.range {
            let windows = g.windows_over(0, row % height, row % height);
            let same = Some((row / height, windows.clone()));
            if before == same {
                // SAFETY: dx has a row of `width` for each row of x; this range's last one lies before this one.
                unsafe {
                    let dx = self.dx.get().add(row * width);
                    std::ptr::copy_nonoverlapping(dx.sub(width), dx, width);
                }
                continue;
            }
            before = same;
            self.rows.clear();
            for o in windows {
                let factor = self.divisors.of_rows(g.window(0, o).len());
                let grad = self.grad.row(row / height * g.output[0] + o);
                self.rows.push((grad, factor));
            }
            // SAFETY: the gradient has `outputs` columns, as `sums` and the divisors; `padded` has the columns of all windows,
            // behind whose padding those of x begin. dx has a row of `width` for each row of x.
            unsafe {
                join_rows::<S, T, Sum>(s, self.rows, self.sums, outputs);
                for i in 0..g.pitch() {
                    self.padded.add(i).write(0.0);
                }
                let along = SpreadAlong {
                    sums: self.sums,
                    factors: self.divisors.columns.as_ptr(),
                    padded: self.padded,
                    outputs,
                    kernel: g.windows.kernel[1],
                };
                s.call(ByStride::new(along, g.windows.stride[1]));
                let from = self.padded.add(g.windows.padding[1]);
                convert::<S, f32, T>(s, from, self.dx.get().add(row * width), width);
            }
        }
    }
}

/// Adds sums · factors of each output to the `kernel` columns of its window. Made by [`Spread`] alone, which sees to the lengths:
/// `sums` and `factors` have `outputs` elements, `padded` has (outputs − 1) · stride + kernel.
struct SpreadAlong {
    sums: *mut f32,
    factors: *const f32,
    padded: *mut f32,
    outputs: usize,
    kernel: usize,
}

impl Windows for SpreadAlong {
    /// Windows from left to right take turns with the columns of a window from right to left, so that a column of x gets the
    /// windows' parts in their order.
    #[inline(always)]
    unsafe fn run(&self, stride: usize) {
        // SAFETY: the indices are below the lengths that the struct says.
        unsafe {
            for o in 0..self.outputs {
                *self.sums.add(o) *= *self.factors.add(o);
            }
            if self.outputs < 8 {
                return self.one_by_one(stride);
            }
            for j in (0..self.kernel).rev() {
                for o in 0..self.outputs {
                    *self.padded.add(o * stride + j) += *self.sums.add(o);
                }
            }
        }
    }
}

impl SpreadAlong {
    /// For few outputs.
    ///
    /// # Safety
    /// As for [`Windows::run`].
    #[inline(always)]
    unsafe fn one_by_one(&self, stride: usize) {
        for o in 0..self.outputs {
            for j in 0..self.kernel {
                // SAFETY: the indices are below the lengths that the struct says.
                unsafe { *self.padded.add(o * stride + j) += *self.sums.add(o) };
            }
        }
    }
}
