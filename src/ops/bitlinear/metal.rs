//! Launches of kernels/bitlinear.metal. x is rounded to integers by kernels/quantize.metal, or by the GEMV itself.

use super::{ScaleScope, INPUT_SCHEME, NAME};
use crate::metal::matmul::Matrix;
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::op::on_metal::Arg;
use crate::ops::packed::metal::{PackedProduct, ProductParams, MAX_GEMV_ROWS, TILE};
use crate::ops::packed::Call;
use crate::ops::quantize::metal::quantize;
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    product: ProductParams,
    /// 0 where one scale serves all outputs.
    scale_stride: u32,
    eps: f32,
}

/// The instantiation of the GEMV kernel for a number of rows.
#[derive(Clone, Copy)]
struct Gemv {
    /// The largest number of rows that it takes.
    max_rows: usize,
    /// Outputs of a simdgroup: `OUTPUTS` in the kernel.
    outputs: usize,
    /// Columns whose integers are in threadgroup memory at a time: 32 times `STAGED` in the kernel.
    staged_cols: usize,
}

/// Numbers of x that a thread keeps while it rounds a row: `KEPT` in the kernel.
const KEPT: usize = 8;

impl Gemv {
    fn new(rows: usize) -> Self {
        match rows {
            0 | 1 => Gemv {
                max_rows: 1,
                outputs: 8,
                staged_cols: 256 * 32,
            },
            _ => Gemv {
                max_rows: MAX_GEMV_ROWS,
                outputs: 4,
                staged_cols: 64 * 32,
            },
        }
    }

    /// The grid of the kernel that rounds x itself, which saves a launch. `None` if x does not fit threadgroup memory and
    /// registers, or if the repeated reads of x by all threadgroups would be more than a 32nd of the codes.
    fn fused(
        &self,
        (rows, cols, outputs): (usize, usize, usize),
        codes_per_byte: usize,
        x_bytes: usize,
    ) -> Option<grid::Grid> {
        let codes = outputs * cols.div_ceil(codes_per_byte);
        let simdgroups = outputs.div_ceil(self.outputs);
        let serves = |grid: &grid::Grid| {
            let again = (grid.groups[0] - 1) * rows * cols * x_bytes;
            cols <= self.staged_cols.min(KEPT * grid.threads[0]) && 32 * again <= codes
        };
        [8, 16, 32]
            .map(|per_group| grid::row_per_simdgroup(simdgroups, per_group))
            .into_iter()
            .find(serves)
    }
}

pub fn forward(call: &Call<MetalStorage>) -> Result<MetalStorage> {
    let x = call.x;
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let product = PackedProduct::new(NAME, call)?;
    let matrix = Matrix::new(NAME, x)?;
    let count = matrix.layout.rows * product.outputs;
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        multiply(&product, x, &matrix, &out)?;
    }
    Ok(finish(out, device, count, dtype))
}

/// `matrix` is x as rows and columns.
fn multiply(product: &PackedProduct, x: Arg, matrix: &Matrix, out: &Buffer) -> Result<()> {
    let &PackedProduct {
        scheme,
        outputs,
        cols,
        ..
    } = product;
    let (rows, bits, dtype) = (matrix.layout.rows, scheme.bits(), x.0.dtype());
    let device = x.0.device();
    let launch = |variant: String, (x, x_scales): (&Matrix, &Operand), grid| {
        let kernel = format!("{NAME}_fwd_{variant}_{}", dtype_name(dtype, NAME)?);
        let params = Params {
            product: product.params(x.layout),
            scale_stride: u32::from(scheme.scope != ScaleScope::Tensor),
            eps: INPUT_SCHEME.eps,
        };
        Launch::new(device, &sources::BITLINEAR, &kernel)?
            .input(&x.operand)
            .input(x_scales)
            .input(&product.codes)
            .input(&product.scales)
            .input_or(product.bias.as_ref(), &product.scales)
            .output(out)
            .params(&params)
            .run(grid)
    };
    let few = rows <= MAX_GEMV_ROWS;
    let gemv = Gemv::new(rows);
    let fused = || {
        gemv.fused(
            (rows, cols, outputs),
            scheme.per_byte(),
            dtype.size_in_bytes(),
        )
    };
    if let Some(grid) = few.then(fused).flatten() {
        // The scales of x's rows are the kernel's own; W's fill the binding.
        let variant = format!("gemv_fused_{bits}_{}", gemv.max_rows);
        return launch(variant, (matrix, &product.scales), grid);
    }
    let (integers, x_scales, _) = quantize(INPUT_SCHEME, x.0, x.1)?;
    let layout = Layout::contiguous((rows, cols));
    let integers = Matrix::new(NAME, (&integers, &layout))?;
    let x_scales = Operand::contiguous(&x_scales, &Layout::contiguous(rows))?;
    let (variant, grid) = match few {
        true => (
            format!("gemv_{bits}_{}", gemv.max_rows),
            grid::gemv(outputs, gemv.outputs, scheme.per_byte(), 1),
        ),
        false => (format!("tile_{bits}"), grid::blocks(rows, outputs, TILE)),
    };
    launch(variant, (&integers, &x_scales), grid)
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "bitlinear" Params {
        product.x_row, product.x_col, product.rows, product.outputs, product.cols,
        product.row_bytes, product.has_bias, product.aligned, scale_stride, eps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_is_rounded_by_the_gemv_where_that_reads_little_more() {
        let fused = |size: (usize, usize, usize), per_byte, x_bytes| {
            let grid = Gemv::new(size.0).fused(size, per_byte, x_bytes)?;
            Some((grid.groups[0], grid.threads[0] / grid::SIMD))
        };
        // One threadgroup reads x once in any case.
        assert_eq!(fused((1, 2048, 64), 4, 4), Some((1, 8)));
        assert_eq!(fused((8, 2048, 32), 8, 4), Some((1, 8)));
        // With codes of 2 bits and x in 16 bits, 256 outputs are enough to share a read of x.
        assert_eq!(fused((1, 2560, 13_824), 4, 2), Some((54, 32)));
        assert_eq!(fused((1, 2560, 13_824), 4, 4), None);
        assert_eq!(fused((1, 2560, 13_824), 8, 2), None);
        // Threads have to keep x in registers, or they would read it again.
        assert_eq!(fused((1, 2049, 64), 4, 2), None);
        assert_eq!(fused((1, 2049, 128), 4, 2), Some((1, 16)));
        // The integers have to fit threadgroup memory.
        assert_eq!(fused((1, 8192, 256), 4, 2), Some((1, 32)));
        assert_eq!(fused((1, 8193, 256), 4, 2), None);
        assert_eq!(fused((2, 2049, 32), 4, 2), None);
    }
}
