//! What the Metal kernels of both products have in common.

use super::Call;
use crate::check;
use crate::layout::MatrixLayout;
use crate::metal::Operand;
use crate::op::on_metal::Arg;
use crate::quant::Scheme;
use candle_core::{MetalStorage, Result};

/// Rows of x that a GEMV takes at most; more are multiplied by tiles. The kernels of kernels/bitlinear.metal and
/// kernels/mixed_matmul.metal are instantiated for this number.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows and outputs of a tile: `PACKED_ROWS` and `DEPTH` in the kernels.
pub const TILE: [usize; 2] = [64, 32];

/// The first fields of `Params` in both kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProductParams {
    pub x_row: u64,
    pub x_col: u64,
    pub rows: u32,
    pub outputs: u32,
    pub cols: u32,
    pub row_bytes: u32,
    pub has_bias: u32,
    pub aligned: u32,
}

/// A weight and a bias, to be multiplied with and added to rows of x.
pub struct PackedProduct<'a> {
    pub scheme: &'a Scheme,
    pub outputs: usize,
    pub cols: usize,
    pub codes: Operand<'a>,
    pub scales: Operand<'a>,
    pub offsets: Option<Operand<'a>>,
    pub bias: Option<Operand<'a>>,
}

impl<'a> PackedProduct<'a> {
    pub fn new(op: &str, call: &Call<'a, MetalStorage>) -> Result<Self> {
        let (w, weight, bias) = (call.w, &call.weight, call.bias);
        let (outputs, cols) = w.shape().dims2()?;
        if outputs.max(cols) > i32::MAX as usize {
            let message =
                format!("got a weight of {outputs} by {cols}, expected less than 2^31 each");
            return Err(check::error(op, message));
        }
        let contiguous = |(storage, layout): Arg<'a>| Operand::contiguous(storage, layout);
        Ok(PackedProduct {
            scheme: w.scheme(),
            outputs,
            cols,
            codes: contiguous(weight.codes)?,
            scales: contiguous(weight.scales)?,
            offsets: weight.offsets.map(contiguous).transpose()?,
            bias: bias.map(contiguous).transpose()?,
        })
    }

    /// The parameters for the rows of x.
    pub fn params(&self, x: MatrixLayout) -> ProductParams {
        let row_bytes = self.scheme.row_bytes(self.cols);
        let aligned = self.codes.is_aligned(4) && row_bytes.is_multiple_of(4);
        let [x_row, x_col] = [x.row, x.col].map(|stride| stride as u64);
        let sizes = [x.rows, self.outputs, self.cols, row_bytes];
        let [rows, outputs, cols, row_bytes] = sizes.map(|size| size as u32);
        ProductParams {
            x_row,
            x_col,
            rows,
            outputs,
            cols,
            row_bytes,
            has_bias: self.bias.is_some().into(),
            aligned: aligned.into(),
        }
    }
}
