//! Broadcasting of the leading dims of two batched matmul operands.

use super::MatrixLayout;
use candle_core::Layout;

/// x `[.., m, k]` beside y `[.., k, n]`. Strides are in elements, from where each of them begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    pub x: MatrixLayout,
    pub y: MatrixLayout,
    pub dims: Vec<BatchDim>,
}

/// A leading dim of the output, with the strides that it has in x and in y. A stride of 0 repeats the same matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchDim {
    pub size: usize,
    pub x: usize,
    pub y: usize,
}

impl BatchLayout {
    /// `leading` are the output's dims but the last two, to which those of x and y broadcast. Neighbouring dims are merged
    /// where one stride serves both. A last dim that repeats the same y becomes further rows of x: one larger product.
    pub fn new(leading: &[usize], x: &Layout, y: &Layout) -> Self {
        let mut batch = BatchLayout {
            x: last_two(x),
            y: last_two(y),
            dims: Vec::with_capacity(leading.len()),
        };
        for (i, &size) in leading.iter().enumerate() {
            let from_end = leading.len() - i + 2;
            let (x, y) = (stride(x, from_end), stride(y, from_end));
            match batch.dims.last_mut() {
                _ if size == 1 => {}
                Some(outer) if outer.x == size * x && outer.y == size * y => {
                    let size = outer.size * size;
                    *outer = BatchDim { size, x, y };
                }
                _ => batch.dims.push(BatchDim { size, x, y }),
            }
        }
        batch.fold();
        batch
    }

    fn fold(&mut self) {
        while let Some(&BatchDim { size, x, y: 0 }) = self.dims.last() {
            match self.x.rows {
                1 => self.x.row = x,
                rows if x == rows * self.x.row => {}
                _ => return,
            }
            self.x.rows *= size;
            self.dims.pop();
        }
    }

    /// The number of products.
    pub fn count(&self) -> usize {
        self.dims.iter().map(|dim| dim.size).product()
    }

    /// The offsets at which the matrices of the i-th product begin.
    pub fn offsets(&self, mut i: usize) -> (usize, usize) {
        let (mut x, mut y) = (0, 0);
        for dim in self.dims.iter().rev() {
            let at = i % dim.size;
            i /= dim.size;
            x += at * dim.x;
            y += at * dim.y;
        }
        (x, y)
    }
}

fn last_two(layout: &Layout) -> MatrixLayout {
    let (dims, strides) = (layout.dims(), layout.stride());
    let last = dims.len() - 1;
    MatrixLayout {
        rows: dims[last - 1],
        cols: dims[last],
        row: strides[last - 1],
        // The stride of a single column is never used, and may be anything.
        col: if dims[last] == 1 { 1 } else { strides[last] },
    }
}

/// The stride of a dim counted from the end; 0 where the layout has no such dim, or one of size 1 that is repeated.
fn stride(layout: &Layout, from_end: usize) -> usize {
    match layout.dims().len().checked_sub(from_end) {
        Some(i) if layout.dims()[i] != 1 => layout.stride()[i],
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(batch: &BatchLayout) -> Vec<(usize, usize, usize)> {
        batch.dims.iter().map(|d| (d.size, d.x, d.y)).collect()
    }

    #[test]
    fn dims_are_merged_and_folded() {
        let x = Layout::contiguous((2, 3, 4, 5));
        let same = BatchLayout::new(&[2, 3], &x, &Layout::contiguous((2, 3, 5, 7)));
        assert_eq!(dims(&same), [(6, 20, 35)]);
        assert_eq!(same.offsets(5), (100, 175));

        let one = BatchLayout::new(&[2, 3], &x, &Layout::contiguous((5, 7)));
        assert_eq!((one.x.rows, one.x.row, one.count()), (24, 5, 1));

        let grouped = BatchLayout::new(&[2, 3], &x, &Layout::contiguous((2, 1, 5, 7)));
        assert_eq!(dims(&grouped), [(2, 60, 35)]);
        assert_eq!(grouped.x.rows, 12);

        let apart = BatchLayout::new(&[2, 3], &x, &Layout::contiguous((3, 5, 7)));
        assert_eq!(dims(&apart), [(2, 60, 0), (3, 20, 35)]);
        assert_eq!(apart.offsets(4), (80, 35));
    }

    #[test]
    fn rows_that_lie_apart_are_not_folded() {
        let heads = Layout::contiguous((2, 4, 3, 5)).transpose(1, 2).unwrap();
        let y = Layout::contiguous((5, 7));
        let batch = BatchLayout::new(&[2, 3], &heads, &y);
        assert_eq!(dims(&batch), [(2, 60, 0), (3, 5, 0)]);
        assert_eq!(batch.x.rows, 4);
        // One row each: any stride will do.
        let x = Layout::contiguous((3, 1, 9)).narrow(2, 2, 5).unwrap();
        let batch = BatchLayout::new(&[3], &x, &y);
        assert_eq!((batch.x.rows, batch.x.row), (3, 9));
    }
}
