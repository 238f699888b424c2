//! Candle's own GEMM, on buffers.

use crate::layout::MatrixLayout;
use crate::metal::{alloc, Operand};
use candle_core::{DType, Error, MetalDevice, MetalError, Result};
use candle_metal_kernels::metal::Buffer;
use candle_metal_kernels::{call_mlx_gemm, GemmDType};
use std::sync::Arc;

/// `x·Wᵀ` for x `[rows, in]` and W `[out, in]`, neither of them empty and both as [`fits`] wants them.
pub(crate) fn gemm(
    device: &MetalDevice,
    x: (&Operand, MatrixLayout),
    w: (&Operand, MatrixLayout),
) -> Result<Arc<Buffer>> {
    stacked_gemm(device, (1, [0, 0]), x, w)
}

/// `count` products. The matrices of each begin `x_next` and `w_next` elements behind those of the one before.
pub(crate) fn stacked_gemm(
    device: &MetalDevice,
    (count, [x_next, w_next]): (usize, [usize; 2]),
    (x, xl): (&Operand, MatrixLayout),
    (w, wl): (&Operand, MatrixLayout),
) -> Result<Arc<Buffer>> {
    let dtype = match x.dtype() {
        DType::F32 => GemmDType::F32,
        DType::F16 => GemmDType::F16,
        DType::BF16 => GemmDType::BF16,
        other => return Err(Error::UnsupportedDTypeForOp(other, "gemm").bt()),
    };
    let out = alloc(device, count * xl.rows * wl.rows, x.dtype())?;
    let guard = device.command_encoder()?;
    call_mlx_gemm(
        device.device(),
        &guard,
        device.kernels(),
        dtype,
        (count, xl.rows, wl.rows, xl.cols),
        &[x_next, xl.row, xl.col],
        x.offset(),
        x.buffer(),
        &[w_next, wl.col, wl.row],
        w.offset(),
        w.buffer(),
        &out,
    )
    .map_err(MetalError::from)?;
    Ok(out)
}

/// Whether GEMM takes a matrix of these strides: it must have rows, or columns, one behind the other.
pub(crate) fn fits(m: MatrixLayout) -> bool {
    let by_row = (m.col == 1 || m.cols == 1) && (m.row == m.cols || m.rows == 1);
    let by_column = (m.row == 1 || m.rows == 1) && (m.col == m.rows || m.cols == 1);
    by_row || by_column
}
