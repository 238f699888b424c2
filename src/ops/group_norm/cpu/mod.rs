//! Group norm on the CPU. A row is a group of channels: measure it, then write its channels one after the other.

mod backward;

pub use backward::backward;

use super::{Extent, GroupNorm, NAME};
use crate::cpu::element::Element;
use crate::cpu::moments::{Divisor, MomentSums, Moments};
use crate::cpu::parallel::Shared;
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, gather, with_float};
use crate::op::{Arg, ArgMut, OpResult};
use crate::ops::affine_norm::Vectors;
use crate::ops::row_norm::cpu::{slices, NormRows};
use crate::ops::row_norm::{Kind, RowNorm};
use candle_core::{CpuStorage, Layout, Result};
use std::borrow::Cow;
use std::ops::Range;

pub fn forward(
    norm: GroupNorm,
    (x, l): Arg<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> OpResult<CpuStorage> {
    let extent = norm.extent(l);
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = &groups(x, l, extent);
        let vectors = &slices::<T>(vectors)?;
        // SAFETY: x has the groups, and every element of every group of y is written.
        let y = unsafe {
            alloc::build(extent.count(), |y| {
                run(norm, extent, x, Shared::new(y), vectors)
            })
        };
        Ok(T::wrap(y))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(
    norm: GroupNorm,
    (x, l): ArgMut<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> Result<()> {
    let extent = norm.extent(l);
    with_float!(NAME, x, |x: &[T]| {
        let vectors = &slices::<T>(vectors)?;
        gather::update(x, l, |x: &mut [T]| {
            let y = Shared::new(x.as_mut_ptr());
            // SAFETY: x has the groups, and is used through the pointer alone until they are written.
            unsafe {
                let x = &RowView::from_raw(y.get(), extent.cols());
                run(norm, extent, x, y, vectors)
            }
        });
        Ok(())
    })
}

/// The groups as rows. They are read where they lie if the channels of a batch item are contiguous.
fn groups<'a, T: Element>(x: &'a [T], l: &Layout, extent: Extent) -> RowView<'a, T> {
    let item = Layout::new(l.dims()[1..].into(), l.stride()[1..].to_vec(), 0);
    if !item.is_contiguous() {
        return RowView::contiguous(gather::contiguous(x, l), extent.cols());
    }
    let shape = (extent.batch, extent.groups, extent.cols());
    let stride = vec![l.stride()[0], extent.cols(), 1];
    RowView::new(x, &Layout::new(shape.into(), stride, l.start_offset()))
}

/// # Safety
/// x and y have the extent. They may be the same.
unsafe fn run<'a, T: Element>(
    GroupNorm { eps, .. }: GroupNorm,
    extent: Extent,
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    vectors: &'a [Option<Cow<'a, [T]>>; 2],
) {
    let (rows, cols) = (extent.rows(), extent.cols());
    if extent.spatial == 1 {
        // Channels of one element: a layer norm whose weight and bias depend on the group.
        let kind = Kind::Layer;
        return NormRows::new(RowNorm { kind, eps }, x, y, vectors, cols)
            .with_groups(extent.groups)
            .run(rows);
    }
    let [weight, bias] = vectors.each_ref().map(|v| v.as_deref());
    let op = NormGroup {
        x,
        y,
        weight,
        bias,
        extent,
        eps,
    };
    two_pass::run(op, rows, cols)
}

#[derive(Clone, Copy)]
struct NormGroup<'a, T> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    weight: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    extent: Extent,
    eps: f32,
}

impl<T: Element> TwoPassRow for NormGroup<'_, T> {
    type Stat = MomentSums;

    fn cost(cols: usize) -> usize {
        cols * 4
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> MomentSums {
        let x = self.x.row(row).add(cols.start);
        MomentSums::measure::<S, T, true>(s, x, cols.len())
    }

    fn join(&self, a: MomentSums, b: MomentSums) -> MomentSums {
        a.join::<true>(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, sums: MomentSums) {
        let moments = Moments::new::<true>(sums, Divisor::RootMeanSquare, self.eps);
        let y = self.y.get().add(row * self.extent.cols());
        let spatial = self.extent.spatial;
        let first = self.extent.first_channel(row);
        let mut c = cols.start.checked_div(spatial).unwrap_or(0);
        let mut start = cols.start;
        while start < cols.end {
            let end = cols.end.min((c + 1) * spatial);
            let channel = Channel {
                x: self.x.row(row).add(start),
                y: y.add(start),
                n: end - start,
                moments,
                weight: at(self.weight, first + c, 1.0),
                bias: at(self.bias, first + c, 0.0),
            };
            channel.run(s);
            (start, c) = (end, c + 1);
        }
    }
}

/// y = x̂ · weight + bias, over n elements of one channel.
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
    /// x and y are valid for n elements.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S) {
        if self.n >= S::LANES {
            return for_each_piece(s, 0..self.n, self);
        }
        // Less than a vector: element by element takes less time than copies to and from a padded vector.
        for i in 0..self.n {
            let x = self.moments.apply_one((*self.x.add(i)).widen());
            self.y.add(i).write(T::narrow(x * self.weight + self.bias));
        }
    }
}

impl<T: Element> Pieces for Channel<T> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        let x = T::load_piece::<S, FULL>(s, self.x.add(i), left);
        let x = self.moments.apply::<S, true>(s, x);
        let y = s.fma(x, s.splat(self.weight), s.splat(self.bias));
        T::store_piece::<S, FULL>(s, self.y.add(i), left, y);
    }
}

/// Element `i` of a weight or bias, or `default` without one.
#[inline(always)]
fn at<T: Element>(vector: Option<&[T]>, i: usize, default: f32) -> f32 {
    match vector {
        Some(v) => v[i].widen(),
        None => default,
    }
}
