//! Kernels, transformed.

use super::transform::turned;
use super::{POINTS, SEEN};
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::ops::conv2d::Geometry;

/// The kernels of a convolution, transformed.
pub struct Kernels {
    /// Groups, and outputs and channels of each.
    shape: [usize; 3],
    /// As they came.
    weights: Vec<f32>,
    /// For each group and point: outputs by channels.
    data: Vec<f32>,
}

impl Kernels {
    /// Of `[groups · c_out, c_in, 3, 3]`.
    pub fn new(g: &Geometry, weights: &[f32]) -> Self {
        let (outputs, channels) = (g.groups * g.c_out, g.c_in);
        let count = outputs * channels * POINTS;
        // SAFETY: each output's kernels are written.
        let data = unsafe {
            alloc::build(count, |to: *mut f32| {
                let to = Shared::new(to);
                parallel::ranges(outputs, 32 * channels, 1, |outputs| {
                    for output in outputs {
                        let (group, m) = (output / g.c_out, output % g.c_out);
                        let point = g.c_out * channels;
                        dispatch(TransformKernels {
                            from: &weights[output * channels * 9..][..channels * 9],
                            to: to.get().add(group * POINTS * point + m * channels),
                            point,
                        });
                    }
                });
            })
        };
        Kernels {
            shape: [g.groups, g.c_out, g.c_in],
            weights: weights.to_vec(),
            data,
        }
    }

    /// Whether they are those of these weights.
    pub fn are_of<T: Element>(&self, g: &Geometry, weights: &[T]) -> bool {
        self.shape == [g.groups, g.c_out, g.c_in]
            && self.weights.len() == weights.len()
            && dispatch(Same(&self.weights, weights))
    }

    /// Those of a group's outputs, from `first` on.
    pub fn at(&self, g: &Geometry, group: usize, point: usize, first: usize) -> *const f32 {
        let row = (group * POINTS + point) * g.c_out + first;
        self.data[row * g.c_in..].as_ptr()
    }
}

/// Without the numbers, as a tensor's.
impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Kernels[{}]", self.data.len())
    }
}

/// Whether weights are the kept ones.
struct Same<'a, T>(&'a [f32], &'a [T]);

impl<T: Element> Kernel for Same<'_, T> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> bool {
        // Pieces that become vectors, and end it early.
        let same = |(kept, now): (&[f32], &[T])| {
            let differ = kept.iter().zip(now).map(|(a, b)| *a != b.widen());
            !differ.fold(false, |any, differs| any | differs)
        };
        self.0.chunks(64).zip(self.1.chunks(64)).all(same)
    }
}

/// G g Gᵀ of an output's kernels, one for each channel.
struct TransformKernels<'a> {
    from: &'a [f32],
    to: *mut f32,
    /// From point to point.
    point: usize,
}

impl Kernel for TransformKernels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let channels = self.from.len() / 9;
        for first in (0..channels).step_by(S::LANES) {
            let left = (channels - first).min(S::LANES);
            let mut lanes = [[0f32; MAX_LANES]; 9];
            for lane in 0..left {
                for (i, lanes) in lanes.iter_mut().enumerate() {
                    lanes[lane] = self.from[(first + lane) * 9 + i];
                }
            }
            // SAFETY: `lanes` has whole vectors, and `to` room for `left` channels of each point.
            unsafe {
                let at = |i: usize| s.load_f32(lanes[i].as_ptr());
                let mut columns = [[s.splat(0.0); SEEN]; 3];
                for (j, column) in columns.iter_mut().enumerate() {
                    *column = kernel_1d(s, [at(j), at(3 + j), at(6 + j)]);
                }
                for (i, row) in turned(columns).into_iter().enumerate() {
                    for (j, x) in kernel_1d(s, row).into_iter().enumerate() {
                        let to = self.to.add((i * SEEN + j) * self.point + first);
                        f32::store_upto(s, to, left, x);
                    }
                }
            }
        }
    }
}

/// G g
#[inline(always)]
fn kernel_1d<S: Simd>(s: S, [a, b, c]: [S::F; 3]) -> [S::F; SEEN] {
    let sixth = s.splat(-1.0 / 6.0);
    let outer = s.mul(s.add(a, c), sixth);
    let middle = s.mul(b, sixth);
    let outer2 = s.fma(a, s.splat(1.0 / 24.0), s.mul(c, s.splat(1.0 / 6.0)));
    let middle2 = s.mul(b, s.splat(1.0 / 12.0));
    [
        s.mul(a, s.splat(0.25)),
        s.add(outer, middle),
        s.sub(outer, middle),
        s.add(outer2, middle2),
        s.sub(outer2, middle2),
        c,
    ]
}
