//! What a layout says about the order of its elements, for every device.

mod batch;

#[cfg(feature = "metal")]
pub use batch::BatchDim;
pub use batch::BatchLayout;

use candle_core::{Layout, Result, Shape, Tensor};
use std::ops::Range;

/// Dims and strides of the same element order, without dims of size 1 and with neighbours merged where one stride
/// serves both.
pub fn collapsed(layout: &Layout) -> Vec<(usize, usize)> {
    let mut merged: Vec<(usize, usize)> = Vec::with_capacity(layout.dims().len());
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()) {
        match merged.last_mut() {
            _ if dim == 1 => {}
            Some((outer, outer_stride)) if *outer_stride == dim * stride => {
                *outer *= dim;
                *outer_stride = stride;
            }
            _ => merged.push((dim, stride)),
        }
    }
    merged
}

/// Where the elements lie, if they lie one behind the other in their order. The same as `Layout::contiguous_offsets`, but inlined:
/// ops on tiny tensors take as long as a few calls.
#[inline]
pub fn contiguous_range(layout: &Layout) -> Option<Range<usize>> {
    let (dims, strides) = (layout.dims(), layout.stride());
    if dims.len() != strides.len() {
        return None;
    }
    let mut count = 1;
    for (&dim, &stride) in dims.iter().zip(strides).rev() {
        if dim > 1 && stride != count {
            return None;
        }
        count *= dim;
    }
    Some(layout.start_offset()..layout.start_offset() + count)
}

/// A tensor seen as a matrix: its last dim for columns, the others for rows. Strides are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    pub rows: usize,
    pub cols: usize,
    pub row: usize,
    pub col: usize,
}

impl MatrixLayout {
    /// `None` where no single stride leads from row to row.
    pub fn new(layout: &Layout) -> Option<Self> {
        let (dims, strides) = (layout.dims(), layout.stride());
        let leading = dims.len().saturating_sub(1);
        let cols = dims.last().copied().unwrap_or(1);
        let rows = dims[..leading].iter().product();
        if rows * cols == 0 {
            return Some(Self::contiguous(rows, cols));
        }
        // As `collapsed` merges dims, without its allocation: tiny products take as long as a few of them.
        let mut row = None;
        for (&dim, &stride) in dims[..leading].iter().zip(strides) {
            match row {
                _ if dim == 1 => {}
                None => row = Some(stride),
                Some(outer) if outer == dim * stride => row = Some(stride),
                Some(_) => return None,
            }
        }
        let col = strides.last().copied().unwrap_or(1);
        Some(MatrixLayout {
            rows,
            cols,
            row: row.unwrap_or(cols),
            // The stride of a single column is never used, and may be anything.
            col: if cols == 1 { 1 } else { col },
        })
    }

    /// Rows one behind the other.
    pub fn contiguous(rows: usize, cols: usize) -> Self {
        MatrixLayout {
            rows,
            cols,
            row: cols,
            col: 1,
        }
    }

    #[cfg(feature = "metal")]
    pub fn t(self) -> Self {
        MatrixLayout {
            rows: self.cols,
            cols: self.rows,
            row: self.col,
            col: self.row,
        }
    }

    pub fn of_shape(shape: &Shape) -> Self {
        match shape.dims() {
            [leading @ .., cols] => Self::contiguous(leading.iter().product(), *cols),
            [] => Self::contiguous(1, 1),
        }
    }
}

/// A bias or a norm's weight as a vector of `len` elements, where stock Candle's broadcasting would take it as one: `[1, len]`
/// is reshaped, a single element is repeated. Others are returned as they are, for the op to refuse.
pub fn as_vector(vector: &Tensor, len: usize) -> Result<Tensor> {
    match vector.dims() {
        &[n] if n == len => Ok(vector.clone()),
        [1] => vector.broadcast_as(len),
        [ones @ .., n] if *n == len && ones.iter().all(|&d| d == 1) => vector.reshape(len),
        _ => Ok(vector.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_has_one_stride_for_its_rows() {
        let base = Layout::contiguous_with_offset((2, 3, 4, 5), 7);
        let of = |l: Layout| MatrixLayout::new(&l).map(|m| (m.rows, m.cols, m.row, m.col));
        assert_eq!(of(base.clone()), Some((24, 5, 5, 1)));
        assert_eq!(of(base.narrow(3, 1, 2).unwrap()), Some((24, 2, 5, 1)));
        assert_eq!(of(base.narrow(2, 1, 2).unwrap()), None);
        assert_eq!(of(base.transpose(2, 3).unwrap()), None);
        assert_eq!(of(base.narrow(1, 0, 0).unwrap()), Some((0, 5, 5, 1)));
        let matrix = Layout::contiguous((4, 5));
        assert_eq!(of(matrix.transpose(0, 1).unwrap()), Some((5, 4, 1, 5)));
        assert_eq!(of(Layout::contiguous(5)), Some((1, 5, 5, 1)));
        let row = Layout::contiguous(5).broadcast_as((2, 3, 5)).unwrap();
        assert_eq!(of(row), Some((6, 5, 0, 1)));
    }
}
