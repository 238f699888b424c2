//! Products of matrices by `MPSMatrixMultiplication` and `MPSMatrixVectorMultiplication`: `z = x·y`, backward `dx = g·yᵀ`,
//! `dy = xᵀ·g`.
//!
//! Operands are read where they lie, transposed too, if their rows or their columns are in one piece each.

use super::{apply, check_dtypes, first_of, not_on_the_cpu};
use crate::check;
use crate::metal::mps::stored::{folded, Stored};
use crate::metal::mps::{
    is_supported, session, Matrix, MpsSession, Multiplication, Product, VectorMultiplication, Way,
};
use crate::metal::{alloc, finish, Operand};
use crate::op::{self, custom_op, signature, Args, Grads, Op, OpResult, Spec};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, MetalDevice, MetalStorage, Result, Shape, Tensor};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

const NAME: &str = "mps_matmul";

type Arg<'a> = op::Arg<'a, MetalStorage>;

/// `x·y` for x `[.., m, k]` and y `[.., k, n]` with the same leading dims, f32 or f16 on Metal, of any layout.
///
/// Differentiable in both. Waits for the GPU whatever the size: see [`matmul_auto`].
pub fn matmul(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    apply(NAME, MpsMatmul, &[x, y])
}

/// [`matmul`] where that is likely to pay, by [`Product::pays`]; Candle's own product for all other tensors.
pub fn matmul_auto(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    matmul_where(x, y, Product::pays)
}

/// [`matmul_auto`] by another rule.
pub(super) fn matmul_where(
    x: &Tensor,
    y: &Tensor,
    pays: impl Fn(Product, DType) -> bool,
) -> Result<Tensor> {
    match output_shape(x.layout(), y.layout()) {
        Ok((product, _)) if pays(product, x.dtype()) && is_supported(x.device()) => matmul(x, y),
        _ => x.matmul(y),
    }
}

/// [`matmul`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct MpsMatmul;

custom_op!(MpsMatmul: CustomOp2);

impl Op for MpsMatmul {
    signature!(NAME(x, y));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_dtypes(name, Self::ARGS, args)?;
        output_shape(args[0].layout, args[1].layout).map(drop)
    }
    fn cpu(&self, _: Args<CpuStorage>) -> OpResult<CpuStorage> {
        not_on_the_cpu::<Self>()
    }
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        forward_in_parts(args[0], args[1], usize::MAX)
    }
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, y) = (inputs[0], inputs[1]);
        let dx = || matmul(g, &y.t()?);
        let dy = || matmul(&x.t()?, g);
        op::grads(inputs, &[&dx, &dy])
    }
}

/// The sizes of the product, and the shape of its result.
fn output_shape(x: &Layout, y: &Layout) -> Result<(Product, Shape)> {
    let (xs, ys) = (x.dims(), y.dims());
    let refuse = || {
        let what = format!("got {xs:?} by {ys:?}, expected [.., m, k] by [.., k, n]");
        check::error(NAME, what)
    };
    let ([leading @ .., m, k], [others @ .., inner, n]) = (xs, ys) else {
        return Err(refuse());
    };
    if leading != others || k != inner {
        return Err(refuse());
    }
    let (m, n, k) = (*m, *n, *k);
    let shape = Shape::from([leading, &[m, n]].concat());
    // Operands may have been broadcast to any size.
    for (name, dims) in [("the result", shape.dims()), ("x", xs), ("y", ys)] {
        check::fits_in_memory(NAME, name, dims)?;
    }
    let matrices = leading.iter().product();
    Ok((Product { matrices, m, n, k }, shape))
}

/// The product, at most `most` columns of the result at a time.
pub(super) fn forward_in_parts(x: Arg, y: Arg, most: usize) -> OpResult<MetalStorage> {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let (product, shape) = output_shape(x.1, y.1)?;
    let count = shape.elem_count();
    let out = if count > 0 && product.k == 0 {
        let bytes = count * dtype.size_in_bytes();
        device.new_buffer_builder().with_zeros(bytes).build()?
    } else if count == 0 {
        alloc(device, 0, dtype)?
    } else {
        multiply(device, x, y, most)?
    };
    Ok((finish(out, device, count, dtype), shape))
}

