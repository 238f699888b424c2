//! Launches of kernels/mixed_matmul.metal.

use super::{Parts, Quantized, NAME};
use crate::check;
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::ops::linear::metal::{Arg, Matrix};
use crate::ops::quantize::{Grid, Packing, Per, Scheme};
use candle_core::backend::BackendStorage;
use candle_core::{MetalDevice, MetalStorage, Result};

/// More rows are a matter for tiles.
pub const MAX_ROWS: usize = 8;
/// Rows and columns of a tile of outputs.
pub const TILE: [usize; 2] = [64, 32];

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
    units_stride: u32,
    offsets: u32,
    flip: u32,
    has_bias: u32,
    aligned: u32,
    zero: f32,
    factor: f32,
}

impl Params {
    /// Of the weight alone.
    fn of_weight(scheme: &Scheme, outputs: usize, cols: usize) -> Self {
        const ZEROS: u32 = 1;
        const BIASES: u32 = 2;
        let (group, units_stride) = match scheme.per {
            Per::Group(group) if group < cols => (group, cols / group),
            Per::Row | Per::Group(_) => (0, 1),
            Per::Tensor | Per::Column => (0, 0),
        };
        let (zero, factor, offsets) = match scheme.grid {
            Grid::Ternary => (1.0, 1.0, 0),
            Grid::Sign { .. } => (0.5, 2.0, 0),
            Grid::Int8 => (0.0, 1.0, 0),
            Grid::ZeroPoint { .. } => (0.0, 1.0, ZEROS),
            Grid::Affine { .. } => (0.0, 1.0, BIASES),
        };
        Params {
            x_row: 0,
            x_col: 0,
            rows: 0,
            outputs: outputs as u32,
            cols: cols as u32,
            row_bytes: scheme.row_bytes(cols) as u32,
            group: group as u32,
            units_stride: units_stride as u32,
            offsets,
            flip: if scheme.grid == Grid::Int8 { 0x80 } else { 0 },
            has_bias: 0,
            aligned: 0,
            zero,
            factor,
        }
    }
}

/// A weight's codes where they lie, and whether every row may be read four bytes at a time.
pub fn code_rows<'a>(op: &str, w: &Quantized, codes: Arg<'a>) -> Result<(Operand<'a>, bool)> {
    let (outputs, cols) = w.shape().dims2()?;
    if outputs.max(cols) > i32::MAX as usize {
        let message = format!("a weight of {outputs} by {cols} given, less than 2^31 accepted");
        return Err(check::error(op, message));
    }
    let operand = Operand::contiguous(codes.0, codes.1)?;
    let aligned = operand.is_aligned(4) && w.scheme().row_bytes(cols).is_multiple_of(4);
    Ok((operand, aligned))
}

pub fn forward(
    w: &Quantized,
    parts: Parts<MetalStorage>,
    x: Arg,
    bias: Option<Arg>,
) -> Result<MetalStorage> {
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let x = Matrix::new(NAME, x)?;
    let product = Product::new(w, parts, &x, bias.as_ref())?;
    let (rows, outputs) = (x.layout.rows, product.outputs);
    if rows > MAX_ROWS {
        return product.run("fwd_tile", "", outputs, grid::blocks(rows, outputs, TILE));
    }
    let per_byte = w.scheme().per_byte();
    let (most, per) = match (rows, per_byte) {
        (0 | 1, 1 | 2) => (1, 8),
        (0 | 1, _) => (1, 16),
        _ => (MAX_ROWS, 4),
    };
    let grid = grid::gemv(outputs, per, per_byte, x.operand.dtype().size_in_bytes());
    product.run("fwd_gemv", &format!("_{most}"), outputs, grid)
}

/// `x·W`
pub fn transposed(w: &Quantized, parts: Parts<MetalStorage>, x: Arg) -> Result<MetalStorage> {
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
        (codes, scales, offsets): Parts<'a, MetalStorage>,
        x: &'a Matrix<'a>,
        bias: Option<&'a Operand<'a>>,
    ) -> Result<Self> {
        let (outputs, cols) = w.shape().dims2()?;
        let device = codes.0.device();
        let (codes, aligned) = code_rows(NAME, w, codes)?;
        let contiguous = |(storage, layout): Arg<'a>| Operand::contiguous(storage, layout);
        Ok(Product {
            w,
            device,
            x,
            codes,
            scales: contiguous(scales)?,
            offsets: offsets.map(contiguous).transpose()?,
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

    /// Makes rows of `width` by the kernel of these codes.
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
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn params_mirror_the_kernels() {
        assert_eq!(size_of::<Params>(), 64);
        assert_eq!(offset_of!(Params, x_col), 8);
        assert_eq!(offset_of!(Params, rows), 16);
        assert_eq!(offset_of!(Params, row_bytes), 28);
        assert_eq!(offset_of!(Params, group), 32);
        assert_eq!(offset_of!(Params, offsets), 40);
        assert_eq!(offset_of!(Params, has_bias), 48);
        assert_eq!(offset_of!(Params, zero), 56);
        assert_eq!(offset_of!(Params, factor), 60);
    }

    #[test]
    fn units_are_by_group_or_one_for_each_row_or_all() {
        let of = |per| {
            let params = Params::of_weight(&Scheme::ternary(per), 3, 40);
            (params.group, params.units_stride)
        };
        assert_eq!(of(Per::Group(20)), (20, 2));
        assert_eq!(of(Per::Group(40)), (0, 1));
        assert_eq!(of(Per::Row), (0, 1));
        assert_eq!(of(Per::Tensor), (0, 0));
    }
}
