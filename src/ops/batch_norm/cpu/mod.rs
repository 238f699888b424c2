//! Batch norm on the CPU. A channel is a row of the two-pass engine, made of segments that lie apart: the channel's elements in
//! each batch item. Where those are only a few elements, x is turned round to measure it, and then written by columns.

mod backward;
mod columns;
mod forward;

pub use backward::gradients;
pub use forward::{forward, train};

use super::Extent;
use crate::cpu::element::Element;
use crate::cpu::moments::Moments;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, gather};
use candle_core::{Layout, Result};
use std::ops::Range;

/// Segments of fewer elements are not worth a loop each: two vectors of AVX2, one of AVX-512.
const SHORT: usize = 16;

impl Extent {
    fn is_short(&self) -> bool {
        self.spatial < SHORT
    }
}

/// How the elements of a channel are cut into segments of neighbours, which lie in rows of a [`RowView`].
#[derive(Clone, Copy)]
struct Cut {
    channels: usize,
    /// Elements of a segment.
    len: usize,
}

impl Cut {
    /// Of `[batch, channels, spatial]`, or of `[channels, batch · spatial]` where the segments of the former are short.
    fn new(extent: Extent) -> Self {
        let len = match extent.is_short() {
            true => extent.of_channel(),
            false => extent.spatial,
        };
        Cut {
            channels: extent.channels,
            len,
        }
    }

    /// The segments that these elements of a channel lie in.
    #[inline(always)]
    fn segments(self, channel: usize, elements: Range<usize>) -> Segments {
        let first = elements.start.checked_div(self.len).unwrap_or(0);
        Segments {
            row: first * self.channels + channel,
            start: elements.start - first * self.len,
            left: elements.len(),
            cut: self,
        }
    }
}

/// A part of a row.
struct Segment {
    row: usize,
    start: usize,
    len: usize,
}

struct Segments {
    row: usize,
    start: usize,
    left: usize,
    cut: Cut,
}

impl Iterator for Segments {
    type Item = Segment;

    #[inline(always)]
    fn next(&mut self) -> Option<Segment> {
        if self.left == 0 {
            return None;
        }
        let len = self.left.min(self.cut.len - self.start);
        let segment = Segment {
            row: self.row,
            start: self.start,
            len,
        };
        self.left -= len;
        self.row += self.cut.channels;
        self.start = 0;
        Some(segment)
    }
}

/// The rows that a [`Cut`] speaks of. They are read where they lie if the elements of a segment are neighbours.
fn rows<'a, T: Element>(x: &'a [T], l: &Layout, extent: Extent) -> Result<RowView<'a, T>> {
    if extent.is_short() {
        let turned = gather::contiguous(x, &l.transpose(0, 1)?);
        return Ok(RowView::contiguous(turned, extent.of_channel()));
    }
    Ok(planes(x, l, extent))
}

/// The channels of each batch item as rows of `extent.spatial` elements.
fn planes<'a, T: Element>(x: &'a [T], l: &Layout, extent: Extent) -> RowView<'a, T> {
    let (dims, stride) = (l.dims(), l.stride());
    let plane = Layout::new(dims[2..].into(), stride[2..].to_vec(), 0);
    if !plane.is_contiguous() {
        return RowView::contiguous(gather::contiguous(x, l), extent.spatial);
    }
    let shape = (extent.batch, extent.channels, extent.spatial);
    let stride = vec![stride[0], stride[1], 1];
    RowView::new(x, &Layout::new(shape.into(), stride, l.start_offset()))
}

/// A tensor of this extent, which the op that `writing` makes writes channel by channel.
///
/// # Safety
/// The op is one for these channels as rows of the two-pass engine, and writes all elements of each.
unsafe fn written_by_channel<T: Element, R: TwoPassRow>(
    extent: Extent,
    writing: impl FnOnce(Shared<T>) -> R,
) -> Vec<T> {
    // SAFETY: the caller's promise.
    unsafe {
        alloc::build(extent.count(), |out| {
            let op = writing(Shared::new(out));
            two_pass::run(op, extent.channels, extent.of_channel());
        })
    }
}

/// The moments of all channels as they are kept for the backward: the means, the scales, the shifts.
#[derive(Clone, Copy)]
struct SavedMoments<'a>(&'a [f32]);

impl SavedMoments<'_> {
    #[inline(always)]
    fn channels(self) -> usize {
        self.0.len() / 3
    }

    /// Of a norm over `count` elements.
    #[inline(always)]
    fn of(self, channel: usize, count: usize) -> Moments {
        let channels = self.channels();
        Moments {
            mean: self.0[channel],
            scale: self.0[channels + channel],
            shift: self.0[2 * channels + channel],
            grad_factor: 1.0 / count as f32,
        }
    }
}
