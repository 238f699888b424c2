//! Each output is a pixel: its bits are copied.

use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::ops::upsample::axis::Axis;
use std::ops::Range;

/// x has `planes` times the rows of the axis.
pub fn resized<T: Element>(x: &RowView<T>, planes: usize, rows: &Axis, columns: &Axis) -> Vec<T> {
    let (height, width) = (rows.taps.len(), columns.taps.len());
    let repeats = columns.repeats();
    // SAFETY: the ranges cover all rows of y without overlap, and each row is written by the kernel that it is given to.
    unsafe {
        alloc::build(planes * height * width, |y: *mut T| {
            let y = Shared::new(y);
            parallel::ranges(planes * height, width, 1, |range| {
                dispatch(Rows {
                    x,
                    y,
                    rows,
                    columns,
                    repeats,
                    range,
                })
            });
        })
    }
}

/// Rows of outputs, of all planes.
struct Rows<'a, T> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    rows: &'a Axis,
    columns: &'a Axis,
    repeats: Option<usize>,
    range: Range<usize>,
}

impl<T: Element> Kernel for Rows<'_, T> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (height, width) = (self.rows.taps.len(), self.columns.taps.len());
        let mut before = None;
        for row in self.range.clone() {
            let (plane, low) = (row / height, self.rows.taps[row % height].low as usize);
            let source = plane * self.rows.input + low;
            // SAFETY: x has a row `source` of as many pixels as the columns' axis has inputs, and y a row of `width`. This
            // range's last row lies before it.
            unsafe {
                let y = self.y.get().add(row * width);
                if before == Some(source) {
                    std::ptr::copy_nonoverlapping(y.sub(width), y, width);
                    continue;
                }
                self.row(self.x.row(source), y);
            }
            before = Some(source);
        }
    }
}

impl<T: Element> Rows<'_, T> {
    /// # Safety
    /// x has as many elements as the columns' axis has inputs, y as many as it has taps.
    #[inline(always)]
    unsafe fn row(&self, x: *const T, y: *mut T) {
        let pixels = self.columns.input;
        // SAFETY: a tap's pixel is one of the inputs, and each pixel stands `repeats` times in y.
        unsafe {
            match self.repeats {
                Some(1) => std::ptr::copy_nonoverlapping(x, y, pixels),
                Some(2) => {
                    for i in 0..pixels {
                        let pixel = *x.add(i);
                        *y.add(2 * i) = pixel;
                        *y.add(2 * i + 1) = pixel;
                    }
                }
                Some(repeats) => {
                    for i in 0..pixels {
                        for k in 0..repeats {
                            *y.add(i * repeats + k) = *x.add(i);
                        }
                    }
                }
                None => {
                    for (i, tap) in self.columns.taps.iter().enumerate() {
                        *y.add(i) = *x.add(tap.low as usize);
                    }
                }
            }
        }
    }
}
