//! Gradients: each channel's sums, from which its group's means follow; then dx. dweight and dbias are the channels' sums
//! added up over the batch in order.

use super::at;
use crate::cpu::element::Element;
use crate::cpu::moments::{Layer, Moments};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::rows::{fold, Fold};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::ops::affine_norm::Arg;
use crate::ops::group_norm::{Extent, GroupNorm, NAME};
use crate::ops::row_norm::cpu::{slices, total};
use candle_core::{CpuStorage, Result, Shape};
use std::ops::Range;

/// Cost of an element, as in [`parallel`].
const COST: usize = 8;

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

/// # Safety
/// The pointers hold `n` elements.
#[inline(always)]
unsafe fn pulls<S: Simd, T: Element>(s: S, m: Moments, p: [*const T; 2], n: usize) -> [f32; 2] {
    if n >= S::LANES {
        return fold(s, Pulls(m), p, n);
    }
    let (mut sum, mut dot) = (0.0, 0.0);
    for i in 0..n {
        let g = (*p[1].add(i)).widen();
        sum += g;
        dot += g * m.apply_one((*p[0].add(i)).widen());
    }
    [sum, dot]
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
                    let [g, gx] = pulls(s, m, p, spatial);
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
                    channel.run(s);
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
    /// The pointers hold `n` elements.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S) {
        let mut i = 0;
        while self.n < S::LANES && i < self.n {
            let x = self.moments.apply_one((*self.x.add(i)).widen());
            let h = (*self.g.add(i)).widen() * self.weight;
            let dx = (h - self.offset - x * self.slope) * self.moments.scale;
            self.dx.add(i).write(T::narrow(dx));
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
                parallel::ranges(extent.rows(), extent.cols() * COST, 1, |rows| {
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
