//! The inner loop: dot products of a few channels of the gradient with a few taps.

use crate::cpu::simd::{Kernel, Simd};
use std::ops::Range;

/// Positions of a dot product (8 KB for each of x and g) before the sum is put aside, so that the next taps find the gradient
/// in the first-level cache.
const RUN: usize = 2048;
/// Output channels of a panel, and taps that each is multiplied with at a time: twelve sums in registers.
pub const ROWS: usize = 3;
const TAPS: usize = 4;

/// `sums[m, k] += Σ g[m, p] · x[offsets[k] + p]` over positions p and images, for 1 to [`ROWS`] rows m.
pub struct Panel<'a> {
    pub g: &'a [f32],
    /// Elements from row to row, and from image to image, of g.
    pub g_row: usize,
    pub g_image: usize,
    pub x: &'a [f32],
    pub offsets: &'a [usize],
    /// Elements from image to image of x.
    pub x_image: usize,
    pub images: usize,
    pub positions: usize,
    /// As many for each row as there are offsets.
    pub sums: &'a mut [f32],
}

impl Kernel for Panel<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let rows = self.sums.len() / self.offsets.len();
        let last_image = self.images - 1;
        let last_tap = self.offsets.iter().max().copied().unwrap_or(0);
        let last_g = last_image * self.g_image + (rows - 1) * self.g_row;
        let last_x = last_image * self.x_image + last_tap;
        assert!(last_g + self.positions + S::LANES <= self.g.len());
        assert!(last_x + self.positions + S::LANES <= self.x.len());
        // SAFETY: g and x have a vector's elements behind the last position of the last row, or offset, of the last image.
        unsafe {
            match rows {
                1 => self.runs::<S, 1>(s),
                2 => self.runs::<S, 2>(s),
                _ => self.runs::<S, ROWS>(s),
            }
        }
    }
}

impl Panel<'_> {
    /// All positions and images, [`RUN`] positions at a time, for `M` rows.
    ///
    /// # Safety
    /// For each image, g has `positions` elements and a vector from the start of each of `M` rows on, and x from each offset on.
    #[inline(always)]
    unsafe fn runs<S: Simd, const M: usize>(&mut self, s: S) {
        // Several small images make one run; a large image has several.
        let images = (RUN / self.positions.max(1)).max(1);
        for first in (0..self.images).step_by(images) {
            let images = first..self.images.min(first + images);
            for start in (0..self.positions).step_by(RUN) {
                let run = start..self.positions.min(start + RUN);
                for k in (0..self.offsets.len()).step_by(TAPS) {
                    // SAFETY: `images` and `run` end at the number of images and of positions at the latest.
                    unsafe {
                        match self.offsets.len() - k {
                            1 => self.taps::<S, M, 1>(s, k, &images, &run),
                            2 => self.taps::<S, M, 2>(s, k, &images, &run),
                            3 => self.taps::<S, M, 3>(s, k, &images, &run),
                            _ => self.taps::<S, M, TAPS>(s, k, &images, &run),
                        }
                    }
                }
            }
        }
    }

    /// `K` taps from `k` on, over some images and a run of positions.
    ///
    /// # Safety
    /// That of [`Panel::runs`]; there are these images and positions.
    #[inline(always)]
    unsafe fn taps<S: Simd, const M: usize, const K: usize>(
        &mut self,
        s: S,
        k: usize,
        images: &Range<usize>,
        run: &Range<usize>,
    ) {
        let mut offsets = [0; K];
        offsets.copy_from_slice(&self.offsets[k..k + K]);
        let mut sums = [[s.splat(0.0); M]; K];
        for image in images.start..images.end {
            let g = self.g.as_ptr().wrapping_add(image * self.g_image);
            let x = self.x.as_ptr().wrapping_add(image * self.x_image);
            for p in (run.start..run.end).step_by(S::LANES) {
                let mut grads = [s.splat(0.0); M];
                for (m, grad) in grads.iter_mut().enumerate() {
                    // SAFETY: p is a position of row m of the image, from which a vector can be read.
                    *grad = unsafe { s.load_f32(g.add(m * self.g_row + p)) };
                }
                if run.end - p < S::LANES {
                    // What follows the last position belongs to the next run or channel.
                    for grad in &mut grads {
                        *grad = first_lanes(s, *grad, run.end - p);
                    }
                }
                for (sums, &offset) in sums.iter_mut().zip(&offsets) {
                    // SAFETY: the same of each offset.
                    let x = unsafe { s.load_f32(x.add(offset + p)) };
                    for (sum, &grad) in sums.iter_mut().zip(&grads) {
                        *sum = s.fma(grad, x, *sum);
                    }
                }
            }
        }
        for (j, sums) in sums.iter().enumerate() {
            for (m, &sum) in sums.iter().enumerate() {
                self.sums[m * self.offsets.len() + k + j] += s.reduce_add(sum);
            }
        }
    }
}

/// The first `n` lanes of x, and zeros.
#[inline(always)]
fn first_lanes<S: Simd>(s: S, x: S::F, n: usize) -> S::F {
    let lanes = s.to_array(x);
    // SAFETY: `lanes` has MAX_LANES elements, and `load_few` reads fewer than a vector.
    unsafe { s.load_few_f32(lanes.as_ptr(), n) }
}
