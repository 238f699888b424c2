//! A read-only view of a tensor `[batch, channels, height, width]` of any strides.

use crate::cpu::element::Element;
use candle_core::Layout;

/// A tensor with the strides it is stored with. Every index within its dims is an element of `data`.
#[derive(Clone, Copy)]
pub struct Image<'a, T> {
    data: &'a [T],
    dims: [usize; 4],
    stride: [usize; 4],
}

impl<'a, T: Element> Image<'a, T> {
    /// The tensor of this layout, which has four dims.
    pub fn new(data: &'a [T], layout: &Layout) -> Self {
        let of_dims = |n: &[usize]| [n[0], n[1], n[2], n[3]];
        let (dims, stride) = (of_dims(layout.dims()), of_dims(layout.stride()));
        // An empty view may begin past the end of its storage.
        let data = &data[layout.start_offset().min(data.len())..];
        let last = || (0..4).map(|i| (dims[i] - 1) * stride[i]).sum::<usize>();
        assert!(
            dims.contains(&0) || last() < data.len(),
            "{layout:?} leaves its storage"
        );
        Image { data, dims, stride }
    }

    /// Height and width.
    pub fn size(&self) -> [usize; 2] {
        [self.dims[2], self.dims[3]]
    }

    /// Elements between neighbours of a row.
    pub fn column_stride(&self) -> usize {
        self.stride[3]
    }

    /// Elements between neighbours of a column.
    pub fn row_stride(&self) -> usize {
        self.stride[2]
    }

    /// A pointer to the first pixel of a channel. It may be read at `row · row_stride + column · column_stride` for rows and
    /// columns within [`Image::size`].
    pub fn channel(&self, image: usize, channel: usize) -> *const T {
        assert!(image < self.dims[0] && channel < self.dims[1]);
        let offset = image * self.stride[0] + channel * self.stride[1];
        self.data.as_ptr().wrapping_add(offset)
    }

    /// The image that has only every `step`-th row (`dim` 0) or column (`dim` 1), from `first` on.
    pub fn every(mut self, dim: usize, first: usize, step: usize) -> Self {
        let dim = 2 + dim;
        // If `first` is past the last row, the result has no rows and may begin anywhere.
        let start = (first * self.stride[dim]).min(self.data.len());
        self.data = &self.data[start..];
        self.dims[dim] = self.dims[dim].saturating_sub(first).div_ceil(step);
        self.stride[dim] *= step;
        self
    }

    /// The pixel at a row and column, or `None` if they are outside, in the padding.
    pub fn get(&self, image: usize, channel: usize, at: [isize; 2]) -> Option<T> {
        let inside = |i: usize| (0..self.dims[2 + i] as isize).contains(&at[i]);
        if !inside(0) || !inside(1) {
            return None;
        }
        let at = [image, channel, at[0] as usize, at[1] as usize];
        let terms = at.iter().zip(self.stride).map(|(i, stride)| i * stride);
        self.data.get(terms.sum::<usize>()).copied()
    }

    /// The same pixels as images of a single row, if one stride leads from each pixel to the next.
    pub fn as_row(self) -> Option<Self> {
        let [batch, channels, rows, cols] = self.dims;
        let [image, channel, row, col] = self.stride;
        let one_stride = rows == 1 || row == cols * col;
        one_stride.then_some(Image {
            data: self.data,
            dims: [batch, channels, 1, rows * cols],
            stride: [image, channel, rows * row, col],
        })
    }
}
