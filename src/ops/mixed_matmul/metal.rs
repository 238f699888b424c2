//! Launches of kernels/mixed_matmul.metal.

use super::{Quantized, WeightArgs, NAME};
use crate::metal::matmul::{Arg, Matrix};
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::ops::packed::metal::{code_rows, MAX_GEMV_ROWS, TILE};
use crate::quant::{Levels, Packing, ScaleScope, Scheme};
use candle_core::backend::BackendStorage;
use candle_core::{MetalDevice, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Params {
    x_row: u64,
    x_col: u64,
    rows: u32,
    outputs: u32,
    cols: u32,
    row_bytes: u32,
    group: u32,
    scales_stride: u32,
    offsets: u32,
    sign_bit: u32,
    has_bias: u32,
    aligned: u32,
    zero: f32,
    factor: f32,
}

impl Params {
    /// The fields that the weight determines; the others are 0.
    fn of_weight(scheme: &Scheme, outputs: usize, cols: usize) -> Self {
        const ZERO_POINTS: u32 = 1;
        const BIASES: u32 = 2;
        let (group, scales_stride) = match scheme.scope {
            ScaleScope::Group(group) if group < cols => (group, cols / group),
            ScaleScope::Row | ScaleScope::Group(_) => (0, 1),
            ScaleScope::Tensor | ScaleScope::Column => (0, 0),
        };
        let (zero, factor, offsets) = match scheme.levels {
            Levels::Ternary => (1.0, 1.0, 0),
            Levels::Sign { .. } => (0.5, 2.0, 0),
            Levels::Int8 => (0.0, 1.0, 0),
            Levels::ZeroPoint { .. } => (0.0, 1.0, ZERO_POINTS),
            Levels::Affine { .. } => (0.0, 1.0, BIASES),
        };
        Params {
            x_row: 0,
            x_col: 0,
            rows: 0,
            outputs: outputs as u32,
            cols: cols as u32,
            row_bytes: scheme.row_bytes(cols) as u32,
            group: group as u32,
            scales_stride: scales_stride as u32,
            offsets,
            sign_bit: if scheme.levels == Levels::Int8 {
                0x80
            } else {
                0
            },
            has_bias: 0,
            aligned: 0,
            zero,
            factor,
        }
    }
}

pub fn forward(
    w: &Quantized,
    parts: WeightArgs<MetalStorage>,
    x: Arg,
    bias: Option<Arg>,
) -> Result<MetalStorage> {
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let x = Matrix::new(NAME, x)?;
    let product = Product::new(w, parts, &x, bias.as_ref())?;
    let (rows, outputs) = (x.layout.rows, product.outputs);
    if rows > MAX_GEMV_ROWS {
        return product.run("fwd_tile", "", outputs, grid::blocks(rows, outputs, TILE));
    }
    let per_byte = w.scheme().per_byte();
    // As many outputs to a simdgroup as `OUTPUTS` in the kernels.
    let (max_rows, outputs_each) = match (rows, per_byte) {
        (0 | 1, 1 | 2) => (1, 8),
        (0 | 1, _) => (1, 16),
        _ => (MAX_GEMV_ROWS, 4),
    };
    let grid = grid::gemv(
        outputs,
        outputs_each,
        per_byte,
        x.operand.dtype().size_in_bytes(),
    );
    product.run("fwd_gemv", &format!("_{max_rows}"), outputs, grid)
}

/// `x·W`, the gradient of x.
pub fn transposed(w: &Quantized, parts: WeightArgs<MetalStorage>, x: Arg) -> Result<MetalStorage> {
    let x = Matrix::new(NAME, x)?;
    let product = Product::new(w, parts, &x, None)?;
    let grid = grid::blocks(x.layout.rows, product.cols, TILE);
    product.run("bwd_x_tile", "", product.cols, grid)
}

struct Product<'a> {
    w: &'a Quantized,
    device: &'a MetalDevice,
    x: &'a Matrix<'a>,
    codes: Operand<'a>,
    scales: Operand<'a>,
    offsets: Option<Operand<'a>>,
    bias: Option<&'a Operand<'a>>,
    params: Params,
    outputs: usize,
    cols: usize,
}

impl<'a> Product<'a> {
    fn new(
        w: &'a Quantized,
        weight: WeightArgs<'a, MetalStorage>,
        x: &'a Matrix<'a>,
        bias: Option<&'a Operand<'a>>,
    ) -> Result<Self> {
        let (outputs, cols) = w.shape().dims2()?;
        let device = weight.codes.0.device();
        let (codes, aligned) = code_rows(NAME, w, weight.codes)?;
        let contiguous = |(storage, layout): Arg<'a>| Operand::contiguous(storage, layout);
        Ok(Product {
            w,
            device,
            x,
            codes,
            scales: contiguous(weight.scales)?,
            offsets: weight.offsets.map(contiguous).transpose()?,
            bias,
            params: Params {
                x_row: x.layout.row as u64,
                x_col: x.layout.col as u64,
                rows: x.layout.rows as u32,
                has_bias: bias.is_some().into(),
                aligned: aligned.into(),
                ..Params::of_weight(w.scheme(), outputs, cols)
            },
            outputs,
            cols,
        })
    }

    /// Launches the kernel for the weight's packing; its rows have `width` outputs.
    fn run(
        &self,
        kernel: &str,
        variant: &str,
        width: usize,
        grid: grid::Grid,
    ) -> Result<MetalStorage> {
        let (dtype, count) = (self.x.operand.dtype(), self.x.layout.rows * width);
        let out = alloc(self.device, count, dtype)?;
        if count > 0 {
            let codes = match (self.w.scheme().packing, self.w.scheme().bits()) {
                (Packing::Base3, _) => "base3".to_string(),
                (Packing::Bits, bits) => bits.to_string(),
            };
            let dtype = dtype_name(dtype, NAME)?;
            let kernel = format!("{NAME}_{kernel}_{codes}{variant}_{dtype}");
            Launch::new(self.device, &sources::MIXED_MATMUL, &kernel)?
                .input(&self.x.operand)
                .input(&self.codes)
                .input(&self.scales)
                .input_or(self.offsets.as_ref(), &self.scales)
                .input_or(self.bias, &self.scales)
                .output(&out)
                .params(&self.params)
                .run(grid)?;
        }
        Ok(finish(out, self.device, count, dtype))
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "mixed_matmul" Params {
        x_row, x_col, rows, outputs, cols, row_bytes, group, scales_stride, offsets, sign_bit,
        has_bias, aligned, zero, factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_per_group_per_row_or_one_for_all() {
        let of = |per| {
            let params = Params::of_weight(&Scheme::ternary(per), 3, 40);
            (params.group, params.scales_stride)
        };
        assert_eq!(of(ScaleScope::Group(20)), (20, 2));
        assert_eq!(of(ScaleScope::Group(40)), (0, 1));
        assert_eq!(of(ScaleScope::Row), (0, 1));
        assert_eq!(of(ScaleScope::Tensor), (0, 0));
    }
}
