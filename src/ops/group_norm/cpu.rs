//! A group's statistics, then its channels one after the other.

mod backward;

pub use backward::backward;

use super::{Extent, GroupNorm, NAME};
use crate::cpu::element::Element;
use crate::cpu::moments::{Layer, Moments};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::ops::affine_norm::{Arg, Vectors};
use crate::ops::row_norm::cpu::{slices, Rows, Slices};
use crate::ops::row_norm::{Kind, RowNorm};
use candle_core::{CpuStorage, Layout, Result, Shape};
use std::ops::Range;

/// Cost of an element, as in [`parallel`].
const COST: usize = 4;

/// The groups in `rows`. `y` may be `x`.
struct Forward<'a, T> {
    x: Shared<T>,
    y: Shared<T>,
    weight: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    extent: Extent,
    rows: Range<usize>,
    eps: f32,
}

impl<T: Element> Kernel for Forward<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cols, per_group) = (self.extent.cols(), self.extent.channels_per_group());
        for row in self.rows {
            let first = row % self.extent.groups * per_group;
            // SAFETY: x and y hold the rows.
            unsafe {
                let (x, y) = (self.x.get().add(row * cols), self.y.get().add(row * cols));
                let moments = Moments::of::<S, T, Layer>(s, x, cols, self.eps);
                for c in 0..per_group {
                    let channel = Channel {
                        x: x.add(c * self.extent.spatial),
                        y: y.add(c * self.extent.spatial),
                        n: self.extent.spatial,
                        moments,
                        weight: at(self.weight, first + c, 1.0),
                        bias: at(self.bias, first + c, 0.0),
                    };
                    channel.run(s);
                }
            }
        }
    }
}

/// y = x̂·weight + bias
struct Channel<T> {
    x: *const T,
    y: *mut T,
    n: usize,
    moments: Moments,
    weight: f32,
    bias: f32,
}

impl<T: Element> Channel<T> {
    /// # Safety
    /// The pointers hold `n` elements.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S) {
        let mut i = 0;
        // Less than a vector: element by element beats copies to and from a padded one.
        while self.n < S::LANES && i < self.n {
            let x = self.moments.apply_one((*self.x.add(i)).widen());
            self.y.add(i).write(T::narrow(x * self.weight + self.bias));
            i += 1;
        }
        while i + S::LANES <= self.n {
            self.piece::<S, true>(s, i);
            i += S::LANES;
        }
        if i < self.n {
            self.piece::<S, false>(s, i);
        }
    }

    /// # Safety
    /// As [`Element::load_piece`] and its like, at element `i`.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize) {
        let x = T::load_piece::<S, FULL>(s, self.x.add(i), self.n - i);
        let x = self.moments.apply::<S, Layer>(s, x);
        let y = s.fma(x, s.splat(self.weight), s.splat(self.bias));
        T::store_piece::<S, FULL>(s, self.y.add(i), self.n - i, y);
    }
}

#[inline(always)]
fn at<T: Element>(vector: Option<&[T]>, i: usize, default: f32) -> f32 {
    match vector {
        Some(v) => v[i].widen(),
        None => default,
    }
}

pub fn forward(
    norm: GroupNorm,
    (x, l): Arg<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> Result<(CpuStorage, Shape)> {
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        let slices = slices::<T>(vectors)?;
        let start = Shared::new(x.as_ptr().cast_mut());
        // SAFETY: every group is written.
        Ok(T::wrap(unsafe {
            alloc::build(x.len(), |y| {
                groups(norm, norm.extent(l), [start, Shared::new(y)], &slices)
            })
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(
    norm: GroupNorm,
    (x, l): (&mut CpuStorage, &Layout),
    vectors: Vectors<CpuStorage>,
) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let slices = slices::<T>(vectors)?;
        gather::update(x, l, |x: &mut [T]| {
            let start = Shared::new(x.as_mut_ptr());
            groups(norm, norm.extent(l), [start, start], &slices)
        });
        Ok(())
    })
}

fn groups<T: Element>(
    norm: GroupNorm,
    extent: Extent,
    [x, y]: [Shared<T>; 2],
    [weight, bias]: &Slices<T>,
) {
    let (cols, eps) = (extent.cols(), norm.eps);
    parallel::ranges(extent.rows(), cols * COST, 1, |rows| {
        if extent.spatial > 1 {
            let (weight, bias) = (weight.as_deref(), bias.as_deref());
            return dispatch(Forward {
                x,
                y,
                weight,
                bias,
                extent,
                rows,
                eps,
            });
        }
        // Channels of one element: a layer norm whose vectors depend on the group.
        for row in rows {
            let first = row % extent.groups * cols;
            let from = |v: &[T]| Shared::new(v[first..].as_ptr().cast_mut());
            let group = Rows {
                x,
                y,
                vectors: [weight, bias].map(|v| v.as_deref().map(from)),
                cols,
                norm: RowNorm {
                    kind: Kind::Layer,
                    eps,
                },
            };
            // SAFETY: x and y hold the rows, the vectors `groups · cols` elements.
            unsafe { group.forward(row..row + 1) };
        }
    });
}
