//! Matrices where they lie.

use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather};
use crate::layout::MatrixLayout;
use candle_core::Layout;
use std::any::TypeId;
use std::borrow::Cow;
use std::ops::Range;

/// Element (i, j) is `data[i · row + j · col]`.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    pub data: &'a [T],
    pub rows: usize,
    pub cols: usize,
    pub row: usize,
    pub col: usize,
}

impl<'a, T: Element> Matrix<'a, T> {
    /// The first element is the first of `data`.
    pub fn new(data: &'a [T], layout: MatrixLayout) -> Self {
        let MatrixLayout {
            rows,
            cols,
            row,
            col,
        } = layout;
        Matrix {
            data,
            rows,
            cols,
            row,
            col,
        }
    }

    /// Rows one behind the other.
    pub fn contiguous(data: &'a [T], rows: usize, cols: usize) -> Self {
        Matrix {
            data,
            rows,
            cols,
            row: cols,
            col: 1,
        }
    }

    /// Every row the same.
    pub fn repeated(row: &'a [T], rows: usize) -> Self {
        Matrix {
            row: 0,
            ..Self::contiguous(row, rows, row.len())
        }
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
        // Without elements there is nothing to begin at.
        let start = (range.start * self.row).min(self.data.len());
        Matrix {
            data: &self.data[start..],
            rows: range.len(),
            ..self
        }
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
        // SAFETY: every row is written.
        unsafe {
            alloc::build(self.rows * self.cols, |to: *mut f32| {
                let to = Shared::new(to);
                parallel::ranges(self.rows, 2 * self.cols, 1, |rows| {
                    let to = to.get().wrapping_add(rows.start * self.cols);
                    dispatch(Widen {
                        from: self.rows(rows),
                        scale,
                        to,
                    });
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
        // SAFETY: T is f32.
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
        buffer.clear();
        buffer.reserve(self.rows * self.cols);
        dispatch(Widen {
            from: self,
            scale: 1.0,
            to: buffer.as_mut_ptr(),
        });
        // SAFETY: every element has been written.
        unsafe { buffer.set_len(self.rows * self.cols) };
        Matrix::contiguous(buffer, self.rows, self.cols)
    }
}

struct Widen<'a, T> {
    from: Matrix<'a, T>,
    scale: f32,
    to: *mut f32,
}

impl<T: Element> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Widen { from, scale, to } = self;
        let scales = s.splat(scale);
        for i in 0..from.rows {
            let row = from.data[(i * from.row).min(from.data.len())..].as_ptr();
            // SAFETY: the matrix has these rows, and `to` room for them.
            unsafe {
                let to = to.add(i * from.cols);
                if !from.has_dense_rows() {
                    for j in 0..from.cols {
                        *to.add(j) = (*row.add(j * from.col)).widen() * scale;
                    }
                    continue;
                }
                let mut j = 0;
                while j + S::LANES <= from.cols {
                    s.store_f32(to.add(j), s.mul(T::load(s, row.add(j)), scales));
                    j += S::LANES;
                }
                for j in j..from.cols {
                    *to.add(j) = (*row.add(j)).widen() * scale;
                }
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
