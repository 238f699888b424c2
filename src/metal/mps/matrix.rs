//! Matrices in buffers.

use super::order::Access;
use super::policy;
use crate::check;
use candle_core::{DType, Result};
use candle_metal_kernels::metal::Buffer;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2::AnyThread;
use objc2_metal::MTLBuffer;
use objc2_metal_performance_shaders::{
    MPSDataType, MPSMatrix, MPSMatrixDescriptor, MPSVector, MPSVectorDescriptor,
};

/// A matrix in a buffer, or several of one shape. Each row lies in one piece. Sizes, strides and the offset are in elements.
///
/// A vector is a matrix of one row.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub buffer: &'a Buffer,
    /// f32 or f16
    pub dtype: DType,
    pub offset: usize,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub matrices: usize,
    /// A multiple of the row stride.
    pub matrix_stride: usize,
}

impl<'a> Matrix<'a> {
    /// One matrix from the start of a buffer on, rows one behind the other.
    pub fn new(buffer: &'a Buffer, dtype: DType, rows: usize, columns: usize) -> Self {
        Self {
            buffer,
            dtype,
            offset: 0,
            rows,
            columns,
            row_stride: columns,
            matrices: 1,
            matrix_stride: rows.saturating_mul(columns),
        }
    }

    /// The same, `elements` further on.
    pub fn at(self, elements: usize) -> Self {
        let offset = self.offset.saturating_add(elements);
        Self { offset, ..self }
    }

    pub fn with_row_stride(self, row_stride: usize) -> Self {
        Self {
            row_stride,
            matrix_stride: self.rows.saturating_mul(row_stride),
            ..self
        }
    }

    /// As many matrices of this shape, `matrix_stride` elements from one to the next.
    pub fn times(self, matrices: usize, matrix_stride: usize) -> Self {
        Self {
            matrices,
            matrix_stride,
            ..self
        }
    }

    /// Rows and columns of the matrix, or of its transpose.
    pub(super) fn shape(&self, transposed: bool) -> (usize, usize) {
        match transposed {
            true => (self.columns, self.rows),
            false => (self.rows, self.columns),
        }
    }

    /// Metal Performance Shaders end the process where a descriptor is wrong, so nothing of that kind gets to them.
    pub(super) fn check(&self, op: &str, name: &str) -> Result<()> {
        let refuse = |what: String| Err(check::error(op, format_args!("{name} {what}")));
        let &Self {
            rows,
            columns,
            row_stride,
            matrices,
            matrix_stride,
            ..
        } = self;
        if !policy::serves(self.dtype) {
            return refuse(format!("has dtype {:?}, f32 or f16 accepted", self.dtype));
        }
        if rows == 0 || columns == 0 || matrices == 0 {
            return refuse(format!("is empty: {matrices} matrices of {rows}×{columns}"));
        }
        if row_stride < columns {
            return refuse(format!(
                "has a row stride of {row_stride} for {columns} columns"
            ));
        }
        let bytes = |elements: usize| elements.checked_mul(self.size());
        let one = rows.checked_mul(row_stride).filter(|n| bytes(*n).is_some());
        let Some(one) = one else {
            return refuse(format!(
                "has a row stride of {row_stride}, too large for {rows} rows"
            ));
        };
        let apart = matrix_stride >= one && bytes(matrix_stride).is_some();
        if matrices > 1 && !(apart && matrix_stride.is_multiple_of(row_stride)) {
            return refuse(format!(
                "has a matrix stride of {matrix_stride}, a multiple of the row stride {row_stride} that holds {rows} rows \
                 accepted"
            ));
        }
        let end = self.end();
        if end.is_none_or(|end| end > self.buffer.length()) {
            let length = self.buffer.length();
            return refuse(format!(
                "does not fit: {matrices} matrices of {rows}×{columns} from element {} on in {length} bytes",
                self.offset
            ));
        }
        Ok(())
    }

    /// One row, as vectors have.
    pub(super) fn check_vector(&self, op: &str, name: &str, length: usize) -> Result<()> {
        self.check(op, name)?;
        if self.shape(false) != (1, length) {
            let (rows, columns) = self.shape(false);
            let what = format!("{name} is {rows}×{columns}, 1×{length} accepted");
            return Err(check::error(op, what));
        }
        Ok(())
    }

