//! The gradient of maxima. A band of rows of x, in f32 with padding around, gets the gradients of all windows that touch it:
//! first the place of each window's first maximum is found, for a row of windows at a time, then its gradient is added there.

use super::{ByStride, Windows};
use crate::cpu::element::{convert, Element};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, scratch, with_float};
use crate::op::on_cpu::{Args, OpResult};
use crate::ops::pool2d::geometry::Geometry;
use crate::ops::pool2d::{Pool2dParams, NAME};
use std::ops::Range;

/// Elements of a band, at most, unless its windows are large: with its gradients 256 KB, a part of an L2 cache.
const BAND: usize = 32 * 1024;

pub fn backward(g: &Geometry, args: Args) -> OpResult {
    let ((x, xl), (y, yl), (grad, gl)) = (args[0], args[1], args[2]);
    let dx = with_float!(NAME, x, |x: &[T]| {
        let x = RowView::new(x, xl);
        let y = RowView::new(y.as_slice::<T>()?, yl);
        let grad = RowView::new(grad.as_slice::<T>()?, gl);
        Ok(T::wrap(scattered(&x, &y, &grad, g)))
    })?;
    Ok((dx, g.x_shape()))
}

/// The rows of a band, but for its last one. Windows that lie in two bands are looked at twice, so that bands are four times as
/// high as windows at least.
fn band_rows(g: &Geometry) -> usize {
    let height = g.input[0];
    let most = (BAND / g.pitch())
        .max(4 * g.windows.kernel[0].min(height))
        .min(height);
    height.div_ceil(height.div_ceil(most))
}

/// The rows of x in which the windows of a band lie, and the band itself.
fn rows_around(g: &Geometry, band: &Range<usize>) -> Range<usize> {
    let windows = g.windows_over(0, band.start, band.end - 1);
    if windows.is_empty() {
        return band.clone();
    }
    let (first, last) = (g.window(0, windows.start), g.window(0, windows.end - 1));
    band.start.min(first.start)..band.end.max(last.end)
}

fn scattered<T: Element>(
    x: &RowView<T>,
    y: &RowView<T>,
    grad: &RowView<T>,
    g: &Geometry,
) -> Vec<T> {
    let [height, width] = g.input;
    let band = band_rows(g);
    let bands = height.div_ceil(band);
    let Pool2dParams { kernel, stride, .. } = g.windows;
    let most_rows = (band + 2 * (kernel[0] - 1)).min(height);
    let per_row = 4 * width + 2 * kernel[0] * kernel[1] * g.output[1] / stride[0].min(kernel[0]);
    // SAFETY: the bands cover all rows of dx without overlap, and each row is written by the kernel that its band is given to.
    // The scratch memory is the call's own.
    unsafe {
        alloc::build(g.planes() * height * width, |dx: *mut T| {
            let dx = Shared::new(dx);
            parallel::ranges(g.planes() * bands, band * per_row, 1, |range| {
                let pixels = most_rows * g.pitch();
                let lens = [pixels, pixels, g.output[1], g.output[1], g.output[1]];
                scratch::with(lens, |[pixels, sums, max, grads, places]| {
                    for unit in range {
                        let start = unit % bands * band;
                        dispatch(Band {
                            x,
                            y,
                            grad,
                            dx,
                            g,
                            plane: unit / bands,
                            rows: start..height.min(start + band),
                            pixels,
                            sums,
                            max,
                            grads,
                            places: places.cast(),
                        })
                    }
                });
            });
        })
    }
}

/// Some rows of a plane. `pixels` and `sums` have room for [`rows_around`] them, [`Geometry::pitch`] elements each, the others for a row of
/// outputs.
struct Band<'a, T> {
    x: &'a RowView<'a, T>,
    y: &'a RowView<'a, T>,
    grad: &'a RowView<'a, T>,
    dx: Shared<T>,
    g: &'a Geometry,
    plane: usize,
    rows: Range<usize>,
    pixels: *mut f32,
    sums: *mut f32,
    max: *mut f32,
    grads: *mut f32,
    places: *mut u32,
}

impl<T: Element> Kernel for Band<'_, T> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let g = self.g;
        let ([height, width], outputs, pitch) = (g.input, g.output[1], g.pitch());
        let (left, stride) = (g.windows.padding[1], g.windows.stride[1]);
        let around = rows_around(g, &self.rows);
        let at = |row: usize| (row - around.start) * pitch;
        // SAFETY: the memory has the rows `around`, which are rows of the plane; x and dx have `width` columns there, and y
        // and the gradient have `outputs`. A place that `FirstMaximum` finds lies in a window of these rows, in the columns
        // of all windows, which the pitch has.
        unsafe {
            for row in around.clone() {
                let pixels = self.pixels.add(at(row));
                // What is NaN equals no maximum.
                for i in (0..left).chain(left + width..pitch) {
                    pixels.add(i).write(f32::NAN);
                }
                let x = self.x.row(self.plane * height + row);
                convert::<S, T, f32>(s, x, pixels.add(left), width);
            }
            for i in 0..around.len() * pitch {
                self.sums.add(i).write(0.0);
            }
            for o in g.windows_over(0, self.rows.start, self.rows.end - 1) {
                let window = g.window(0, o);
                let row = self.plane * g.output[0] + o;
                convert::<S, T, f32>(s, self.y.row(row), self.max, outputs);
                convert::<S, T, f32>(s, self.grad.row(row), self.grads, outputs);
                let first_maximum = FirstMaximum {
                    pixels: self.pixels.add(at(window.start)),
                    max: self.max,
                    places: self.places,
                    outputs,
                    kernel: [window.len(), g.windows.kernel[1]],
                    pitch,
                    left,
                };
                s.call(ByStride::new(first_maximum, stride));
                let sums = self.sums.add(at(window.start));
                for i in 0..outputs {
                    let place = i * stride + *self.places.add(i) as usize;
                    *sums.add(place) += *self.grads.add(i);
                }
            }
            for row in self.rows.clone() {
                let dx = self.dx.get().add((self.plane * height + row) * width);
                convert::<S, f32, T>(s, self.sums.add(at(row) + left), dx, width);
            }
        }
    }
}

/// Where each window of a row has its first maximum: a distance from the window's first column in its first row, padding
/// included. It is the first pixel where no pixel equals the maximum, which is NaN then. Made by [`Band`] alone, which sees to
/// the lengths: `max` and `places` have `outputs` elements, and `pixels` as many rows as the kernel, `pitch` apart, of
/// (outputs − 1) · stride + columns elements.
struct FirstMaximum {
    pixels: *const f32,
    max: *const f32,
    places: *mut u32,
    outputs: usize,
    kernel: [usize; 2],
    pitch: usize,
    /// Columns of padding.
    left: usize,
}

impl Windows for FirstMaximum {
    /// From the last place of a window to its first, so that the first one that fits stays.
    #[inline(always)]
    unsafe fn run(&self, stride: usize) {
        let ([rows, columns], outputs) = (self.kernel, self.outputs);
        // SAFETY: the indices are below the lengths that the struct says.
        unsafe {
            for o in 0..outputs {
                let first = self.left.saturating_sub(o * stride);
                self.places.add(o).write(first as u32);
            }
            for i in (0..rows).rev() {
                for j in (0..columns).rev() {
                    let place = i * self.pitch + j;
                    for o in 0..outputs {
                        let pixel = *self.pixels.add(place + o * stride);
                        let found = pixel == *self.max.add(o);
                        let before = *self.places.add(o);
                        *self.places.add(o) = if found { place as u32 } else { before };
                    }
                }
            }
        }
    }
}
