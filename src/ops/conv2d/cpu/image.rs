//! A read-only view of a tensor `[batch, channels, height, width]` of any strides.

use crate::cpu::element::Element;
use candle_core::Layout;

/// A tensor `[batch, channels, ..size]` with the strides it is stored with.
#[derive(Clone, Copy)]
pub struct Image<'a, T> {
    data: &'a [T],
    stride: [usize; 4],
    size: [usize; 2],
}

impl<'a, T: Element> Image<'a, T> {
    /// The layout is one of Candle's with four dims: every index within its dims is an element of `data`.
    pub fn new(data: &'a [T], layout: &Layout) -> Self {
        let (dims, strides) = (layout.dims(), layout.stride());
        Image {
            // An empty view may begin past the end of its storage.
            data: &data[layout.start_offset().min(data.len())..],
            stride: [strides[0], strides[1], strides[2], strides[3]],
            size: [dims[2], dims[3]],
        }
    }

    /// Height and width.
    pub fn size(&self) -> [usize; 2] {
        self.size
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
    /// columns within [`Image::size`], if the tensor has this image and channel.
    pub fn channel(&self, image: usize, channel: usize) -> *const T {
        let offset = image * self.stride[0] + channel * self.stride[1];
        self.data.as_ptr().wrapping_add(offset)
    }

    /// The image that has only every `step`-th row (`dim` 0) or column (`dim` 1), from `first` on.
    pub fn every(mut self, dim: usize, first: usize, step: usize) -> Self {
        // If `first` is past the last row, the result has no rows and may begin anywhere.
        let start = (first * self.stride[2 + dim]).min(self.data.len());
        self.data = &self.data[start..];
        self.size[dim] = self.size[dim].saturating_sub(first).div_ceil(step);
        self.stride[2 + dim] *= step;
        self
    }

    /// The pixel at a row and column, or `None` if they are outside, in the padding.
    pub fn get(&self, image: usize, channel: usize, at: [isize; 2]) -> Option<T> {
        let inside = |i: usize| (0..self.size[i] as isize).contains(&at[i]);
        if !inside(0) || !inside(1) {
            return None;
        }
        let at = [image, channel, at[0] as usize, at[1] as usize];
        let terms = at.iter().zip(self.stride).map(|(i, stride)| i * stride);
        self.data.get(terms.sum::<usize>()).copied()
    }

    /// The same pixels as images of a single row, if one stride leads from each pixel to the next.
    pub fn as_row(self) -> Option<Self> {
        let [image, channel, row, col] = self.stride;
        let [rows, cols] = self.size;
        let one_stride = rows == 1 || row == cols * col;
        one_stride.then_some(Image {
            data: self.data,
            stride: [image, channel, rows * row, col],
            size: [1, rows * cols],
        })
    }
}
