//! Rows of a strided tensor, for kernels that read them where they lie.

use super::grid::{self, Grid};
use super::operand::{aligned4, Operand};
use candle_core::{Layout, MetalStorage, Result};

/// Dims that count rows, after merging; tensors with more are copied.
const MAX_DIMS: usize = 6;

/// Rows up to this length get a simdgroup each, with eight loads of four elements for a lane. Longer ones get a
/// threadgroup, which is WIDE in rows.metal.
pub(crate) const SIMD_COLS: usize = 1024;
/// Rows of up to [`SIMD_COLS`] elements that share a threadgroup.
const SIMDGROUPS: usize = 8;

/// Which variant of a row kernel runs, and its grid.
pub(crate) fn row_grid([rows, cols]: [usize; 2]) -> (&'static str, Grid) {
    if cols <= SIMD_COLS {
        ("simd", grid::row_per_simdgroup(rows, SIMDGROUPS))
    } else {
        ("group", grid::row_per_threadgroup(rows, cols, 4))
    }
}

/// `RowStrides` of rows.metal: sizes and strides of the dims that count rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowStrides {
    strides: [u64; MAX_DIMS],
    dims: [u32; MAX_DIMS],
    rank: u32,
    reserved: u32,
}

impl RowStrides {
    /// Rows one behind the other.
    pub(crate) fn contiguous(cols: usize) -> Self {
        Self::new(&[(1, cols)])
    }

    /// At most [`MAX_DIMS`] dims.
    fn new(dims: &[(usize, usize)]) -> Self {
        let mut rows = Self {
            strides: [0; MAX_DIMS],
            dims: [1; MAX_DIMS],
            rank: dims.len() as u32,
            reserved: 0,
        };
        for (i, &(dim, stride)) in dims.iter().enumerate() {
            rows.dims[i] = dim as u32;
            rows.strides[i] = stride as u64;
        }
        rows
    }
}

/// A tensor, and how to get to its rows.
pub(crate) struct RowOperand<'a> {
    pub(crate) operand: Operand<'a>,
    pub(crate) strides: RowStrides,
}

impl<'a> RowOperand<'a> {
    /// Copied only if the elements of a row are not neighbours.
    pub(crate) fn new(storage: &'a MetalStorage, layout: &Layout) -> Result<Self> {
        let (operand, dims) = Operand::rows(storage, layout)?;
        if dims.len() <= MAX_DIMS {
            let strides = RowStrides::new(&dims);
            return Ok(Self { operand, strides });
        }
        let cols = layout.dims().last().copied().unwrap_or(1);
        Ok(Self {
            operand: Operand::contiguous(storage, layout)?,
            strides: RowStrides::contiguous(cols),
        })
    }

    pub(crate) fn parts(&self) -> (&Operand<'a>, RowStrides) {
        (&self.operand, self.strides)
    }
}

/// Whether a kernel may read each row of all these operands, and rows of `cols` elements one behind the other, four
/// elements at a time: its `aligned` parameter.
pub(crate) fn aligned_rows(operands: &[(&Operand, RowStrides)], [rows, cols]: [usize; 2]) -> u32 {
    let starts = operands.iter().all(|(o, _)| aligned4(&[*o]) == 1);
    let mut strides = operands.iter().flat_map(|(_, rows)| rows.strides);
    let rows_too = cols.is_multiple_of(4) && strides.all(|stride| stride % 4 == 0);
    u32::from(starts && (rows == 1 || rows_too))
}
