//! The gradient of the weight: the correlation of x with the gradient of y, summed over positions and images.
//!
//! ```text
//!     dw[c_out, (c_in, tap)] = Σ over images and positions p of  g[c_out, p] · x[c_in, input of the tap at p]
//! ```
//!
//! x is packed as for the forward (see polyphase.rs), so that a tap reads consecutive elements for consecutive positions. The
//! gradient is packed with rows of the same length:
//!
//! ```text
//!     x, one phase            g
//!     ┌───────────────┐       ┌───────────┬───┐
//!     │ output + halo │       │ output    │ 0 │     pitch = output + halo columns for both
//!     │ columns       │       │ columns   │ 0 │
//!     └───────────────┘       └───────────┴───┘
//! ```
//!
//! Then the sum over all positions is one dot product of two long runs. The zeros of g are multiplied with pixels, which
//! changes no sum as long as the pixels are finite.

mod panel;

use super::image::Image;
use super::polyphase::PolyphaseLayout;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, MAX_LANES};
use crate::ops::conv2d::shape::Conv2dShape;
use panel::{Panel, ROWS};
use std::ops::Range;

/// Packed elements of the images that are worked on at a time, at most (4 MB), unless a single image has more.
const MAX_PACKED: usize = 1 << 20;

pub struct WeightGrad<'a, T> {
    pub shape: Conv2dShape,
    pub x: Image<'a, T>,
    pub g: Image<'a, T>,
}

/// A few images, packed.
struct Packed {
    images: usize,
    x: Vec<f32>,
    g: Vec<f32>,
}

/// How a channel of x and of g is packed.
#[derive(Clone, Copy)]
struct Layouts {
    x: PolyphaseLayout,
    g: PolyphaseLayout,
}

