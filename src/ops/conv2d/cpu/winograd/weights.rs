//! The weights, transformed to Winograd's domain.

use super::super::widen::widened;
use super::transform::rows_of_columns;
use super::{POINTS, TILE_IN};
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::ops::conv2d::shape::Conv2dShape;
use std::ops::Range;

/// `G w Gᵀ` of every kernel of a convolution.
pub struct TransformedWeights {
    groups: usize,
    c_out: usize,
    c_in: usize,
    /// The weights they were made of, in f32.
    weights: Vec<f32>,
    /// `[groups, POINTS, c_out, c_in]`
    data: Vec<f32>,
}

impl TransformedWeights {
    /// Of weights `[groups · c_out, c_in, 3, 3]`.
    pub fn new<T: Element>(shape: &Conv2dShape, weights: &[T]) -> Self {
        let weights = widened(weights).into_owned();
        let Conv2dShape {
            groups,
            c_out,
            c_in,
            ..
        } = *shape;
        let point_stride = c_out * c_in;
        // SAFETY: for each output and point, the row of `c_in` elements at that place is written: together all of `data`, each
        // by one thread.
        let data = unsafe {
            alloc::build(groups * POINTS * point_stride, |to: *mut f32| {
                let to = Shared::new(to);
                parallel::ranges(groups * c_out, 32 * c_in, 1, |outputs| {
                    for output in outputs {
                        let (group, m) = (output / c_out, output % c_out);
                        dispatch(TransformWeights {
                            from: &weights[output * c_in * 9..][..c_in * 9],
                            to: to.get().add(group * POINTS * point_stride + m * c_in),
                            point_stride,
                        });
                    }
                });
            })
        };
        TransformedWeights {
            groups,
            c_out,
            c_in,
            weights,
            data,
        }
    }

    /// Whether they were made of these weights, all of which are compared.
    pub fn are_of<T: Element>(&self, shape: &Conv2dShape, weights: &[T]) -> bool {
        let sizes = [shape.groups, shape.c_out, shape.c_in];
        let mut same =
            [self.groups, self.c_out, self.c_in] == sizes && self.weights.len() == weights.len();
        if same {
            dispatch(CompareWeights {
                kept: &self.weights,
                now: weights,
                same: &mut same,
            });
        }
        same
    }

    /// The rows `[outputs, c_in]` of a group and point.
    pub fn rows(&self, group: usize, point: usize, outputs: Range<usize>) -> &[f32] {
        let row = (group * POINTS + point) * self.c_out;
        &self.data[(row + outputs.start) * self.c_in..(row + outputs.end) * self.c_in]
    }
}

/// Without the numbers.
impl std::fmt::Debug for TransformedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "TransformedWeights[{}]", self.data.len())
    }
}

/// Whether all weights are the same numbers.
struct CompareWeights<'a, T> {
    kept: &'a [f32],
    now: &'a [T],
    same: &'a mut bool,
}

impl<T: Element> Kernel for CompareWeights<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Without an exit within a piece, the compiler makes vectors of it.
        let same = |(kept, now): (&[f32], &[T])| {
            let differ = kept.iter().zip(now).map(|(a, b)| *a != b.widen());
            !differ.fold(false, |any, differs| any | differs)
        };
        *self.same = self.kept.chunks(64).zip(self.now.chunks(64)).all(same);
    }
}

/// `G w Gᵀ` of the kernels of one output, one for each channel. Made by [`TransformedWeights::new`] alone, which argues that
/// `to` is valid for writes of as many elements as there are channels, from each `point · point_stride` on.
struct TransformWeights<'a> {
    from: &'a [f32],
    to: *mut f32,
    point_stride: usize,
}

impl Kernel for TransformWeights<'_> {
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
            // SAFETY: each of `lanes` has a vector's elements at least, and `to` has room for the `left` channels from
            // `first` on at each point.
            unsafe {
                let at = |i: usize| s.load_f32(lanes[i].as_ptr());
                let mut columns = [[s.splat(0.0); TILE_IN]; 3];
                for (j, column) in columns.iter_mut().enumerate() {
                    *column = weights_1d(s, [at(j), at(3 + j), at(6 + j)]);
                }
                for (i, row) in rows_of_columns(columns).into_iter().enumerate() {
                    for (j, x) in weights_1d(s, row).into_iter().enumerate() {
                        let to = self.to.add((i * TILE_IN + j) * self.point_stride + first);
                        f32::store_upto(s, to, left, x);
                    }
                }
            }
        }
    }
}

/// G w
#[inline(always)]
fn weights_1d<S: Simd>(s: S, [a, b, c]: [S::F; 3]) -> [S::F; TILE_IN] {
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
