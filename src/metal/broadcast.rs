//! What a layout broadcasts, so that kernels can read the short tensor instead of a materialised long one.

use crate::layout::collapsed;
use candle_core::{Layout, Shape};

/// A layout taken apart: element `i` of its shape is element `(i / repeat) % period` of `core`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Broadcast {
    /// What is left without the broadcast dims at both ends; not necessarily contiguous.
    pub(crate) core: Layout,
    pub(crate) period: usize,
    pub(crate) repeat: usize,
}

impl Broadcast {
    pub(crate) fn new(layout: &Layout) -> Self {
        let front = without_front(layout);
        let (dims, stride) = (front.dims(), front.stride());
        let end = (0..dims.len())
            .rev()
            .find(|&i| !repeats(&front, i))
            .map_or(0, |last| last + 1);
        let core = Layout::new(
            Shape::from(&dims[..end]),
            stride[..end].to_vec(),
            front.start_offset(),
        );
        Self {
            period: core.shape().elem_count(),
            repeat: dims[end..].iter().product(),
            core,
        }
    }
}

/// The way to the rows of a layout: row `i` begins where the strides of `dims` lead, `i` counting through their sizes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    /// What has to be copied first, where the elements of a row are apart: the layout without what it broadcasts.
    pub(crate) copied: Option<Layout>,
    pub(crate) dims: Vec<(usize, usize)>,
}

impl Rows {
    pub(crate) fn new(layout: &Layout) -> Self {
        let rows = layout.dims().len().saturating_sub(1);
        let leading = |stride: &[usize]| {
            let dims = Shape::from(&layout.dims()[..rows]);
            collapsed(&Layout::new(dims, stride[..rows].to_vec(), 0))
        };
        if layout.dims()[rows..].iter().all(|&cols| cols <= 1) || layout.stride()[rows] == 1 {
            return Self {
                copied: None,
                dims: leading(layout.stride()),
            };
        }
        let mut dims = layout.dims().to_vec();
        for d in (0..rows).filter(|&d| repeats(layout, d)) {
            dims[d] = 1;
        }
        let shape = Shape::from(dims);
        let mut stride = Layout::contiguous(shape.clone()).stride().to_vec();
        for d in (0..rows).filter(|&d| repeats(layout, d)) {
            stride[d] = 0;
        }
        let copied = Layout::new(shape, layout.stride().to_vec(), layout.start_offset());
        Self {
            copied: Some(copied),
            dims: leading(&stride),
        }
    }
}

/// The layout without the dims that it broadcasts at the front: element `i` is `i % elem_count` of it.
fn without_front(layout: &Layout) -> Layout {
    let rank = layout.dims().len();
    let start = (0..rank).find(|&i| !repeats(layout, i)).unwrap_or(rank);
    Layout::new(
        Shape::from(&layout.dims()[start..]),
        layout.stride()[start..].to_vec(),
        layout.start_offset(),
    )
}