fn multiply(device: &MetalDevice, x: Arg, y: Arg, most: usize) -> Result<Arc<Buffer>> {
    let folded = folded(x.1, y.1);
    let (xl, yl) = folded.as_ref().map_or((x.1, y.1), |(x, y)| (x, y));
    let (product, _) = output_shape(xl, yl)?;
    let Product { matrices, m, n, k } = product;
    let dtype = x.0.dtype();
    let (x, y) = (Side::new(x.0, xl)?, Side::new(y.0, yl)?);
    let vector = if n == 1 { &y } else { &x };
    let way = product.way(dtype, vector.stored.is_dense_vector());
    let Some(way) = way else {
        let what =
            format!("got {m}×{k} by {k}×{n}, expected m + 2k elements of less than 2^31 bytes");
        return Err(check::error(NAME, what));
    };
    let out = alloc(device, matrices * m * n, dtype)?;
    let result = Matrix::new(&out, dtype, m, n);
    session(device, NAME, |session| match way {
        Way::Vector => vector_step(session, &x, &y, result),
        Way::Matrix { columns } => {
            for (x, y, result) in pairs(&x, &y, result, matrices) {
                for first in (0..n).step_by(columns.min(most)) {
                    let columns = columns.min(most).min(n - first);
                    session.encode(&part(x, y, result, first, columns))?;
                }
            }
            Ok(())
        }
    })?;
    Ok(out)
}

/// An operand, copied if need be.
struct Side<'a> {
    operand: Operand<'a>,
    stored: Stored,
}

/// Matrices as they are stored, and whether they are meant transposed.
type Oriented<'a> = (Matrix<'a>, bool);

impl<'a> Side<'a> {
    fn new(storage: &'a MetalStorage, layout: &Layout) -> Result<Self> {
        Ok(match Stored::new(layout) {
            Some(stored) => Self {
                operand: Operand::strided(storage, layout),
                stored,
            },
            None => Self {
                operand: Operand::contiguous(storage, layout)?,
                stored: Stored::of_shape(layout.shape()),
            },
        })
    }

    /// The first of its matrices.
    fn first(&self) -> Oriented<'_> {
        let &Stored {
            transposed,
            columns,
            rows,
            row_stride,
            ..
        } = &self.stored;
        let matrix = first_of(&self.operand, rows, columns).with_row_stride(row_stride);
        (matrix, transposed)
    }
}

/// What is to be multiplied with each other: all matrices at once, or one by one where no stride leads from one to the
/// next.
fn pairs<'a>(
    x: &'a Side,
    y: &'a Side,
    result: Matrix<'a>,
    matrices: usize,
) -> Vec<(Oriented<'a>, Oriented<'a>, Matrix<'a>)> {
    let size = result.rows * result.columns;
    let ((x_first, x_turned), (y_first, y_turned)) = (x.first(), y.first());
    if let (Some(xs), Some(ys)) = (x.stored.matrix_stride(), y.stored.matrix_stride()) {
        let x = (x_first.times(matrices, xs), x_turned);
        let y = (y_first.times(matrices, ys), y_turned);
        return vec![(x, y, result.times(matrices, size))];
    }
    let starts = x.stored.starts().into_iter().zip(y.stored.starts());
    let pair = |(i, (x, y)): (usize, (usize, usize))| {
        let (x, y) = ((x_first.at(x), x_turned), (y_first.at(y), y_turned));
        (x, y, result.at(i * size))
    };
    starts.enumerate().map(pair).collect()
}

/// So many columns of the result, from the first on.
fn part<'a>(
    (x, x_turned): Oriented<'a>,
    (y, y_turned): Oriented<'a>,
    result: Matrix<'a>,
    first: usize,
    columns: usize,
) -> Multiplication<'a> {
    let right = match y_turned {
        true => Matrix {
            rows: columns,
            ..y.at(first * y.row_stride)
        },
        false => Matrix {
            columns,
            ..y.at(first)
        },
    };
    let result = Matrix {
        columns,
        ..result.at(first)
    };
    Multiplication {
        transpose_left: x_turned,
        transpose_right: y_turned,
        ..Multiplication::new(x, right, result)
    }
}

/// For an x of one row or a y of one column, which is in one piece.
fn vector_step<'a>(
    session: &mut MpsSession<'a>,
    x: &'a Side,
    y: &'a Side,
    result: Matrix<'a>,
) -> Result<()> {
    let as_row = |x: Matrix<'a>| Matrix::new(x.buffer, x.dtype, 1, x.rows * x.columns).at(x.offset);
    let ((x, x_turned), (y, y_turned)) = (x.first(), y.first());
    // A row by a matrix is the transposed matrix by that row.
    let (matrix, transpose, vector) = match result.columns {
        1 => (x, x_turned, y),
        _ => (y, !y_turned, x),
    };
    session.encode(&VectorMultiplication {
        transpose,
        ..VectorMultiplication::new(matrix, as_row(vector), as_row(result))
    })
}
