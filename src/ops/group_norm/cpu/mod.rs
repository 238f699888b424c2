//! Group norm on the CPU. A row is a group of channels: measure it, then write its channels one after the other.

mod backward;
pub mod channel;

pub use crate::ops::row_norm::cpu::{forward, inplace};
pub use backward::backward;

use channel::{at, for_each_element, Channel};

use super::{Extent, GroupNorm, NAME};
use crate::cpu::element::Element;
use crate::cpu::gather;
use crate::cpu::moments::Divisor;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass;
use crate::ops::row_norm::cpu::{MeasuredRow, NormByRow, NormRows, Normalise, Vectors, WriteRow};
use crate::ops::row_norm::{Kind, RowNorm};
use candle_core::Layout;

/// The groups as rows. They are read where they lie if the channels of a batch item are contiguous.
fn groups<'a, T: Element>(x: &'a [T], l: &Layout, extent: Extent) -> RowView<'a, T> {
    if l.is_contiguous() {
        return RowView::contiguous(gather::contiguous(x, l), extent.cols());
    }
    let item = Layout::new(l.dims()[1..].into(), l.stride()[1..].to_vec(), 0);
    if !item.is_contiguous() {
        return RowView::contiguous(gather::contiguous(x, l), extent.cols());
    }
    let shape = (extent.batch, extent.groups, extent.cols());
    let stride = vec![l.stride()[0], extent.cols(), 1];
    RowView::new(x, &Layout::new(shape.into(), stride, l.start_offset()))
}

impl NormByRow for GroupNorm {
    fn name(&self) -> &'static str {
        NAME
    }
    fn rows_and_cols(&self, l: &Layout) -> [usize; 2] {
        let extent = self.extent(l);
        [extent.rows(), extent.cols()]
    }
    fn view<'a, T: Element>(&self, x: &'a [T], l: &Layout) -> RowView<'a, T> {
        groups(x, l, self.extent(l))
    }
    unsafe fn run<T: Element>(self, l: &Layout, x: &RowView<T>, y: Shared<T>, params: Vectors<T>) {
        let (extent, eps) = (self.extent(l), self.eps);
        let (rows, cols) = (extent.rows(), extent.cols());
        if extent.spatial == 1 {
            // Channels of one element: a layer norm whose weight and bias depend on the group.
            let kind = Kind::Layer;
            let groups = NormRows::new(RowNorm { kind, eps }, x, y, params, cols);
            // SAFETY: x and y have the groups by the caller's promise, each of which is a row of `cols` elements.
            return unsafe { groups.with_groups(extent.groups).run(rows) };
        }
        let op = Normalise::<T, _, true> {
            x,
            y,
            cols,
            divisor: Divisor::RootMeanSquare,
            eps,
            write: WriteGroup {
                weight: params.first().map(AsRef::as_ref),
                bias: params.get(1).map(AsRef::as_ref),
                extent,
            },
        };
        // SAFETY: as above.
        unsafe { two_pass::run(op, rows, cols) }
    }
}

/// `x̂ · weight + bias`, channel by channel.
#[derive(Clone, Copy)]
struct WriteGroup<'a, T> {
    weight: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    extent: Extent,
}

impl<T: Element> WriteRow<T> for WriteGroup<'_, T> {
    const COST: usize = 4;

    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, row: MeasuredRow<T>) {
        let spatial = self.extent.spatial;
        let first = self.extent.first_channel(row.number);
        let cols = row.cols;
        let mut c = cols.start.checked_div(spatial).unwrap_or(0);
        let mut start = cols.start;
        while start < cols.end {
            let end = cols.end.min((c + 1) * spatial);
            // SAFETY: `start..end` are some of the columns, at which x can be read and y written.
            unsafe {
                let channel = Channel {
                    x: row.x.add(start),
                    y: row.y.add(start),
                    moments: row.moments,
                    weight: at(s, self.weight, first + c, 1.0),
                    bias: at(s, self.bias, first + c, 0.0),
                };
                for_each_element(s, end - start, &channel);
            }
            (start, c) = (end, c + 1);
        }
    }
}
