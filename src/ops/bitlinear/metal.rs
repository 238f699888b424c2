//! Launches of kernels/bitlinear.metal. x is rounded by kernels/quantize.metal, or on the way.

use super::{Per, Quantized, ACTIVATIONS, NAME};
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::ops::linear::metal::{Arg, Matrix};
use crate::ops::mixed_matmul::metal::{code_rows, MAX_ROWS, TILE};
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

/// What a GEMV's kernel for so many rows does.
#[derive(Clone, Copy)]
struct Gemv {
    /// Rows that it is made for.
    most: usize,
    /// Outputs of a simdgroup.
    per: usize,
    /// Columns whose integers a threadgroup holds.
    held: usize,
}

/// Numbers of x that a thread keeps while it rounds a row.
const KEPT: usize = 8;

impl Gemv {
    fn new(rows: usize) -> Self {
        match rows {
            0 | 1 => Gemv {
                most: 1,
                per: 8,
                held: 256 * 32,
            },
            _ => Gemv {
                most: MAX_ROWS,
                per: 4,
                held: 64 * 32,
            },
        }
    }

    /// The grid where each threadgroup rounds x itself, which saves a launch. None where x does not fit, or where all of
    /// them together would read more of it than a 32nd of the codes.
    fn fused(
        &self,
        (rows, cols, outputs): (usize, usize, usize),
        codes_per_byte: usize,
        x_bytes: usize,
    ) -> Option<grid::Grid> {
        let codes = outputs * cols.div_ceil(codes_per_byte);
        let units = outputs.div_ceil(self.per);
        let serves = |grid: &grid::Grid| {
            let again = (grid.groups[0] - 1) * rows * cols * x_bytes;
            cols <= self.held.min(KEPT * grid.threads[0]) && 32 * again <= codes
        };
        [8, 16, 32]
            .map(|simdgroups| grid::row_per_simdgroup(units, simdgroups))
            .into_iter()
            .find(serves)
    }
}

pub fn forward(
    w: &Quantized,
    (codes, scales): (Arg, Arg),
    x: Arg,
    bias: Option<Arg>,
) -> Result<MetalStorage> {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let (outputs, cols) = w.shape().dims2()?;
    let (codes, aligned) = code_rows(NAME, w, codes)?;
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let matrix = Matrix::new(NAME, x)?;
    let product = Product {
        device,
        dtype,
        w,
        codes,
        scales: Operand::contiguous(scales.0, scales.1)?,
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
    /// `matrix` is x.
    fn run(&self, x: Arg, matrix: &Matrix, out: &Buffer) -> Result<()> {
        let gemv = Gemv::new(self.rows);
        let few = self.rows <= MAX_ROWS;
        let size = (self.rows, self.cols, self.outputs);
        let per_byte = self.w.scheme().per_byte();
        if let (true, Some(grid)) = (few, gemv.fused(size, per_byte, self.dtype.size_in_bytes())) {
            return self.gemv("gemv_fused", gemv, (matrix, &self.scales), grid, out);
        }
        let (integers, x_scales, _) = quantize(ACTIVATIONS, x.0, x.1)?;
        let of_x = Layout::contiguous((self.rows, self.cols));
        let integers = Matrix::new(NAME, (&integers, &of_x))?;
        let x_scales = Operand::contiguous(&x_scales, &Layout::contiguous(self.rows))?;
        match few {
            true => {
                let grid = grid::gemv(self.outputs, gemv.per, per_byte, 1);
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
            eps: ACTIVATIONS.eps,
        };
        let kernel = format!("{variant}_{}_{}", self.w.scheme().bits(), gemv.most);
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
        match self.w.scheme().per {
            Per::Tensor => 0,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn params_mirror_the_kernels() {
        assert_eq!(size_of::<GemvParams>(), 48);
        assert_eq!(offset_of!(GemvParams, x_col), 8);
        assert_eq!(offset_of!(GemvParams, rows), 16);
        assert_eq!(offset_of!(GemvParams, row_bytes), 28);
        assert_eq!(offset_of!(GemvParams, scale_stride), 32);
        assert_eq!(offset_of!(GemvParams, aligned), 40);
        assert_eq!(offset_of!(GemvParams, eps), 44);
        assert_eq!(size_of::<TileParams>(), 28);
        assert_eq!(offset_of!(TileParams, row_bytes), 12);
        assert_eq!(offset_of!(TileParams, aligned), 24);
    }

    #[test]
    fn x_is_rounded_on_the_way_where_that_reads_little_more() {
        let fused = |size: (usize, usize, usize), per_byte, x_bytes| {
            let grid = Gemv::new(size.0).fused(size, per_byte, x_bytes)?;
            Some((grid.groups[0], grid.threads[0] / grid::SIMD))
        };
        // One threadgroup reads x once in any case.
        assert_eq!(fused((1, 2048, 64), 4, 4), Some((1, 8)));
        assert_eq!(fused((8, 2048, 32), 8, 4), Some((1, 8)));
        // Of two bits and halves, 256 outputs are enough to share it.
        assert_eq!(fused((1, 2560, 13_824), 4, 2), Some((54, 32)));
        assert_eq!(fused((1, 2560, 13_824), 4, 4), None);
        assert_eq!(fused((1, 2560, 13_824), 8, 2), None);
        // Threads have to keep x, or they would read it again.
        assert_eq!(fused((1, 2049, 64), 4, 2), None);
        assert_eq!(fused((1, 2049, 128), 4, 2), Some((1, 16)));
        // The integers have to fit in the threadgroup.
        assert_eq!(fused((1, 8192, 256), 4, 2), Some((1, 32)));
        assert_eq!(fused((1, 8193, 256), 4, 2), None);
        assert_eq!(fused((2, 2049, 32), 4, 2), None);
    }
}
