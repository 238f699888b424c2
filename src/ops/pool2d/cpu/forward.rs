//! Outputs, row by row.

use super::{ByStride, Divisors, Windows};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::rows::{join_rows, Join, Max, Sum, Weighted};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, scratch, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use crate::ops::pool2d::geometry::Geometry;
use crate::ops::pool2d::{Kind, NAME};
use std::marker::PhantomData;
use std::ops::Range;

pub fn forward(kind: Kind, g: &Geometry, (x, l): Arg) -> OpResult {
    let y = with_float!(NAME, x, |x: &[T]| {
        let x = RowView::new(x, l);
        let divisors = Divisors::new(g);
        Ok(T::wrap(match kind {
            Kind::Max => pooled::<T, Max>(&x, g, None),
            Kind::Avg => pooled::<T, Sum>(&x, g, Some(&divisors)),
        }))
    })?;
    Ok((y, g.y_shape()))
}

/// x has the rows of the geometry.
fn pooled<T: Element, J: Join>(
    x: &RowView<T>,
    g: &Geometry,
    divisors: Option<&Divisors>,
) -> Vec<T> {
    let [height, width] = g.output;
    let cost = g.windows.kernel[0] * g.input[1] + g.windows.kernel[1] * width;
    // SAFETY: the ranges cover all rows of y without overlap, and each row is written by the kernel that it is given to. The
    // scratch memory is the call's own.
    unsafe {
        alloc::build(g.planes() * height * width, |y: *mut T| {
            let y = Shared::new(y);
            parallel::ranges(g.planes() * height, cost, 1, |range| {
                let mut rows = Vec::new();
                scratch::with([g.padded_width(), width], |[joined, out]| {
                    dispatch(Forward::<T, J> {
                        x,
                        y,
                        g,
                        divisors,
                        range,
                        rows: &mut rows,
                        joined,
                        out,
                        join: PhantomData,
                    })
                });
            });
        })
    }
}

/// Rows of outputs, of all planes. `joined` has room for the padded width, `out` for a row of outputs.
struct Forward<'a, T, J> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    g: &'a Geometry,
    divisors: Option<&'a Divisors>,
    range: Range<usize>,
    rows: &'a mut Vec<Weighted<T>>,
    joined: *mut f32,
    out: *mut f32,
    join: PhantomData<J>,
}

impl<T: Element, J: Join> Kernel for Forward<'_, T, J> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let g = self.g;
        let ([height, width], left, padded) = (g.output, g.windows.padding[1], g.padded_width());
        // The kernel is at least twice the padding, so that the left one is in the padded width.
        let used = g.input[1].min(padded - left);
        // SAFETY: `joined` has the padded width, which has `left` columns of padding, then `used` columns of x. What is
        // behind them is padding too. `out` and a row of y have `width` elements; x has a row for each row of a window,
        // `used` of whose columns are read. The along kernel reads (width − 1) · stride + kernel elements, the padded width.
        unsafe {
            for i in (0..left).chain(left + used..padded) {
                self.joined.add(i).write(J::START);
            }
            for row in self.range {
                let window = g.window(0, row % height);
                let first = row / height * g.input[0];
                self.rows.clear();
                for i in window.clone() {
                    self.rows.push((self.x.row(first + i), 1.0));
                }
                join_rows::<S, T, J>(s, self.rows, self.joined.add(left), used);
                let along = Along::<J> {
                    joined: self.joined,
                    out: self.out,
                    outputs: width,
                    kernel: g.windows.kernel[1],
                    join: PhantomData,
                };
                s.call(ByStride::new(along, g.windows.stride[1]));
                let y = self.y.get().add(row * width);
                match self.divisors {
                    Some(divisors) => {
                        let factor = divisors.of_rows(window.len());
                        finish_means(s, self.out, &divisors.columns, factor, y);
                    }
                    None => finish_maxima(s, self.out, self.rows[0].0, g, y),
                }
            }
        }
    }
}

/// y = out · columns · factor
///
/// # Safety
/// `out` and y have as many elements as there are columns.
#[inline(always)]
unsafe fn finish_means<S: Simd, T: Element>(
    s: S,
    out: *const f32,
    columns: &[f32],
    factor: f32,
    y: *mut T,
) {
    let n = columns.len();
    let factor = s.splat(factor);
    let mut i = 0;
    while i < n {
        // SAFETY: n − i elements are left of each.
        unsafe {
            let by = s.mul(f32::load_upto(s, columns.as_ptr().add(i), n - i), factor);
            let mean = s.mul(f32::load_upto(s, out.add(i), n - i), by);
            T::store_upto(s, y.add(i), n - i, mean);
        }
        i += S::LANES;
    }
}

/// y = out, but NaN where the first pixel of a window is. `first` is the first row of the windows.
///
/// # Safety
/// `out` and y have a row of outputs, `first` has one of x.
#[inline(always)]
unsafe fn finish_maxima<S: Simd, T: Element>(
    s: S,
    out: *const f32,
    first: *const T,
    g: &Geometry,
    y: *mut T,
) {
    let ([_, width], [_, pixels]) = (g.output, g.input);
    let (mut nans, mut i) = (s.splat(0.0), 0);
    // SAFETY: the rows have `width` outputs and as many pixels as x is wide; a window begins at one of these.
    unsafe {
        while i < width {
            let max = f32::load_upto(s, out.add(i), width - i);
            T::store_upto(s, y.add(i), width - i, max);
            i += S::LANES;
        }
        i = 0;
        while i < pixels {
            let x = T::load_upto(s, first.add(i), pixels - i);
            nans = s.select(s.eq(x, x), nans, s.splat(1.0));
            i += S::LANES;
        }
        if s.reduce_max(nans) > 0.0 {
            for o in 0..width {
                let pixel = *first.add(g.window(1, o).start);
                let value = pixel.widen_in(s);
                if value.is_nan() {
                    y.add(o).write(pixel);
                }
            }
        }
    }
}

/// Joins `kernel` neighbours of `joined` for each output: `joined` has (outputs − 1) · stride + kernel elements, `out` has
/// `outputs`.
struct Along<J> {
    joined: *const f32,
    out: *mut f32,
    outputs: usize,
    kernel: usize,
    join: PhantomData<J>,
}

impl<J: Join> Windows for Along<J> {
    #[inline(always)]
    unsafe fn run(&self, stride: usize) {
        // SAFETY: the indices are below the lengths that the struct says.
        unsafe {
            if self.outputs < 8 {
                return self.one_by_one(stride);
            }
            for o in 0..self.outputs {
                *self.out.add(o) = *self.joined.add(o * stride);
            }
            for j in 1..self.kernel {
                for o in 0..self.outputs {
                    let joined = *self.joined.add(o * stride + j);
                    *self.out.add(o) = J::join_one(*self.out.add(o), joined);
                }
            }
        }
    }
}

impl<J: Join> Along<J> {
    /// For few outputs.
    ///
    /// # Safety
    /// As for [`Windows::run`].
    #[inline(always)]
    unsafe fn one_by_one(&self, stride: usize) {
        for o in 0..self.outputs {
            // SAFETY: the indices are below the lengths that the struct says.
            unsafe {
                let first = self.joined.add(o * stride);
                let mut value = *first;
                for j in 1..self.kernel {
                    value = J::join_one(value, *first.add(j));
                }
                *self.out.add(o) = value;
            }
        }
    }
}
