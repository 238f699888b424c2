//! Where the matrices of a tensor lie, as Metal Performance Shaders can be told.

use crate::layout::{collapsed, MatrixLayout};
use candle_core::{Layout, Shape};

/// The matrices of a tensor `[.., rows, columns]`, each of whose rows lies in one piece, or, if they are transposed, each
/// of whose columns does. Everything is in elements, from the start of the layout on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) transposed: bool,
    /// Elements that lie in one piece: those of a row, or of a column if the matrices are transposed.
    pub(crate) columns: usize,
    /// Pieces of a matrix.
    pub(crate) rows: usize,
    pub(crate) row_stride: usize,
    /// The sizes and strides of the dims before the matrix.
    leading: Vec<(usize, usize)>,
}

impl Stored {
    /// `None` where neither the rows nor the columns are in one piece: those have to be copied. No dim may be empty, and
    /// there are two at least.
    pub(crate) fn new(layout: &Layout) -> Option<Self> {
        let split = layout.dims().len() - 2;
        let (dims, strides) = (&layout.dims()[split..], &layout.stride()[split..]);
        let leading = collapsed(&Layout::new(
            Shape::from(&layout.dims()[..split]),
            layout.stride()[..split].to_vec(),
            0,
        ));
        let ([rows, columns], [row, column]) = ([dims[0], dims[1]], [strides[0], strides[1]]);
        let straight = Self::dense((rows, row), (columns, column), false);
        let stored = straight.or_else(|| Self::dense((columns, column), (rows, row), true))?;
        let mut stored = Self { leading, ..stored };
        // The only row of a matrix may be as long as the way to the next.
        if let (1, &[(_, stride)]) = (stored.rows, &stored.leading[..]) {
            stored.row_stride = stride.max(stored.columns);
        }
        Some(stored)
    }

    /// A contiguous copy.
    pub(crate) fn of_shape(shape: &Shape) -> Self {
        let (leading, matrix) = shape.dims().split_at(shape.rank() - 2);
        let (rows, columns) = (matrix[0], matrix[1]);
        let count = leading.iter().product();
        Self {
            transposed: false,
            columns,
            rows,
            row_stride: columns,
            leading: vec![(count, rows * columns)],
        }
    }

    /// Of dims and their strides.
    fn dense(
        (rows, row): (usize, usize),
        (columns, column): (usize, usize),
        transposed: bool,
    ) -> Option<Self> {
        let row_stride = if rows == 1 { columns } else { row };
        let dense = (columns == 1 || column == 1) && row_stride >= columns;
        dense.then_some(Self {
            transposed,
            columns,
            rows,
            row_stride,
            leading: Vec::new(),
        })
    }

    /// From one matrix to the next, if there is a stride for that which Metal Performance Shaders take: a multiple of the
    /// row stride that keeps matrices apart.
    pub(crate) fn matrix_stride(&self) -> Option<usize> {
        let size = self.rows * self.row_stride;
        match self.leading[..] {
            [] | [(1, _)] => Some(size),
            [(_, stride)] => {
                (stride >= size && stride.is_multiple_of(self.row_stride)).then_some(stride)
            }
            _ => None,
        }
    }

    /// Where each matrix starts.
    pub(crate) fn starts(&self) -> Vec<usize> {
        self.leading
            .iter()
            .fold(vec![0], |starts, &(size, stride)| {
                let next = |start| (0..size).map(move |i| start + i * stride);
                starts.into_iter().flat_map(next).collect()
            })
    }

    /// Whether the only matrix is a vector whose elements are in one piece.
    pub(crate) fn is_dense_vector(&self) -> bool {
        self.rows == 1 || (self.columns == 1 && self.row_stride == 1)
    }
}

