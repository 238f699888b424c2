//! What the Metal kernels of both products have in common.

use crate::check;
use crate::metal::matmul::Arg;
use crate::metal::Operand;
use crate::quant::Quantized;
use candle_core::Result;

/// Rows of x that a GEMV takes at most; more are multiplied by tiles. The kernels of kernels/bitlinear.metal and
/// kernels/mixed_matmul.metal are instantiated for this number.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows and outputs of a tile: `ROWS` and `DEPTH` in the kernels.
pub const TILE: [usize; 2] = [64, 32];

/// A weight's packed codes, and whether every row of them may be read four bytes at a time.
pub fn code_rows<'a>(op: &str, w: &Quantized, codes: Arg<'a>) -> Result<(Operand<'a>, bool)> {
    let (outputs, cols) = w.shape().dims2()?;
    if outputs.max(cols) > i32::MAX as usize {
        let message = format!("got a weight of {outputs} by {cols}, expected less than 2^31 each");
        return Err(check::error(op, message));
    }
    let operand = Operand::contiguous(codes.0, codes.1)?;
    let aligned = operand.is_aligned(4) && w.scheme().row_bytes(cols).is_multiple_of(4);
    Ok((operand, aligned))
}
