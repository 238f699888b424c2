//! The gradient of the weight: for each output and place, the product of the gradient with what the place sees, summed over
//! positions and images.

use super::lattice::{Image, Lattice};
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::ops::conv2d::Geometry;
use std::ops::Range;

/// Elements of the images that are worked on at a time, at most, unless one has more.
const CHUNK: usize = 1 << 20;
/// Positions that a sum runs over before it is put aside, so that other places find the gradient in the first cache.
const RUN: usize = 2048;
/// Outputs of a panel, and places that each is multiplied with at a time.
const ROWS: usize = 3;
const PLACES: usize = 4;

pub struct WeightGrad<'a, T> {
    pub geometry: Geometry,
    pub x: Image<'a, T>,
    pub g: Image<'a, T>,
}

/// A chunk of images.
struct Chunk {
    images: usize,
    x: Vec<f32>,
    g: Vec<f32>,
}

impl<T: Element> WeightGrad<'_, T> {
    /// `[groups · c_out, c_in, ..kernel]`
    pub fn run(&self) -> Vec<f32> {
        let g = &self.geometry;
        let reach = [0, 1].map(|i| (g.kernel[i] - 1) * g.dilation[i] / g.stride[i]);
        let seen = Lattice {
            phases: g.stride,
            rows: g.output[0] + reach[0],
            cols: g.output[1] + reach[1],
        };
        // With the same pitch, and zeros between the rows.
        let grads = Lattice {
            phases: [1, 1],
            rows: g.output[0],
            cols: seen.cols,
        };
        let mut sums = vec![0.0; g.w_shape().elem_count()];
        let mut strayed = false;
        let each = g.groups * (g.c_in * seen.plane() + g.c_out * grads.plane());
        let images = (CHUNK / each.max(1)).clamp(1, g.batch.max(1));
        if !sums.is_empty() && grads.plane() > 0 {
            for first in (0..g.batch).step_by(images) {
                let images = first..g.batch.min(first + images);
                let chunk = self.pack(images, seen, grads);
                self.add(&chunk, seen, grads, &mut sums);
                let finite = |x: &[f32]| x.iter().all(|x| x.is_finite());
                strayed |= !finite(&sums) && !finite(&chunk.x);
            }
        }
        // Between the rows zeros have met what others see.
        if strayed {
            let (count, to) = (sums.len(), Shared::new(sums.as_mut_ptr()));
            let cost = g.batch * g.output[0] * g.output[1] * 16;
            parallel::ranges(count, cost, 1, |range| {
                for i in range {
                    // SAFETY: each sum is one thread's.
                    let sum = unsafe { &mut *to.get().add(i) };
                    if !sum.is_finite() {
                        *sum = self.plain(i);
                    }
                }
            });
        }
        sums
    }

    fn pack(&self, images: Range<usize>, seen: Lattice, grads: Lattice) -> Chunk {
        let g = &self.geometry;
        let origin = g.padding.map(|p| -(p as isize));
        Chunk {
            images: images.len(),
            x: pack(self.x, &images, g.groups * g.c_in, seen, origin),
            g: pack(self.g, &images, g.groups * g.c_out, grads, [0, 0]),
        }
    }

    fn add(&self, chunk: &Chunk, seen: Lattice, grads: Lattice, sums: &mut [f32]) {
        let g = &self.geometry;
        let places = g.kernel[0] * g.kernel[1];
        let offsets: Vec<usize> = (0..g.c_in * places)
            .map(|k| {
                let (channel, place) = (k / places, k % places);
                let row = place / g.kernel[1] * g.dilation[0];
                let col = place % g.kernel[1] * g.dilation[1];
                channel * seen.plane() + seen.at(row, col)
            })
            .collect();
        let panels = g.c_out.div_ceil(ROWS);
        let positions = (g.output[0] - 1) * seen.cols + g.output[1];
        let cost = ROWS.min(g.c_out) * offsets.len() * chunk.images * (positions + 32) / 8;
        let to = Shared::new(sums.as_mut_ptr());
        parallel::ranges(g.groups * panels, cost, 1, |range| {
            for panel in range {
                let (group, first) = (panel / panels, panel % panels * ROWS);
                let output = group * g.c_out + first;
                // SAFETY: channels and outputs of the group are in the chunk, positions beyond the last one too; panels
                // have sums of their own.
                unsafe {
                    dispatch(Panel {
                        rows: ROWS.min(g.c_out - first),
                        g: chunk.g.as_ptr().add(output * grads.plane()),
                        row: grads.plane(),
                        g_image: g.groups * g.c_out * grads.plane(),
                        x: chunk.x.as_ptr().add(group * g.c_in * seen.plane()),
                        offsets: &offsets,
                        x_image: g.groups * g.c_in * seen.plane(),
                        images: chunk.images,
                        positions,
                        sums: to.get().add(output * offsets.len()),
                    });
                }
            }
        });
    }

    /// One sum over just what there is.
    fn plain(&self, i: usize) -> f32 {
        let g = &self.geometry;
        let places = g.kernel[0] * g.kernel[1];
        let (output, channel, place) = (i / places / g.c_in, i / places % g.c_in, i % places);
        let channel = output / g.c_out * g.c_in + channel;
        let place = [place / g.kernel[1], place % g.kernel[1]];
        let mut sum = 0.0;
        for image in 0..g.batch {
            for y in 0..g.output[0] {
                for x in 0..g.output[1] {
                    let at = |i: usize, o: usize| {
                        (o * g.stride[i] + place[i] * g.dilation[i]) as isize
                            - g.padding[i] as isize
                    };
                    let seen = self.x.get(image, channel, [at(0, y), at(1, x)]);
                    let grad = self.g.get(image, output, [y as isize, x as isize]);
                    // Padding is zeros.
                    sum += seen.map_or(0.0, T::widen) * grad.map_or(0.0, T::widen);
                }
            }
        }
        sum
    }
}