/// A dim of size 1 repeats nothing, but can be dropped like one that does, whatever its stride says.
fn repeats(layout: &Layout, dim: usize) -> bool {
    layout.dims()[dim] == 1 || layout.stride()[dim] == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The storage index of each element, as the layout itself says it.
    fn indices(layout: &Layout) -> Vec<usize> {
        let mut all = vec![layout.start_offset()];
        for (&dim, &stride) in layout.dims().iter().zip(layout.stride()) {
            all = all
                .iter()
                .flat_map(|&at| (0..dim).map(move |i| at + i * stride))
                .collect();
        }
        all
    }

    fn layouts() -> Vec<Layout> {
        let base = Layout::contiguous_with_offset((3, 4, 5), 7);
        let row = Layout::contiguous_with_offset(5, 2);
        let channel = Layout::contiguous((1, 4, 1));
        vec![
            Layout::contiguous(()),
            Layout::contiguous(1),
            base.clone(),
            base.transpose(0, 2).unwrap(),
            base.narrow(1, 1, 2).unwrap(),
            base.broadcast_as((2, 6, 3, 4, 5)).unwrap(),
            base.transpose(1, 2)
                .unwrap()
                .broadcast_as((2, 3, 5, 4))
                .unwrap(),
            row.broadcast_as((3, 4, 5)).unwrap(),
            channel.broadcast_as((3, 4, 5)).unwrap(),
            channel.broadcast_as((3, 4, 1)).unwrap(),
            Layout::contiguous((3, 1, 5))
                .broadcast_as((3, 4, 5))
                .unwrap(),
            Layout::contiguous((3, 1)).broadcast_as((3, 4)).unwrap(),
            Layout::contiguous_with_offset((), 9)
                .broadcast_as((2, 3))
                .unwrap(),
        ]
    }

    #[test]
    fn the_core_is_read_in_the_order_of_the_layout() {
        for layout in layouts() {
            let Broadcast {
                core,
                period,
                repeat,
            } = Broadcast::new(&layout);
            let core = indices(&core);
            assert_eq!(core.len(), period);
            let read: Vec<_> = (0..layout.shape().elem_count())
                .map(|i| core[(i / repeat) % period])
                .collect();
            assert_eq!(read, indices(&layout), "{layout:?}");

            let front = indices(&without_front(&layout));
            let read: Vec<_> = (0..layout.shape().elem_count())
                .map(|i| front[i % front.len()])
                .collect();
            assert_eq!(read, indices(&layout), "{layout:?}");
        }
    }

    #[test]
    fn rows_are_found_by_their_strides() {
        let base = Layout::contiguous_with_offset((3, 4, 5), 7);
        let middle = base.narrow(1, 2, 1).unwrap();
        let more = [
            middle.broadcast_as((3, 6, 5)).unwrap(),
            middle.broadcast_as((2, 3, 6, 5)).unwrap(),
            base.narrow(2, 1, 1)
                .unwrap()
                .broadcast_as((3, 4, 6))
                .unwrap(),
            base.transpose(0, 2).unwrap().narrow(1, 0, 1).unwrap(),
        ];
        for layout in layouts().into_iter().chain(more) {
            let Rows { copied, dims } = Rows::new(&layout);
            let (sizes, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            let start = if copied.is_some() {
                0
            } else {
                layout.start_offset()
            };
            let firsts = indices(&Layout::new(Shape::from(sizes), strides, start));
            let cols = layout.dims().last().copied().unwrap_or(1);
            // Where the copy's elements come from, or the storage itself.
            let from = copied.map(|core| indices(&core));
            let read: Vec<_> = firsts
                .iter()
                .flat_map(|&first| first..first + cols)
                .map(|i| from.as_ref().map_or(i, |from| from[i]))
                .collect();
            assert_eq!(read, indices(&layout), "{layout:?}");
        }
    }

    #[test]
    fn a_layout_that_repeats_nothing_is_its_own_core() {
        for layout in [
            Layout::contiguous((3, 4)),
            Layout::contiguous((3, 4)).transpose(0, 1).unwrap(),
        ] {
            let broadcast = Broadcast::new(&layout);
            assert_eq!(
                (broadcast.core, broadcast.period, broadcast.repeat),
                (layout, 12, 1)
            );
        }
    }

    #[test]
    fn collapsing_keeps_the_order() {
        for layout in layouts() {
            let merged = collapsed(&layout);
            let (dims, stride): (Vec<_>, Vec<_>) = merged.into_iter().unzip();
            let merged = Layout::new(Shape::from(dims), stride, layout.start_offset());
            assert_eq!(indices(&merged), indices(&layout));
        }
        assert_eq!(collapsed(&Layout::contiguous((3, 1, 4, 5))), [(60, 1)]);
        assert_eq!(
            collapsed(&Layout::contiguous((3, 4, 5)).narrow(1, 0, 2).unwrap()),
            [(3, 20), (10, 1)]
        );
    }
}
