//! The ops by Metal Performance Shaders.

mod activation;
mod matmul;
mod softmax;

pub use activation::{activation, MpsActivation};
#[cfg(test)]
pub(super) use matmul::matmul_where;
pub use matmul::{matmul, matmul_auto, MpsMatmul};
pub use softmax::{softmax, MpsSoftmax};

#[cfg(test)]
pub(super) use matmul::forward_in_parts;

use super::policy;
use super::Matrix;
use crate::check;
use crate::layout::MatrixLayout;
use crate::metal::Operand;
use candle_core::{DType, Error, Layout, MetalStorage, Result, Tensor};

/// f32 or f16 on Metal.
fn check_tensor(op: &str, x: &Tensor) -> Result<()> {
    if !x.device().is_metal() {
        return Err(not_on_metal(op, &format!("{:?}", x.device().location())));
    }
    check_dtype(op, x.dtype())
}

fn check_dtype(op: &str, dtype: DType) -> Result<()> {
    if !policy::serves(dtype) {
        let what =
            format!("dtype {dtype:?} given, f32 or f16 accepted by Metal Performance Shaders");
        return Err(check::error(op, what));
    }
    Ok(())
}

fn not_on_metal(op: &str, location: &str) -> Error {
    check::error(
        op,
        format_args!("a tensor on {location} given, Metal accepted"),
    )
}

/// The rows of a tensor that is not empty, where they lie if Metal Performance Shaders can be told so.
struct Rows<'a> {
    operand: Operand<'a>,
    layout: MatrixLayout,
}

impl<'a> Rows<'a> {
    fn new(storage: &'a MetalStorage, layout: &Layout) -> Result<Self> {
        let rows = MatrixLayout::new(layout).filter(|m| m.col == 1 && m.row >= m.cols);
        Ok(match rows {
            Some(rows) => Self {
                operand: Operand::strided(storage, layout),
                layout: rows,
            },
            None => Self {
                operand: Operand::contiguous(storage, layout)?,
                layout: MatrixLayout::of_shape(layout.shape()),
            },
        })
    }

    fn matrix(&self) -> Matrix<'_> {
        let MatrixLayout {
            rows, cols, row, ..
        } = self.layout;
        first_of(&self.operand, rows, cols).with_row_stride(row)
    }
}

/// A matrix at the start of an operand.
fn first_of<'a>(operand: &'a Operand, rows: usize, columns: usize) -> Matrix<'a> {
    let dtype = operand.dtype();
    let start = operand.offset() / dtype.size_in_bytes();
    Matrix::new(operand.buffer(), dtype, rows, columns).at(start)
}