/// Channels of images one behind the other, and a vector more.
fn pack<T: Element>(
    x: Image<T>,
    images: &Range<usize>,
    channels: usize,
    lattice: Lattice,
    origin: [isize; 2],
) -> Vec<f32> {
    let plane = lattice.plane();
    let (count, len) = (images.len() * channels, images.len() * channels * plane);
    // SAFETY: every channel is written, and what is behind them.
    unsafe {
        alloc::build(len + MAX_LANES, |to: *mut f32| {
            std::ptr::write_bytes(to.add(len), 0, MAX_LANES);
            let to = Shared::new(to);
            parallel::ranges(count, 2 * plane, 1, |range| {
                for i in range {
                    let (image, channel) = (images.start + i / channels, i % channels);
                    let to = to.get().add(i * plane);
                    lattice.fill(x, image, channel..channel + 1, origin, to);
                }
            });
        })
    }
}

/// `sums[m, k] += Σ g[m, p] · x[offsets[k] + p]` over positions and images.
struct Panel<'a> {
    rows: usize,
    g: *const f32,
    /// From row to row, and from image to image, of g.
    row: usize,
    g_image: usize,
    x: *const f32,
    offsets: &'a [usize],
    x_image: usize,
    images: usize,
    positions: usize,
    sums: *mut f32,
}

impl Kernel for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: as promised by who made the panel.
        unsafe {
            match self.rows {
                1 => self.rows::<S, 1>(s),
                2 => self.rows::<S, 2>(s),
                _ => self.rows::<S, ROWS>(s),
            }
        }
    }
}

impl Panel<'_> {
    #[inline(always)]
    unsafe fn rows<S: Simd, const M: usize>(&self, s: S) {
        // Many small images are one run, a large one is several.
        let images = (RUN / self.positions.max(1)).max(1);
        for first in (0..self.images).step_by(images) {
            let images = first..self.images.min(first + images);
            for start in (0..self.positions).step_by(RUN) {
                let run = start..self.positions.min(start + RUN);
                for k in (0..self.offsets.len()).step_by(PLACES) {
                    match self.offsets.len() - k {
                        1 => self.places::<S, M, 1>(s, k, &images, &run),
                        2 => self.places::<S, M, 2>(s, k, &images, &run),
                        3 => self.places::<S, M, 3>(s, k, &images, &run),
                        _ => self.places::<S, M, PLACES>(s, k, &images, &run),
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn places<S: Simd, const M: usize, const K: usize>(
        &self,
        s: S,
        k: usize,
        images: &Range<usize>,
        run: &Range<usize>,
    ) {
        let mut offsets = [0; K];
        offsets.copy_from_slice(&self.offsets[k..k + K]);
        let mut sums = [[s.splat(0.0); M]; K];
        for image in images.start..images.end {
            let g = self.g.add(image * self.g_image);
            let x = self.x.add(image * self.x_image);
            for p in (run.start..run.end).step_by(S::LANES) {
                let mut grads = [s.splat(0.0); M];
                for (m, grad) in grads.iter_mut().enumerate() {
                    *grad = s.load_f32(g.add(m * self.row + p));
                }
                if run.end - p < S::LANES {
                    // Behind the last position is the next channel.
                    for grad in &mut grads {
                        *grad = first_lanes(s, *grad, run.end - p);
                    }
                }
                for (sums, &offset) in sums.iter_mut().zip(&offsets) {
                    let x = s.load_f32(x.add(offset + p));
                    for (sum, &grad) in sums.iter_mut().zip(&grads) {
                        *sum = s.fma(grad, x, *sum);
                    }
                }
            }
        }
        for (j, sums) in sums.iter().enumerate() {
            for (m, &sum) in sums.iter().enumerate() {
                *self.sums.add(m * self.offsets.len() + k + j) += s.reduce_add(sum);
            }
        }
    }
}

/// The first `n` lanes, zeros for the others.
#[inline(always)]
fn first_lanes<S: Simd>(s: S, x: S::F, n: usize) -> S::F {
    let lanes = s.to_array(x);
    // SAFETY: `n` is less than the lanes there are.
    unsafe { s.load_few_f32(lanes.as_ptr(), n) }
}
