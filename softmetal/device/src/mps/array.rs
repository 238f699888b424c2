//! Matrices and vectors in buffers.

use crate::buffer::{Buffer, BufferOptions};
use crate::device::Device;
use crate::ranges::Ranges;
use half::{bf16, f16};
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    F32,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    Bool,
}

impl DataType {
    pub fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I64 => 8,
        }
    }

    /// # Safety
    /// `at` has a value of this type.
    unsafe fn load(self, at: *const u8) -> f32 {
        // SAFETY: by the caller; nothing is assumed of the alignment.
        unsafe {
            match self {
                Self::F32 => at.cast::<f32>().read_unaligned(),
                Self::F16 => at.cast::<f16>().read_unaligned().to_f32(),
                Self::BF16 => at.cast::<bf16>().read_unaligned().to_f32(),
                Self::I8 => f32::from(at.cast::<i8>().read()),
                Self::U8 | Self::Bool => f32::from(at.read()),
                Self::I16 => f32::from(at.cast::<i16>().read_unaligned()),
                Self::U16 => f32::from(at.cast::<u16>().read_unaligned()),
                Self::I32 => at.cast::<i32>().read_unaligned() as f32,
                Self::U32 => at.cast::<u32>().read_unaligned() as f32,
                Self::I64 => at.cast::<i64>().read_unaligned() as f32,
            }
        }
    }

    /// # Safety
    /// `at` has room for a value of this type.
    unsafe fn store(self, at: *mut u8, value: f32) {
        // SAFETY: by the caller; nothing is assumed of the alignment.
        unsafe {
            match self {
                Self::F32 => at.cast::<f32>().write_unaligned(value),
                Self::F16 => at.cast::<f16>().write_unaligned(f16::from_f32(value)),
                Self::BF16 => at.cast::<bf16>().write_unaligned(bf16::from_f32(value)),
                Self::I8 => at.cast::<i8>().write(value as i8),
                Self::U8 => at.write(value as u8),
                Self::Bool => at.write(u8::from(value != 0.0)),
                Self::I16 => at.cast::<i16>().write_unaligned(value as i16),
                Self::U16 => at.cast::<u16>().write_unaligned(value as u16),
                Self::I32 => at.cast::<i32>().write_unaligned(value as i32),
                Self::U32 => at.cast::<u32>().write_unaligned(value as u32),
                Self::I64 => at.cast::<i64>().write_unaligned(value as i64),
            }
        }
    }
}

/// `MPSMatrixDescriptor`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixDescriptor {
    pub rows: usize,
    pub columns: usize,
    pub matrices: usize,
    pub row_bytes: usize,
    pub matrix_bytes: usize,
    pub data_type: DataType,
}

impl MatrixDescriptor {
    /// The stride that suits the hardware best: a multiple of 16 bytes.
    pub fn recommended_row_bytes(columns: usize, data_type: DataType) -> usize {
        (columns * data_type.size()).next_multiple_of(16)
    }

    /// Bytes from the first element to the end of the last, or none if that is beyond all bounds.
    fn extent(&self) -> Option<usize> {
        let matrices = self
            .matrices
            .checked_sub(1)?
            .checked_mul(self.matrix_bytes)?;
        let rows = self.rows.checked_sub(1)?.checked_mul(self.row_bytes)?;
        let columns = self.columns.checked_mul(self.data_type.size())?;
        matrices.checked_add(rows)?.checked_add(columns)
    }
}

/// `MPSVectorDescriptor`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorDescriptor {
    pub length: usize,
    pub vectors: usize,
    pub vector_bytes: usize,
    pub data_type: DataType,
}

impl VectorDescriptor {
    fn as_matrix(self) -> MatrixDescriptor {
        let Self {
            length,
            vectors,
            vector_bytes,
            data_type,
        } = self;
        MatrixDescriptor {
            rows: 1,
            columns: length,
            matrices: vectors,
            row_bytes: vector_bytes,
            matrix_bytes: vector_bytes,
            data_type,
        }
    }
}

/// `MPSMatrix`
#[derive(Clone)]
pub struct Matrix {
    pub buffer: Arc<Buffer>,
    pub offset: usize,
    pub descriptor: MatrixDescriptor,
}

impl Matrix {
    /// A matrix with a private buffer of its own; none if it is too large.
    pub fn allocate(device: &Arc<Device>, descriptor: MatrixDescriptor) -> Option<Self> {
        let buffer = Buffer::new(device, descriptor.extent()?, BufferOptions::PRIVATE)?;
        Some(Self {
            buffer,
            offset: 0,
            descriptor,
        })
    }

