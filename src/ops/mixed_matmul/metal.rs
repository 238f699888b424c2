//! Launches of kernels/mixed_matmul.metal.

use super::{Activations, Quantized, NAME};
use crate::metal::matmul::Matrix;
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch};
use crate::op::on_metal::Arg;
use crate::ops::packed::metal::{PackedProduct, ProductParams, MAX_GEMV_ROWS, TILE};
use crate::ops::packed::{Call, WeightArgs};
use crate::ops::quantize::metal::fake_quantize;
use crate::quant::{Levels, Packing, ScaleScope, Scheme};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalDevice, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    product: ProductParams,
    group: u32,
    scales_stride: u32,
    offsets: u32,
    sign_bit: u32,
    zero: f32,
    factor: f32,
}

impl Params {
    fn new(product: ProductParams, scheme: &Scheme) -> Self {
        const ZERO_POINTS: u32 = 1;
        const BIASES: u32 = 2;
        const SIGN_BIT: u32 = 0x80;
        let (zero, factor, offsets, sign_bit) = match scheme.levels {
            Levels::Ternary => (1.0, 1.0, 0, 0),
            Levels::Sign { .. } => (0.5, 2.0, 0, 0),
            Levels::Int8 => (0.0, 1.0, 0, SIGN_BIT),
            Levels::ZeroPoint { .. } => (0.0, 1.0, ZERO_POINTS, 0),
            Levels::Affine { .. } => (0.0, 1.0, BIASES, 0),
        };
        let (group, scales_stride) = group_and_stride(scheme.scope, product.cols);
        Params {
            product,
            group,
            scales_stride,
            offsets,
            sign_bit,
            zero,
            factor,
        }
    }
}

/// The columns that share a scale, 0 where a row has one scale at most, and the scales from an output to the next.
fn group_and_stride(scope: ScaleScope, cols: u32) -> (u32, u32) {
    match scope {
        ScaleScope::Group(group) if group < cols as usize => (group as u32, cols / group as u32),
        ScaleScope::Row | ScaleScope::Group(_) => (0, 1),
        ScaleScope::Tensor | ScaleScope::Column => (0, 0),
    }
}

/// Activations that are rounded to 8 bits are multiplied as floats of x's dtype, which they are rounded to.
pub fn forward(call: &Call<MetalStorage>, activations: Activations) -> Result<MetalStorage> {
    let Some(scheme) = activations.scheme(call.w) else {
        return multiply(call);
    };
    let layout = Layout::contiguous(call.x.1.shape());
    if layout.shape().elem_count() == 0 {
        return multiply(call);
    }
    let x = fake_quantize(scheme, call.x)?;
    multiply(&Call {
        x: (&x, &layout),
        ..*call
    })
}

fn multiply(call: &Call<MetalStorage>) -> Result<MetalStorage> {
    let product = PackedProduct::new(NAME, call)?;
    let (w, x) = (call.w, call.x);
    let (device, dtype, x) = (x.0.device(), x.0.dtype(), Matrix::new(NAME, x)?);
    let (rows, outputs) = (x.layout.rows, product.outputs);
    if rows > MAX_GEMV_ROWS {
        let grid = grid::blocks(rows, outputs, TILE);
        return run(device, &product, &x, ("fwd_tile", ""), outputs, grid);
    }
    let per_byte = w.scheme().per_byte();
    // As many outputs to a simdgroup as `OUTPUTS` in the kernels.
    let (max_rows, outputs_each) = match (rows, per_byte) {
        (0 | 1, 1 | 2) => (1, 8),
        (0 | 1, _) => (1, 16),
        _ => (MAX_GEMV_ROWS, 4),
    };
    let grid = grid::gemv(outputs, outputs_each, per_byte, dtype.size_in_bytes());
    let variant = format!("_{max_rows}");
    run(device, &product, &x, ("fwd_gemv", &variant), outputs, grid)
}

/// `x·W`, the gradient of x.
pub fn transposed(w: &Quantized, weight: WeightArgs<MetalStorage>, x: Arg) -> Result<MetalStorage> {
    let bias = None;
    let product = PackedProduct::new(NAME, &Call { w, weight, x, bias })?;
    let (device, x) = (x.0.device(), Matrix::new(NAME, x)?);
    let grid = grid::blocks(x.layout.rows, product.cols, TILE);
    run(device, &product, &x, ("bwd_x_tile", ""), product.cols, grid)
}

/// Launches the kernel for the weight's packing; rows of its result have `width` elements.
fn run(
    device: &MetalDevice,
    product: &PackedProduct,
    x: &Matrix,
    (kernel, variant): (&str, &str),
    width: usize,
    grid: grid::Grid,
) -> Result<MetalStorage> {
    let (dtype, count) = (x.operand.dtype(), x.layout.rows * width);
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        let codes = match (product.scheme.packing, product.scheme.bits()) {
            (Packing::Base3, _) => "base3".to_string(),
            (Packing::Bits, bits) => bits.to_string(),
        };
        let name = dtype_name(dtype, NAME)?;
        let kernel = format!("{NAME}_{kernel}_{codes}{variant}_{name}");
        Launch::new(device, &sources::MIXED_MATMUL, &kernel)?
            .input(&x.operand)
            .input(&product.codes)
            .input(&product.scales)
            .input_or(product.offsets.as_ref(), &product.scales)
            .input_or(product.bias.as_ref(), &product.scales)
            .output(&out)
            .params(&Params::new(product.params(x.layout), product.scheme))
            .run(grid)?;
    }
    Ok(finish(out, device, count, dtype))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "mixed_matmul" Params {
        product.x_row, product.x_col, product.rows, product.outputs, product.cols,
        product.row_bytes, product.has_bias, product.aligned, group, scales_stride, offsets,
        sign_bit, zero, factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_per_group_per_row_or_one_for_all() {
        let of = |scope| group_and_stride(scope, 40);
        assert_eq!(of(ScaleScope::Group(20)), (20, 2));
        assert_eq!(of(ScaleScope::Group(40)), (0, 1));
        assert_eq!(of(ScaleScope::Row), (0, 1));
        assert_eq!(of(ScaleScope::Tensor), (0, 0));
    }
}