impl<T: Element> WeightGrad<'_, T> {
    /// The gradient `[groups · c_out, c_in, ..kernel]`.
    pub fn run(&self) -> Vec<f32> {
        let shape = &self.shape;
        let layouts = self.layouts();
        let mut sums = vec![0.0; shape.w_shape().elem_count()];
        let (x_plane, g_plane) = (layouts.x.plane(), layouts.g.plane());
        let image = shape.groups * (shape.c_in * x_plane + shape.c_out * g_plane);
        let images = (MAX_PACKED / image.max(1)).clamp(1, shape.batch.max(1));
        let mut infinite = false;
        if !sums.is_empty() && g_plane > 0 {
            for first in (0..shape.batch).step_by(images) {
                let images = first..shape.batch.min(first + images);
                let packed = self.pack(images, layouts);
                self.add(&packed, layouts, &mut sums);
                let finite = |x: &[f32]| x.iter().all(|x| x.is_finite());
                infinite |= !finite(&sums) && !finite(&packed.x);
            }
        }
        // A zero between the packed rows of g times an infinite pixel is NaN. The sums that are not finite are computed again
        // without the zeros.
        if infinite {
            self.repair(&mut sums);
        }
        sums
    }

    fn layouts(&self) -> Layouts {
        let Conv2dShape { stride, output, .. } = self.shape;
        let halo = self.shape.halo();
        let cols = output[1] + halo[1];
        let rows = output[0] + halo[0];
        Layouts {
            x: PolyphaseLayout { stride, rows, cols },
            g: PolyphaseLayout {
                stride: [1, 1],
                rows: output[0],
                cols,
            },
        }
    }

    fn pack(&self, images: Range<usize>, layouts: Layouts) -> Packed {
        let shape = &self.shape;
        let origin = shape.padding.map(|p| -(p as isize));
        let [c_in, c_out] = [shape.c_in, shape.c_out].map(|n| shape.groups * n);
        Packed {
            images: images.len(),
            x: pack(self.x, &images, c_in, layouts.x, origin),
            g: pack(self.g, &images, c_out, layouts.g, [0, 0]),
        }
    }

    /// Adds the products of some images, which are packed, to the sums.
    fn add(&self, packed: &Packed, layouts: Layouts, sums: &mut [f32]) {
        let shape = &self.shape;
        let (x_plane, g_plane) = (layouts.x.plane(), layouts.g.plane());
        let taps = shape.kernel[0] * shape.kernel[1];
        let offsets: Vec<usize> = (0..shape.c_in * taps)
            .map(|k| {
                let (channel, tap) = (k / taps, k % taps);
                let row = tap / shape.kernel[1] * shape.dilation[0];
                let col = tap % shape.kernel[1] * shape.dilation[1];
                channel * x_plane + layouts.x.at(row, col)
            })
            .collect();
        let panels = shape.c_out.div_ceil(ROWS);
        let positions = (shape.output[0] - 1) * layouts.x.cols + shape.output[1];
        // An FMA is an eighth of the unit of `parallel`; ending a sum takes as long as 32 of them.
        let sums_of_panel = ROWS.min(shape.c_out) * offsets.len() * packed.images;
        let cost = sums_of_panel.saturating_mul(positions + 32) / 8;
        let of_groups = sums.chunks_mut(shape.c_out * offsets.len());
        let mut of_panels: Vec<_> = of_groups
            .flat_map(|sums| sums.chunks_mut(ROWS * offsets.len()))
            .enumerate()
            .collect();
        parallel::each(&mut of_panels, cost, |(panel, sums)| {
            let (group, first) = (*panel / panels, *panel % panels * ROWS);
            let output = group * shape.c_out + first;
            dispatch(Panel {
                g: &packed.g[output * g_plane..],
                g_row: g_plane,
                g_image: shape.groups * shape.c_out * g_plane,
                x: &packed.x[group * shape.c_in * x_plane..],
                offsets: &offsets,
                x_image: shape.groups * shape.c_in * x_plane,
                images: packed.images,
                positions,
                sums,
            });
        });
    }

    /// Computes every sum that is not finite again, from the terms that it has by definition.
    fn repair(&self, sums: &mut [f32]) {
        let Conv2dShape { batch, output, .. } = self.shape;
        let cost = (16 * batch * output[0]).saturating_mul(output[1]);
        let sums = sums.iter_mut().enumerate();
        let mut not_finite: Vec<_> = sums.filter(|(_, sum)| !sum.is_finite()).collect();
        parallel::each(&mut not_finite, cost, |(i, sum)| **sum = self.plain_sum(*i));
    }

    /// Element i of the gradient, term by term.
    fn plain_sum(&self, i: usize) -> f32 {
        let shape = &self.shape;
        let taps = shape.kernel[0] * shape.kernel[1];
        let (output, channel, tap) = (i / taps / shape.c_in, i / taps % shape.c_in, i % taps);
        let channel = output / shape.c_out * shape.c_in + channel;
        let tap = [tap / shape.kernel[1], tap % shape.kernel[1]];
        let at = |i: usize, o: usize| {
            (o * shape.stride[i] + tap[i] * shape.dilation[i]) as isize - shape.padding[i] as isize
        };
        let mut sum = 0.0;
        for image in 0..shape.batch {
            for y in 0..shape.output[0] {
                for x in 0..shape.output[1] {
                    let pixel = self.x.get(image, channel, [at(0, y), at(1, x)]);
                    let grad = self.g.get(image, output, [y as isize, x as isize]);
                    // The padding is zeros.
                    sum += pixel.map_or(0.0, T::widen) * grad.map_or(0.0, T::widen);
                }
            }
        }
        sum
    }
}

/// All channels of some images, one behind the other, and a vector of zeros.
fn pack<T: Element>(
    x: Image<T>,
    images: &Range<usize>,
    channels: usize,
    layout: PolyphaseLayout,
    origin: [isize; 2],
) -> Vec<f32> {
    let plane = layout.plane();
    let count = images.len() * channels;
    let len = count * plane;
    // SAFETY: there is room for `count` planes and a vector, all of which is written, each plane by one thread.
    unsafe {
        alloc::build(len + MAX_LANES, |to: *mut f32| {
            std::ptr::write_bytes(to.add(len), 0, MAX_LANES);
            let to = Shared::new(to);
            // Rows of whole images are long, so that packing costs less than the `PACK_COST` of blocks.
            parallel::ranges(count, 2 * plane, 1, |range| {
                for i in range {
                    let (image, channel) = (images.start + i / channels, i % channels);
                    let to = to.get().add(i * plane);
                    layout.pack(x, image, channel..channel + 1, origin, to);
                }
            });
        })
    }
}