/// The same product as one of two matrices, where all matrices of x are multiplied by the same y and one stride leads
/// from row to row through all of x.
pub(crate) fn folded(x: &Layout, y: &Layout) -> Option<(Layout, Layout)> {
    let split = y.dims().len() - 2;
    let (dims, strides) = (y.dims(), y.stride());
    if !(0..split).all(|d| dims[d] == 1 || strides[d] == 0) {
        return None;
    }
    let matrix = MatrixLayout::new(x).filter(|m| m.col == 1 && m.row >= m.cols)?;
    let shape = Shape::from((matrix.rows, matrix.cols));
    let x = Layout::new(shape, vec![matrix.row, matrix.col], x.start_offset());
    let shape = Shape::from(&dims[split..]);
    let y = Layout::new(shape, strides[split..].to_vec(), y.start_offset());
    Some((x, y))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The storage index of each element in row-major order.
    fn indices(layout: &Layout) -> Vec<usize> {
        let dims = layout.dims().iter().zip(layout.stride());
        dims.fold(vec![layout.start_offset()], |all, (&dim, &stride)| {
            let next = |at| (0..dim).map(move |i| at + i * stride);
            all.into_iter().flat_map(next).collect()
        })
    }

    fn layouts() -> Vec<Layout> {
        let base = Layout::contiguous_with_offset((2, 3, 4, 5), 7);
        let plain = Layout::contiguous((4, 5));
        vec![
            plain.clone(),
            plain.transpose(0, 1).unwrap(),
            plain.narrow(1, 1, 3).unwrap(),
            plain.narrow(1, 1, 3).unwrap().transpose(0, 1).unwrap(),
            plain.narrow(0, 1, 1).unwrap(),
            plain.narrow(1, 1, 1).unwrap(),
            plain.narrow(1, 1, 1).unwrap().transpose(0, 1).unwrap(),
            Layout::contiguous((1, 1)),
            base.clone(),
            base.transpose(2, 3).unwrap(),
            base.transpose(1, 2).unwrap(),
            base.transpose(0, 1).unwrap(),
            base.narrow(2, 1, 2).unwrap(),
            base.narrow(3, 1, 2).unwrap(),
            base.narrow(2, 1, 1).unwrap(),
            base.narrow(2, 1, 1).unwrap().narrow(3, 1, 2).unwrap(),
            base.narrow(1, 1, 1).unwrap(),
            plain.broadcast_as((3, 4, 5)).unwrap(),
        ]
    }

    #[test]
    fn matrices_are_where_they_are_said_to_be() {
        for layout in layouts() {
            let stored = Stored::new(&layout).unwrap_or_else(|| panic!("{layout:?}"));
            let starts = stored.starts();
            if let Some(stride) = stored.matrix_stride() {
                assert!(starts.iter().enumerate().all(|(i, &s)| s == i * stride));
                assert!(stride.is_multiple_of(stored.row_stride));
            }
            let (rows, columns) = match stored.transposed {
                true => (stored.columns, stored.rows),
                false => (stored.rows, stored.columns),
            };
            let mut read = Vec::new();
            for start in starts {
                for i in 0..rows {
                    for j in 0..columns {
                        let (i, j) = if stored.transposed { (j, i) } else { (i, j) };
                        let at = start + i * stored.row_stride + j;
                        read.push(layout.start_offset() + at);
                    }
                }
            }
            assert_eq!(read, indices(&layout), "{layout:?}");
        }
    }

    #[test]
    fn strides_that_no_descriptor_has() {
        let base = Layout::contiguous((4, 6, 8));
        // A row that is repeated.
        let row = base.narrow(1, 0, 1).unwrap();
        assert_eq!(Stored::new(&row.broadcast_as((4, 5, 8)).unwrap()), None);
        // Elements apart in both dims.
        let apart = Layout::new(Shape::from((3, 4)), vec![20, 2], 0);
        assert_eq!(Stored::new(&apart), None);
        // Attention's heads: the next matrix begins within the row of this one.
        let heads = Layout::contiguous((6, 4, 8)).transpose(0, 1).unwrap();
        let heads = Stored::new(&heads).unwrap();
        assert_eq!((heads.row_stride, heads.matrix_stride()), (32, None));
        assert_eq!(heads.starts(), [0, 8, 16, 24]);
        let shared = Layout::contiguous((6, 8)).broadcast_as((4, 6, 8)).unwrap();
        assert_eq!(Stored::new(&shared).unwrap().matrix_stride(), None);
    }

    #[test]
    fn only_vectors_in_one_piece_are_dense() {
        let plain = Layout::contiguous((4, 5));
        let dense = |l: Layout| Stored::new(&l).unwrap().is_dense_vector();
        let (row, column) = (
            plain.narrow(0, 1, 1).unwrap(),
            plain.narrow(1, 1, 1).unwrap(),
        );
        assert!(dense(row.clone()) && dense(row.transpose(0, 1).unwrap()));
        assert!(!dense(column.clone()) && !dense(column.transpose(0, 1).unwrap()));
        assert!(dense(Layout::contiguous((7, 1))) && dense(Layout::contiguous((1, 7))));
    }

    #[test]
    fn a_shared_matrix_makes_one_product() {
        let x = Layout::contiguous((2, 3, 4, 5));
        let y = Layout::contiguous((5, 6))
            .broadcast_as((2, 3, 5, 6))
            .unwrap();
        let (a, b) = folded(&x, &y).unwrap();
        assert_eq!((a.dims(), b.dims()), (&[24, 5][..], &[5, 6][..]));
        assert_eq!(folded(&x, &Layout::contiguous((2, 3, 5, 6))), None);
        assert_eq!(folded(&x.narrow(2, 0, 3).unwrap(), &y), None);
    }
}