    /// What Apple documents of matrices and this one does not fulfil.
    pub(super) fn problems(&self) -> Vec<String> {
        let MatrixDescriptor {
            rows,
            columns,
            matrices,
            row_bytes,
            matrix_bytes,
            data_type,
        } = self.descriptor;
        let size = data_type.size();
        let mut problems = Vec::new();
        if rows == 0 || columns == 0 || matrices == 0 {
            problems.push(format!("{matrices} matrices of {rows}×{columns} are empty"));
            return problems;
        }
        if !row_bytes.is_multiple_of(size) {
            problems.push(format!(
                "{row_bytes} bytes per row are not a multiple of {size}, its type's size"
            ));
        }
        if rows > 1 && row_bytes < columns.saturating_mul(size) {
            problems.push(format!(
                "{row_bytes} bytes per row are too few for {columns} columns"
            ));
        }
        if matrices > 1 {
            if row_bytes == 0 || !matrix_bytes.is_multiple_of(row_bytes) {
                problems.push(format!(
                    "{matrix_bytes} bytes per matrix are not a multiple of {row_bytes} per row"
                ));
            }
            if matrix_bytes < rows.saturating_mul(row_bytes) {
                problems.push(format!(
                    "{matrix_bytes} bytes per matrix are too few for {rows} rows"
                ));
            }
        }
        if !self.offset.is_multiple_of(size) {
            problems.push(format!(
                "offset {} is not a multiple of {size}, its type's size",
                self.offset
            ));
        }
        let fits = self
            .descriptor
            .extent()
            .and_then(|extent| extent.checked_add(self.offset));
        if fits.is_none_or(|end| end > self.buffer.length()) {
            problems.push(format!(
                "{matrices} matrices of {rows}×{columns} from byte {} on are not in {}",
                self.offset, self.buffer
            ));
        }
        problems
    }
}

/// `MPSVector`
#[derive(Clone)]
pub struct Vector {
    pub buffer: Arc<Buffer>,
    pub offset: usize,
    pub descriptor: VectorDescriptor,
}

impl Vector {
    /// A vector with a private buffer of its own; none if it is too large.
    pub fn allocate(device: &Arc<Device>, descriptor: VectorDescriptor) -> Option<Self> {
        let buffer = Matrix::allocate(device, descriptor.as_matrix())?.buffer;
        Some(Self {
            buffer,
            offset: 0,
            descriptor,
        })
    }

    /// Each vector as a matrix of one row.
    pub(super) fn as_matrix(&self) -> Matrix {
        let Self {
            buffer,
            offset,
            descriptor,
        } = self.clone();
        Matrix {
            buffer,
            offset,
            descriptor: descriptor.as_matrix(),
        }
    }
}

/// A part of a matrix that was checked to be there.
#[derive(Clone)]
pub(super) struct Region {
    pub(super) matrix: Matrix,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Region {
    /// The bytes of the region in all matrices of a batch.
    pub(super) fn ranges(&self, batch: &Range<usize>) -> Ranges {
        let rows = batch
            .clone()
            .flat_map(|k| (0..self.rows).map(move |i| (k, i)));
        rows.map(|(k, i)| self.offset(k, i)..self.offset(k, i) + self.row_length())
            .collect()
    }

    pub(super) fn load(&self, k: usize) -> Vec<f32> {
        let data_type = self.matrix.descriptor.data_type;
        let mut values = Vec::with_capacity(self.rows * self.columns);
        for i in 0..self.rows {
            let row = self.row_pointer(k, i);
            // SAFETY: the region was checked to lie in the buffer.
            values.extend(
                (0..self.columns).map(|j| unsafe { data_type.load(row.add(j * data_type.size())) }),
            );
        }
        values
    }

    pub(super) fn store(&self, k: usize, values: &[f32]) {
        let data_type = self.matrix.descriptor.data_type;
        for (i, values) in values.chunks_exact(self.columns).enumerate() {
            let row = self.row_pointer(k, i);
            for (j, value) in values.iter().enumerate() {
                // SAFETY: the region was checked to lie in the buffer.
                unsafe { data_type.store(row.add(j * data_type.size()), *value) };
            }
        }
    }

    fn row_pointer(&self, k: usize, i: usize) -> *mut u8 {
        // SAFETY: the region was checked to lie in the buffer.
        unsafe { self.matrix.buffer.memory().as_ptr().add(self.offset(k, i)) }
    }

    /// Where row `i` of matrix `k` starts.
    fn offset(&self, k: usize, i: usize) -> usize {
        let MatrixDescriptor {
            row_bytes,
            matrix_bytes,
            data_type,
            ..
        } = self.matrix.descriptor;
        self.matrix.offset
            + k * matrix_bytes
            + (self.row + i) * row_bytes
            + self.column * data_type.size()
    }

    fn row_length(&self) -> usize {
        self.columns * self.matrix.descriptor.data_type.size()
    }
}