    /// Where the last element ends, in bytes.
    fn end(&self) -> Option<usize> {
        let matrices = self
            .matrices
            .checked_sub(1)?
            .checked_mul(self.matrix_stride)?;
        let rows = self.rows.checked_sub(1)?.checked_mul(self.row_stride)?;
        let elements = matrices.checked_add(rows)?.checked_add(self.columns)?;
        elements.checked_add(self.offset)?.checked_mul(self.size())
    }

    fn size(&self) -> usize {
        self.dtype.size_in_bytes()
    }

    pub(super) fn access(&self, writes: bool) -> Access {
        Access {
            buffer: std::ptr::from_ref(self.raw()).addr(),
            bytes: self.offset.saturating_mul(self.size())..self.end().unwrap_or(usize::MAX),
            writes,
        }
    }

    fn raw(&self) -> &ProtocolObject<dyn MTLBuffer> {
        self.buffer.as_ref()
    }

    fn data_type(&self) -> MPSDataType {
        match self.dtype {
            DType::F16 => MPSDataType::Float16,
            _ => MPSDataType::Float32,
        }
    }

    /// Of a single matrix the stride is never used, but has to be right.
    fn matrix_bytes(&self) -> usize {
        let stride = match self.matrices {
            1 => self.rows * self.row_stride,
            _ => self.matrix_stride,
        };
        stride * self.size()
    }

    /// # Safety
    /// [`Matrix::check`] has accepted the matrix.
    pub(super) unsafe fn matrix(&self) -> Retained<MPSMatrix> {
        let size = self.size();
        // SAFETY: `check` accepts only matrices that have elements, that don't overlap and that end within the buffer.
        unsafe {
            let descriptor = MPSMatrixDescriptor::matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType(
                self.rows,
                self.columns,
                self.matrices,
                self.row_stride * size,
                self.matrix_bytes(),
                self.data_type(),
            );
            let offset = self.offset * size;
            MPSMatrix::initWithBuffer_offset_descriptor(
                MPSMatrix::alloc(),
                self.raw(),
                offset,
                &descriptor,
            )
        }
    }

    /// # Safety
    /// [`Matrix::check_vector`] has accepted the vector.
    pub(super) unsafe fn vector(&self) -> Retained<MPSVector> {
        let size = self.size();
        // SAFETY: `check_vector` accepts only vectors that have elements, that don't overlap and that end within the buffer.
        unsafe {
            let descriptor =
                MPSVectorDescriptor::vectorDescriptorWithLength_vectors_vectorBytes_dataType(
                    self.columns,
                    self.matrices,
                    self.matrix_bytes(),
                    self.data_type(),
                );
            let offset = self.offset * size;
            MPSVector::initWithBuffer_offset_descriptor(
                MPSVector::alloc(),
                self.raw(),
                offset,
                &descriptor,
            )
        }
    }
}

/// What a step does that reads `inputs` and writes `result`.
pub(super) fn accesses<'a>(
    inputs: impl IntoIterator<Item = Matrix<'a>>,
    result: Matrix,
) -> Vec<Access> {
    let inputs = inputs.into_iter().map(|input| input.access(false));
    inputs.chain([result.access(true)]).collect()
}

/// Refuses a result that overlaps an input.
pub(super) fn check_apart(op: &str, input: &Matrix, result: &Matrix) -> Result<()> {
    match input.access(false).conflicts(&result.access(true)) {
        true => Err(check::error(op, "the result overlaps an input")),
        false => Ok(()),
    }
}

/// A result of the input's shape and dtype.
pub(super) fn check_same(op: &str, input: &Matrix, result: &Matrix) -> Result<()> {
    input.check(op, "input")?;
    result.check(op, "result")?;
    check_apart(op, input, result)?;
    let kind = |x: &Matrix| (x.dtype, x.matrices, x.rows, x.columns);
    if kind(input) != kind(result) {
        let show = |x: &Matrix| format!("{} of {}×{} {:?}", x.matrices, x.rows, x.columns, x.dtype);
        let what = format!(
            "{} to {} given, the same accepted",
            show(input),
            show(result)
        );
        return Err(check::error(op, what));
    }
    Ok(())
}
