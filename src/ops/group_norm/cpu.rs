//! A group's statistics, then its channels one after the other.

use super::{Extent, GroupNorm, NAME};
use crate::cpu::element::Element;
use crate::cpu::moments::{Layer, Moments};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::rows::{fold, Fold};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::ops::affine_norm::{Arg, Vectors};
use crate::ops::row_norm::cpu::{slices, total};
use candle_core::{CpuStorage, Layout, Result, Shape};
use std::ops::Range;

/// Costs of an element, as in [`parallel`].
const FORWARD: usize = 4;
const BACKWARD: usize = 8;

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
            // SAFETY: x and y hold the rows.
            unsafe {
                let x = self.x.get().add(row * cols);
                let m = Moments::of::<S, T, Layer>(s, x, cols, self.eps);
                for c in 0..per_group {
                    let channel = row % self.extent.groups * per_group + c;
                    let channel = Channel {
                        x: x.add(c * self.extent.spatial),
                        y: self.y.get().add(row * cols + c * self.extent.spatial),
                        n: self.extent.spatial,
                        moments: m,
                        weight: at(self.weight, channel, 1.0),
                        bias: at(self.bias, channel, 0.0),
                    };
                    let mut i = 0;
                    while i + S::LANES <= channel.n {
                        channel.piece::<S, true>(s, i);
                        i += S::LANES;
                    }
                    if i < channel.n {
                        channel.piece::<S, false>(s, i);
                    }
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
    [weight, bias]: &[Option<std::borrow::Cow<[T]>>; 2],
) {
    parallel::ranges(extent.rows(), extent.cols() * FORWARD, 1, |rows| {
        dispatch(Forward {
            x,
            y,
            weight: weight.as_deref(),
            bias: bias.as_deref(),
            extent,
            rows,
            eps: norm.eps,
        })
    });
}

/// Σg and Σ(g·x̂) of a channel.
#[derive(Clone, Copy)]
struct Pulls(Moments);

impl Fold<2, 2> for Pulls {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [sum, dot]: [S::F; 2], [x, g]: [S::F; 2]) -> [S::F; 2] {
        let x = self.0.apply::<S, Layer>(s, x);
        [s.add(sum, g), s.fma(g, x, dot)]
    }
}

/// The groups in `rows`. `sums` holds, for each batch item, Σ(g·x̂) of the channels, then Σg.
struct Backward<'a, T> {
    x: Shared<T>,
    g: Shared<T>,
    dx: Shared<T>,
    sums: Shared<f32>,
    weight: Option<&'a [T]>,
    extent: Extent,
    rows: Range<usize>,
    eps: f32,
}

impl<T: Element> Kernel for Backward<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Extent {
            channels,
            spatial,
            groups,
            ..
        } = self.extent;
        let (cols, per_group) = (self.extent.cols(), self.extent.channels_per_group());
        for row in self.rows {
            let first = row % groups * per_group;
            // SAFETY: the pointers hold the rows, sums 2·channels for each batch item.
            unsafe {
                let (x, g) = (self.x.get().add(row * cols), self.g.get().add(row * cols));
                let sums = self.sums.get().add(row / groups * 2 * channels);
                let m = Moments::of::<S, T, Layer>(s, x, cols, self.eps);
                let (mut sum, mut dot) = (0.0, 0.0);
                for c in 0..per_group {
                    let p = [x.add(c * spatial).cast_const(), g.add(c * spatial)];
                    let [g, gx] = fold(s, Pulls(m), p, spatial);
                    let weight = at(self.weight, first + c, 1.0);
                    sum += weight * g;
                    dot += weight * gx;
                    sums.add(first + c).write(gx);
                    sums.add(channels + first + c).write(g);
                }
                for c in 0..per_group {
                    let channel = ChannelGrad {
                        x: x.add(c * spatial),
                        g: g.add(c * spatial),
                        dx: self.dx.get().add(row * cols + c * spatial),
                        n: spatial,
                        moments: m,
                        weight: at(self.weight, first + c, 1.0),
                        slope: dot * m.pull,
                        offset: sum * m.pull,
                    };
                    let mut i = 0;
                    while i + S::LANES <= spatial {
                        channel.piece::<S, true>(s, i);
                        i += S::LANES;
                    }
                    if i < spatial {
                        channel.piece::<S, false>(s, i);
                    }
                }
            }
        }
    }
}

/// dx = (g·weight − x̂·slope − offset)·scale
struct ChannelGrad<T> {
    x: *const T,
    g: *const T,
    dx: *mut T,
    n: usize,
    moments: Moments,
    weight: f32,
    slope: f32,
    offset: f32,
}

impl<T: Element> ChannelGrad<T> {
    /// # Safety
    /// As [`Element::load_piece`] and its like, at element `i`.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize) {
        let left = self.n - i;
        let g = T::load_piece::<S, FULL>(s, self.g.add(i), left);
        let x = T::load_piece::<S, FULL>(s, self.x.add(i), left);
        let x = self.moments.apply::<S, Layer>(s, x);
        let h = s.mul(g, s.splat(self.weight));
        let dx = s.fnma(x, s.splat(self.slope), s.sub(h, s.splat(self.offset)));
        let dx = s.mul(dx, s.splat(self.moments.scale));
        T::store_piece::<S, FULL>(s, self.dx.add(i), left, dx);
    }
}

/// `[dx, dweight, dbias]`, of the vectors' gradients the first `vectors`.
pub fn backward(
    norm: GroupNorm,
    (x, xl): Arg<CpuStorage>,
    (g, gl): Arg<CpuStorage>,
    weight: Option<Arg<CpuStorage>>,
    vectors: usize,
) -> Result<(CpuStorage, Shape)> {
    let extent = norm.extent(xl);
    let n = extent.count() + vectors * extent.channels;
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, xl);
        let g = gather::contiguous(g.as_slice::<T>()?, gl);
        let [weight, _] = slices::<T>([weight, None])?;
        let mut sums = vec![0f32; 2 * extent.batch * extent.channels];
        let shared = Shared::new(sums.as_mut_ptr());
        let [x, g] = [&x, &g].map(|v| Shared::new(v.as_ptr().cast_mut()));
        // SAFETY: the groups cover dx, `total` the rest.
        Ok(T::wrap(unsafe {
            alloc::build(n, |out| {
                let dx = Shared::new(out);
                parallel::ranges(extent.rows(), extent.cols() * BACKWARD, 1, |rows| {
                    dispatch(Backward {
                        x,
                        g,
                        dx,
                        sums: shared,
                        weight: weight.as_deref(),
                        extent,
                        rows,
                        eps: norm.eps,
                    })
                });
                let wanted = vectors * extent.channels;
                total(&sums, 2 * extent.channels, wanted, out.add(extent.count()));
            })
        }))
    })?;
    Ok((out, n.into()))
}
