//! Means of four pixels: of two rows, then of two neighbours of the mean row.

use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::rows::{join_rows, Sum};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, scratch};
use crate::ops::upsample::axis::Axis;
use std::ops::Range;

/// x has `planes` times the rows of the axis.
pub fn resized<T: Element>(x: &RowView<T>, planes: usize, rows: &Axis, columns: &Axis) -> Vec<T> {
    let (height, width) = (rows.taps.len(), columns.taps.len());
    let cost = columns.input + 4 * width;
    // SAFETY: the ranges cover all rows of y without overlap, and each row is written by the kernel that it is given to. The
    // scratch memory is the call's own.
    unsafe {
        alloc::build(planes * height * width, |y: *mut T| {
            let y = Shared::new(y);
            parallel::ranges(planes * height, cost, 1, |range| {
                scratch::with([columns.input], |[mean]| {
                    dispatch(Rows {
                        x,
                        y,
                        rows,
                        columns,
                        range,
                        mean,
                    })
                });
            });
        })
    }
}

/// Rows of outputs, of all planes. `mean` has room for a row of x.
struct Rows<'a, T> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    rows: &'a Axis,
    columns: &'a Axis,
    range: Range<usize>,
    mean: *mut f32,
}

impl<T: Element> Kernel for Rows<'_, T> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (height, width) = (self.rows.taps.len(), self.columns.taps.len());
        for row in self.range {
            let tap = self.rows.taps[row % height];
            let first = row / height * self.rows.input;
            let pair = [
                (self.x.row(first + tap.low as usize), tap.low_weight),
                (self.x.row(first + tap.high as usize), tap.high_weight),
            ];
            // SAFETY: x has these rows, of as many pixels as the columns' axis has inputs, and so has `mean`; a row of y has as
            // many as it has taps, each of which names two of the inputs.
            unsafe {
                join_rows::<S, T, Sum>(s, &pair, self.mean, self.columns.input);
                let y = self.y.get().add(row * width);
                for (i, tap) in self.columns.taps.iter().enumerate() {
                    let low = *self.mean.add(tap.low as usize) * tap.low_weight;
                    let high = *self.mean.add(tap.high as usize) * tap.high_weight;
                    y.add(i).write(T::narrow_in(s, low + high));
                }
            }
        }
    }
}
