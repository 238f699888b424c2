//! Gradients: each channel's sums, from which its group's means follow, then dx. dweight and dbias are the channels' sums,
//! added up over the batch in order.

use super::channel::{at, for_each_element, ChannelGrad};
use super::groups;
use crate::cpu::column_sums::sum_rows;
use crate::cpu::element::Element;
use crate::cpu::fold::fold;
use crate::cpu::moments::{Divisor, MomentSums, Moments, RowGradSums};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, with_float};
use crate::op::on_cpu::{Args, OpResult};
use crate::ops::affine_norm::AffineBwd;
use crate::ops::group_norm::{Extent, GroupNorm, NAME};
use crate::ops::row_norm::cpu::slices;
use std::ops::Range;

/// What an element costs, in the units of [`parallel`].
const COST: usize = 8;

/// dx, dweight and dbias one after the other; of the last two, the first `vectors`.
pub fn backward(op: &AffineBwd<GroupNorm>, args: Args) -> OpResult {
    let (&AffineBwd { norm, vectors }, (x, xl), (g, gl)) = (op, args[0], args[1]);
    let extent = norm.extent(xl);
    let n = extent.count() + vectors * extent.channels;
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = &groups(x, xl, extent);
        let g = &groups(g.as_slice::<T>()?, gl, extent);
        let weight = slices::<T>(&args[2..])?;
        let mut sums = vec![0f32; 2 * extent.batch * extent.channels];
        // SAFETY: x, g and dx have the extent, `sums` has 2 · channels elements for each batch item, and each group is
        // given to one thread. The groups cover dx, `sum_rows` writes the rest.
        let out = unsafe {
            alloc::build(n, |out| {
                let (dx, shared) = (Shared::new(out), Shared::new(sums.as_mut_ptr()));
                parallel::ranges(extent.rows(), extent.cols() * COST, 1, |rows| {
                    dispatch(Backward {
                        x,
                        g,
                        dx,
                        sums: shared,
                        weight: weight.first().map(AsRef::as_ref),
                        extent,
                        rows,
                        eps: norm.eps,
                    })
                });
                let wanted = vectors * extent.channels;
                sum_rows(&sums, 2 * extent.channels, wanted, out.add(extent.count()));
            })
        };
        Ok(T::wrap(out))
    })?;
    Ok((out, n.into()))
}

/// Σg and Σ(g·x̂) of n elements of a channel.
///
/// # Safety
/// x and g are valid for reads of n elements.
#[inline(always)]
unsafe fn channel_sums<S: Simd, T: Element>(
    s: S,
    m: Moments,
    [x, g]: [*const T; 2],
    n: usize,
) -> [f32; 2] {
    // SAFETY: x and g have n elements.
    unsafe {
        if n >= S::LANES {
            let [sum, dot] = fold(s, RowGradSums { mean: m.mean }, [x, g], n);
            return [sum, dot * m.scale + sum * m.shift];
        }
        let (mut sum, mut dot) = (0.0, 0.0);
        for i in 0..n {
            let g = (*g.add(i)).widen_in(s);
            sum += g;
            dot += g * m.apply_one((*x.add(i)).widen_in(s));
        }
        [sum, dot]
    }
}

/// The groups in `rows`. `sums` holds, for each batch item, Σ(g·x̂) of the channels, then Σg.
struct Backward<'a, T> {
    x: &'a RowView<'a, T>,
    g: &'a RowView<'a, T>,
    dx: Shared<T>,
    sums: Shared<f32>,
    weight: Option<&'a [T]>,
    extent: Extent,
    rows: Range<usize>,
    eps: f32,
}

impl<T: Element> Kernel for Backward<'_, T> {
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
            let first = self.extent.first_channel(row);
            let (x, g) = (self.x.row(row), self.g.row(row));
            // SAFETY: `row` is one of the extent's rows, of which `backward` has made x, g and dx; a row has `per_group`
            // channels of `spatial` elements. `backward` has made 2 · channels sums for each batch item, which is
            // row / groups here. It gives a row, and so the sums of its channels, to one thread.
            unsafe {
                let sums = self.sums.get().add(row / groups * 2 * channels);
                let m = MomentSums::measure::<S, T, true>(s, x, cols);
                let m = Moments::new::<true>(m, Divisor::RootMeanSquare, self.eps);
                let (mut sum, mut dot) = (0.0, 0.0);
                for c in 0..per_group {
                    let channel = [x.add(c * spatial), g.add(c * spatial)];
                    let [g, gx] = channel_sums(s, m, channel, spatial);
                    let weight = at(s, self.weight, first + c, 1.0);
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
                        moments: m,
                        weight: at(s, self.weight, first + c, 1.0),
                        slope: dot * m.grad_factor,
                        offset: sum * m.grad_factor,
                    };
                    for_each_element(s, spatial, &channel);
                }
            }
        }
    }
}
