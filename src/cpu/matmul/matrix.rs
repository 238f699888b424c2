//! Matrices that are read where they lie, by strides.

use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather};
use crate::layout::MatrixLayout;
use candle_core::Layout;
use std::any::TypeId;
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Element (i, j) is `data[i · row + j · col]`. Every matrix is made by the functions below, which check that `data` has
/// all of its elements: kernels read them through pointers.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    pub data: &'a [T],
    pub rows: usize,
    pub cols: usize,
    pub row: usize,
    pub col: usize,
    _checked: (),
}

impl<'a, T: Element> Matrix<'a, T> {
    /// The first element is the first of `data`.
    pub fn new(data: &'a [T], layout: MatrixLayout) -> Self {
        #[rustfmt::skip]
        let MatrixLayout { rows, cols, row, col } = layout;
        let last = || (rows - 1) * row + (cols - 1) * col;
        assert!(rows * cols == 0 || last() < data.len(), "{layout:?}");
        Matrix {
            data,
            rows,
            cols,
            row,
            col,
            _checked: (),
        }
    }

    /// Rows one behind the other.
    pub fn contiguous(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::new(data, MatrixLayout::contiguous(rows, cols))
    }

    /// Every row the same.
    pub fn repeated(row: &'a [T], rows: usize) -> Self {
        let layout = MatrixLayout::contiguous(rows, row.len());
        Self::new(row, MatrixLayout { row: 0, ..layout })
    }

    pub fn t(self) -> Self {
        Matrix {
            rows: self.cols,
            cols: self.rows,
            row: self.col,
            col: self.row,
            ..self
        }
    }

    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows);
        Matrix {
            data: self.data_from_row(range.start),
            rows: range.len(),
            ..self
        }
    }

    /// The data from the first element of row `i` on; nothing if the matrix has no elements.
    fn data_from_row(&self, i: usize) -> &'a [T] {
        &self.data[(i * self.row).min(self.data.len())..]
    }

    /// Whether the elements of a row are neighbours.
    pub fn has_dense_rows(&self) -> bool {
        self.col == 1 || self.cols <= 1
    }

    pub fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }

    /// The same matrix with the elements of a row as neighbours, copied to `buffer` if they aren't.
    pub fn with_dense_rows<'b>(self, buffer: &'b mut Vec<T>) -> Matrix<'b, T>
    where
        'a: 'b,
    {
        if self.has_dense_rows() {
            return self;
        }
        buffer.clear();
        for i in 0..self.rows {
            buffer.extend((0..self.cols).map(|j| self.data[i * self.row + j * self.col]));
        }
        Matrix::contiguous(buffer, self.rows, self.cols)
    }

    /// A copy in f32, times `scale`, of which the rows are dense.
    pub fn widened(self, scale: f32) -> Vec<f32> {
        // SAFETY: the ranges cover all rows without overlap, so `out` has room for them, and `Widen` writes all of each.
        unsafe {
            alloc::build(self.rows * self.cols, |out: *mut f32| {
                let out = Shared::new(out);
                parallel::ranges(self.rows, 2 * self.cols, 1, |rows| {
                    let first = out.get().add(rows.start * self.cols).cast();
                    let to = std::slice::from_raw_parts_mut(first, rows.len() * self.cols);
                    let from = self.rows(rows);
                    dispatch(Widen { from, scale, to });
                });
            })
        }
    }

    /// Whether columns are the denser way to read it.
    pub fn is_by_column(&self) -> bool {
        !self.has_dense_rows() && (self.row == 1 || self.rows <= 1)
    }

    /// The matrix itself, if it is one of f32.
    pub fn as_f32(self) -> Option<Matrix<'a, f32>> {
        if TypeId::of::<T>() != TypeId::of::<f32>() {
            return None;
        }
        // SAFETY: T is f32, so that both are the same type.
        Some(unsafe { std::mem::transmute_copy(&self) })
    }

    /// The matrix as f32, copied to the buffer by this thread if it isn't. Columns that are dense stay so.
    pub fn widened_into<'b>(self, buffer: &'b mut Vec<f32>) -> Matrix<'b, f32>
    where
        'a: 'b,
    {
        if let Some(wide) = self.as_f32() {
            return wide;
        }
        if self.is_by_column() {
            return self.t().widened_into(buffer).t();
        }
        let count = self.rows * self.cols;
        buffer.clear();
        buffer.reserve(count);
        dispatch(Widen {
            from: self,
            scale: 1.0,
            to: &mut buffer.spare_capacity_mut()[..count],
        });
        // SAFETY: `Widen` has written all of them.
        unsafe { buffer.set_len(count) };
        Matrix::contiguous(buffer, self.rows, self.cols)
    }
}

/// Writes `from` times `scale` to `to`, which has an element for each of its own, rows one behind the other.
struct Widen<'a, T> {
    from: Matrix<'a, T>,
    scale: f32,
    to: &'a mut [MaybeUninit<f32>],
}

impl<T: Element> Kernel for Widen<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Widen { from, scale, to } = self;
        assert_eq!(to.len(), from.rows * from.cols);
        let scales = s.splat(scale);
        for (i, to) in to.chunks_exact_mut(from.cols.max(1)).enumerate() {
            let row = from.data_from_row(i);
            if !from.has_dense_rows() {
                for (j, to) in to.iter_mut().enumerate() {
                    // SAFETY: i < rows and j < cols, and a matrix has all of its elements.
                    to.write(unsafe { *row.as_ptr().add(j * from.col) }.widen_in(s) * scale);
                }
                continue;
            }
            let row = &row[..to.len()];
            let mut j = 0;
            while j + S::LANES <= row.len() {
                // SAFETY: j + LANES elements are in `row`, and `to` is as long.
                unsafe {
                    let x = T::load(s, row.as_ptr().add(j));
                    s.store_f32(to.as_mut_ptr().add(j).cast(), s.mul(x, scales));
                }
                j += S::LANES;
            }
            for (to, x) in to[j..].iter_mut().zip(&row[j..]) {
                to.write(x.widen_in(s) * scale);
            }
        }
    }
}

/// A tensor as a matrix: its last dim for columns, the others for rows. Copied only where one stride can't lead from
/// row to row.
pub struct Stored<'a, T: Element> {
    data: Cow<'a, [T]>,
    layout: MatrixLayout,
}

impl<'a, T: Element> Stored<'a, T> {
    pub fn new(data: &'a [T], layout: &Layout) -> Self {
        match MatrixLayout::new(layout) {
            Some(matrix) => Stored {
                // A view of nothing may begin past the end.
                data: Cow::Borrowed(&data[layout.start_offset().min(data.len())..]),
                layout: matrix,
            },
            None => Stored {
                data: gather::contiguous(data, layout),
                layout: MatrixLayout::of_shape(layout.shape()),
            },
        }
    }

    pub fn matrix(&self) -> Matrix<'_, T> {
        Matrix::new(&self.data, self.layout)
    }
}
