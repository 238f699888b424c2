//! Ops by Metal Performance Shaders, Apple's own matrix kernels: for f32 and f16 on Metal, with gradients.
//!
//! Each call waits for the GPU twice, since Candle 0.11 doesn't hand out its command buffer: that costs 2 to 4 ms, whatever
//! the size. [`matmul_auto`] leaves the products that are too small for that to Candle. The kernels themselves are in
//! [`metal::mps`](crate::metal::mps).

mod activation;
mod matmul;
mod softmax;

pub use activation::{activation, MpsActivation};
pub use matmul::{matmul, matmul_auto, MpsMatmul};
pub use softmax::{softmax, MpsSoftmax};
#[cfg(test)]
mod tests;

use crate::check;
use crate::layout::MatrixLayout;
use crate::metal::mps::{serves, Matrix};
use crate::metal::Operand;
use crate::op::{self, Op, Spec};
use candle_core::{CpuStorage, Layout, MetalStorage, Result, Shape, Tensor};

/// Applies an op to tensors that must be on Metal: there is no reference for other devices.
fn apply<O: Op>(name: &'static str, op: O, args: &[&Tensor]) -> Result<Tensor> {
    check::same_device(name, O::ARGS, args)?;
    if !args[0].device().is_metal() {
        let location = args[0].device().location();
        return Err(check::error(
            name,
            format!("got a tensor on {location:?}, expected Metal"),
        ));
    }
    op::apply_kernel(name, op, args)
}

/// f32 or f16, the same for all arguments.
fn check_dtypes(name: &'static str, names: &[&str], args: &[Spec<'_>]) -> Result<()> {
    let dtype = args[0].dtype;
    if !serves(dtype) {
        let what =
            format!("got dtype {dtype:?}, expected f32 or f16, as Metal Performance Shaders take");
        return Err(check::error(name, what));
    }
    check::same_floats(name, names, args)
}

fn not_on_the_cpu<O: Op>() -> Result<(CpuStorage, Shape)> {
    Err(check::error(
        O::NAME,
        "got a tensor on the CPU, expected Metal",
    ))
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
