//! Launches of kernels/bitlinear.metal. x is rounded to integers by kernels/quantize.metal, or by the GEMV itself.

use super::{Quantized, ScaleScope, INPUT_SCHEME, NAME};
use crate::metal::matmul::{Arg, Matrix};
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::ops::packed::metal::{code_rows, MAX_GEMV_ROWS, TILE};
use crate::ops::packed::WeightArgs;
use crate::ops::quantize::metal::quantize;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalDevice, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;

#[repr(C)]
#[derive(Clone, Copy)]
struct GemvParams {
    x_row: u64,
    x_col: u64,
    rows: u32,
    outputs: u32,
    cols: u32,
    row_bytes: u32,
    scale_stride: u32,
    has_bias: u32,
    aligned: u32,
    eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct TileParams {
    rows: u32,
    outputs: u32,
    cols: u32,
    row_bytes: u32,
    scale_stride: u32,
    has_bias: u32,
    aligned: u32,
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

pub fn forward(
    w: &Quantized,
    weight: WeightArgs<MetalStorage>,
    x: Arg,
    bias: Option<Arg>,
) -> Result<MetalStorage> {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let (outputs, cols) = w.shape().dims2()?;
    let (codes, aligned) = code_rows(NAME, w, weight.codes)?;
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let matrix = Matrix::new(NAME, x)?;
    let product = Product {
        device,
        dtype,
        w,
        codes,
        scales: Operand::contiguous(weight.scales.0, weight.scales.1)?,
        bias,
        rows: matrix.layout.rows,
        outputs,
        cols,
        aligned,
    };
    let count = product.rows * outputs;
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        product.run(x, &matrix, &out)?;
    }
    Ok(finish(out, device, count, dtype))
}

struct Product<'a> {
    device: &'a MetalDevice,
    dtype: DType,
    w: &'a Quantized,
    codes: Operand<'a>,
    scales: Operand<'a>,
    bias: Option<Operand<'a>>,
    rows: usize,
    outputs: usize,
    cols: usize,
    aligned: bool,
}

impl Product<'_> {
    /// `matrix` is x as rows and columns.
    fn run(&self, x: Arg, matrix: &Matrix, out: &Buffer) -> Result<()> {
        let gemv = Gemv::new(self.rows);
        let few = self.rows <= MAX_GEMV_ROWS;
        let size = (self.rows, self.cols, self.outputs);
        let per_byte = self.w.scheme().per_byte();
        if let (true, Some(grid)) = (few, gemv.fused(size, per_byte, self.dtype.size_in_bytes())) {
            return self.gemv("gemv_fused", gemv, (matrix, &self.scales), grid, out);
        }
        let (integers, x_scales, _) = quantize(INPUT_SCHEME, x.0, x.1)?;
        let layout = Layout::contiguous((self.rows, self.cols));
        let integers = Matrix::new(NAME, (&integers, &layout))?;
        let x_scales = Operand::contiguous(&x_scales, &Layout::contiguous(self.rows))?;
        match few {
            true => {
                let grid = grid::gemv(self.outputs, gemv.outputs, per_byte, 1);
                self.gemv("gemv", gemv, (&integers, &x_scales), grid, out)
            }
            false => self.tiles((&integers, &x_scales), out),
        }
    }

    fn gemv(
        &self,
        variant: &str,
        gemv: Gemv,
        (x, x_scales): (&Matrix, &Operand),
        grid: grid::Grid,
        out: &Buffer,
    ) -> Result<()> {
        let params = GemvParams {
            x_row: x.layout.row as u64,
            x_col: x.layout.col as u64,
            rows: self.rows as u32,
            outputs: self.outputs as u32,
            cols: self.cols as u32,
            row_bytes: self.row_bytes(),
            scale_stride: self.scale_stride(),
            has_bias: self.bias.is_some().into(),
            aligned: self.aligned.into(),
            eps: INPUT_SCHEME.eps,
        };
        let kernel = format!("{variant}_{}_{}", self.w.scheme().bits(), gemv.max_rows);
        self.launch(&kernel, (&x.operand, x_scales), out, &params, grid)
    }

    fn tiles(&self, (x, x_scales): (&Matrix, &Operand), out: &Buffer) -> Result<()> {
        let params = TileParams {
            rows: self.rows as u32,
            outputs: self.outputs as u32,
            cols: self.cols as u32,
            row_bytes: self.row_bytes(),
            scale_stride: self.scale_stride(),
            has_bias: self.bias.is_some().into(),
            aligned: self.aligned.into(),
        };
        let kernel = format!("tile_{}", self.w.scheme().bits());
        let grid = grid::blocks(self.rows, self.outputs, TILE);
        self.launch(&kernel, (&x.operand, x_scales), out, &params, grid)
    }

    fn launch<P: Copy + 'static>(
        &self,
        kernel: &str,
        (x, x_scales): (&Operand, &Operand),
        out: &Buffer,
        params: &P,
        grid: grid::Grid,
    ) -> Result<()> {
        let dtype = dtype_name(self.dtype, NAME)?;
        let kernel = format!("{NAME}_fwd_{kernel}_{dtype}");
        Launch::new(self.device, &sources::BITLINEAR, &kernel)?
            .input(x)
            .input(x_scales)
            .input(&self.codes)
            .input(&self.scales)
            .input_or(self.bias.as_ref(), &self.scales)
            .output(out)
            .params(params)
            .run(grid)
    }

    fn row_bytes(&self) -> u32 {
        self.w.scheme().row_bytes(self.cols) as u32
    }

    /// 0 where one scale serves all outputs.
    fn scale_stride(&self) -> u32 {
        match self.w.scheme().scope {
            ScaleScope::Tensor => 0,
            _ => 1,
        }
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    GemvParams => "bitlinear" GemvParams {
        x_row, x_col, rows, outputs, cols, row_bytes, scale_stride, has_bias, aligned, eps
    }
    TileParams => "bitlinear" TileParams {
        rows, outputs, cols, row_bytes, scale_stride, has_bias, aligned
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
