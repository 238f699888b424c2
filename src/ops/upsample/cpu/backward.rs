//! The gradient: each row of x adds up the rows of g that it is a part of, then each of its pixels the columns.

use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::rows::{join_rows, Sum, Weighted};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, scratch, with_float};
use crate::op::on_cpu::Arg;
use crate::ops::upsample::axis::Axis;
use crate::ops::upsample::{Upsample, NAME};
use candle_core::{CpuStorage, Result};
use std::ops::Range;

/// The gradient of an x of these dims.
pub fn backward(op: &Upsample, x: &[usize], (grad, l): Arg) -> Result<CpuStorage> {
    let planes = x[0] * x[1];
    let axes = match l.shape().elem_count() {
        // Tables would be as long as a size that nothing else has limited.
        0 => [0, 1].map(|i| Axis::nearest(x[2 + i], 0)),
        _ => op.axes(x),
    };
    with_float!(NAME, grad, |grad: &[T]| {
        let grad = RowView::new(grad, l);
        Ok(T::wrap(collected(&grad, planes, &axes)))
    })
}

/// The outputs that each pixel of an axis is a part of, one pixel behind the other, and its weights in them.
struct Parts {
    outputs: Vec<Range<usize>>,
    /// Where a pixel's weights begin.
    starts: Vec<usize>,
    weights: Vec<f32>,
}

impl Parts {
    fn new(axis: &Axis) -> Self {
        let outputs = axis.outputs();
        let (mut starts, mut weights) = (Vec::new(), Vec::new());
        for (pixel, outputs) in outputs.iter().enumerate() {
            starts.push(weights.len());
            let taps = &axis.taps[outputs.clone()];
            weights.extend(taps.iter().map(|tap| tap.weight_of(pixel)));
        }
        Parts {
            outputs,
            starts,
            weights,
        }
    }

    #[inline(always)]
    fn of(&self, pixel: usize) -> (Range<usize>, &[f32]) {
        let outputs = self.outputs[pixel].clone();
        let weights = &self.weights[self.starts[pixel]..][..outputs.len()];
        (outputs, weights)
    }
}

/// `grad` has `planes` times the taps of the first axis as rows.
fn collected<T: Element>(grad: &RowView<T>, planes: usize, axes: &[Axis; 2]) -> Vec<T> {
    let [height, width] = [0, 1].map(|i| axes[i].input);
    let [down, along] = [0, 1].map(|i| axes[i].taps.len());
    let [rows, columns] = [0, 1].map(|i| Parts::new(&axes[i]));
    // Each row of g is read by the rows that it lies between.
    let cost = 2 * width + 4 * along + along * (2 * down).div_ceil(height);
    // SAFETY: the ranges cover all rows of dx without overlap, and each row is written by the kernel that it is given to. The
    // scratch memory is the call's own.
    unsafe {
        alloc::build(planes * height * width, |dx: *mut T| {
            let dx = Shared::new(dx);
            parallel::ranges(planes * height, cost, 1, |range| {
                let mut weighted = Vec::new();
                scratch::with([along], |[sums]| {
                    dispatch(Collect {
                        grad,
                        dx,
                        size: [height, down, along],
                        rows: &rows,
                        columns: &columns,
                        range,
                        weighted: &mut weighted,
                        sums,
                    })
                });
            });
        })
    }
}

/// Rows of x, of all planes.
struct Collect<'a, T> {
    grad: &'a RowView<'a, T>,
    dx: Shared<T>,
    /// Rows of x and of g, and columns of g, for which `sums` has room.
    size: [usize; 3],
    rows: &'a Parts,
    columns: &'a Parts,
    range: Range<usize>,
    weighted: &'a mut Vec<Weighted<T>>,
    sums: *mut f32,
}

impl<T: Element> Kernel for Collect<'_, T> {
    const WIDE: bool = false;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ([height, down, along], width) = (self.size, self.columns.outputs.len());
        for row in self.range {
            let (outputs, weights) = self.rows.of(row % height);
            self.weighted.clear();
            for (o, &weight) in outputs.zip(weights) {
                let grad = self.grad.row(row / height * down + o);
                self.weighted.push((grad, weight));
            }
            // SAFETY: g has these rows of `along` columns, as `sums`; the outputs of a pixel are some of these, and dx has a row
            // of `width` for each row of x.
            unsafe {
                join_rows::<S, T, Sum>(s, self.weighted, self.sums, along);
                let dx = self.dx.get().add(row * width);
                for pixel in 0..width {
                    let (outputs, weights) = self.columns.of(pixel);
                    let mut sum = 0.0;
                    for (k, &weight) in weights.iter().enumerate() {
                        sum += weight * *self.sums.add(outputs.start + k);
                    }
                    dx.add(pixel).write(T::narrow_in(s, sum));
                }
            }
        }
    }
}
