//! Products of matrices on Metal: GEMV for few rows, tiles for many, and Candle's own GEMM where nothing follows the product.
//!
//! | kernel | for | ends in |
//! |---|---|---|
//! | `linear_fwd_gemv` | up to 8 rows of x: W is read once | low-rank term, bias, activation |
//! | `linear_fwd_tile` | more rows, 32×32 outputs a threadgroup | base, bias |
//! | `matmul_act_fwd` ([`act_tiles()`]) | more rows, batched, 32×32 or 64×64 outputs | bias, activation |
//! | Candle's GEMM ([`candle_gemm`]) | more rows, dense operands | nothing |

mod act_tiles;
pub(crate) mod candle_gemm;

use act_tiles::wide_tiles;
pub(crate) use act_tiles::{act_tiles, BATCH_DIMS};

use super::{alloc, dtype_name, grid, sources, Launch, Operand};
use crate::act::Act;
use crate::check;
use crate::layout::MatrixLayout;
use crate::op::on_metal::Arg;
use crate::philox::Mask;
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalDevice, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// Rows of x that the GEMV takes at most: the largest R that `linear_gemv` is instantiated for.
const MAX_ROWS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x_row: u64,
    x_col: u64,
    w_row: u64,
    w_col: u64,
    b_row: u64,
    b_col: u64,
    rows: u32,
    outputs: u32,
    cols: u32,
    rank: u32,
    scale: f32,
    has_base: u32,
    has_bias: u32,
    aligned: u32,
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    keep: f32,
    act: u32,
    act_param: f32,
}

/// A matrix where it lies.
pub struct Matrix<'a> {
    pub operand: Operand<'a>,
    pub layout: MatrixLayout,
}

impl<'a> Matrix<'a> {
    pub fn new(op: &str, (storage, layout): Arg<'a>) -> Result<Self> {
        let (operand, layout) = Operand::matrix(storage, layout)?;
        Self::at(op, operand, layout)
    }

    pub fn at(op: &str, operand: Operand<'a>, layout: MatrixLayout) -> Result<Self> {
        let MatrixLayout { rows, cols, .. } = layout;
        if rows.max(cols) > i32::MAX as usize {
            let message = format!("got a matrix of {rows} by {cols}, expected less than 2^31 each");
            return Err(check::error(op, message));
        }
        Ok(Matrix { operand, layout })
    }

    /// Fresh from a launch, rows one behind the other.
    fn fresh(buffer: Arc<Buffer>, rows: usize, cols: usize, dtype: DType) -> Self {
        Matrix {
            operand: Operand::fresh(buffer, rows * cols, dtype),
            layout: MatrixLayout::contiguous(rows, cols),
        }
    }

    fn has_dense_rows(&self) -> bool {
        self.layout.col == 1
    }
}

/// `act(scale · dropout(x)·Wᵀ [+ u·Bᵀ] [+ base] [+ bias])`: what one launch can do.
pub struct Product<'a> {
    pub device: &'a MetalDevice,
    pub dtype: DType,
    pub x: &'a Matrix<'a>,
    pub w: &'a Matrix<'a>,
    pub scale: f32,
    pub mask: Option<Mask>,
    /// u in floats, and B. For few rows only.
    pub low: Option<[&'a Matrix<'a>; 2]>,
    /// For many rows only.
    pub base: Option<&'a Operand<'a>>,
    pub bias: Option<&'a Operand<'a>>,
    /// For few rows only.
    pub act: Act,
}

impl<'a> Product<'a> {
    pub fn new(device: &'a MetalDevice, x: &'a Matrix<'a>, w: &'a Matrix<'a>) -> Self {
        Product {
            device,
            dtype: w.operand.dtype(),
            x,
            w,
            scale: 1.0,
            mask: None,
            low: None,
            base: None,
            bias: None,
            act: Act::Identity,
        }
    }

    pub fn count(&self) -> usize {
        self.x.layout.rows * self.w.layout.rows
    }

    /// Whether it is one for [`Product::gemv`].
    pub fn has_few_rows(&self) -> bool {
        self.x.layout.rows <= MAX_ROWS && self.w.has_dense_rows()
    }

    /// The result in floats.
    pub fn wide(&self) -> Result<Matrix<'static>> {
        let out = alloc(self.device, self.count(), DType::F32)?;
        let variant = match (self.mask, self.dtype) {
            (Some(_), _) => "_drop",
            (None, DType::F32) => "",
            (None, _) => "_wide",
        };
        match self.has_few_rows() {
            true => self.gemv(variant, &out)?,
            false => self.tiles(variant, &out)?,
        }
        let (rows, cols) = (self.x.layout.rows, self.w.layout.rows);
        Ok(Matrix::fresh(out, rows, cols, DType::F32))
    }

    /// `x·Wᵀ` in floats, for other terms to be added to; `x` and `w` are those of the product as tensors.
    pub fn base(&self, x: Arg, w: Arg) -> Result<Arc<Buffer>> {
        if self.has_few_rows() {
            let out = alloc(self.device, self.count(), DType::F32)?;
            let variant = if self.dtype == DType::F32 {
                ""
            } else {
                "_wide"
            };
            self.gemv(variant, &out)?;
            return Ok(out);
        }
        if self.dtype == DType::F32 {
            if let Some(out) = gemm(x, w)? {
                return Ok(out);
            }
        }
        // Candle's GEMM would round to 16 bits.
        let plain = Product {
            bias: None,
            ..*self
        };
        wide_tiles(&plain)
    }

    /// For few rows: W is read once.
    pub fn gemv(&self, variant: &str, out: &Buffer) -> Result<()> {
        /// Outputs of a simdgroup: `GEMV_OUTPUTS` in the kernel.
        const OUTPUTS: usize = 4;
        /// Simdgroups of a threadgroup, which reads x once for the 32 outputs of all of them.
        const SIMDGROUPS: usize = 8;
        let [u, b] = [0, 1].map(|i| self.low.map(|low| &low[i].operand));
        let most = match self.x.layout.rows {
            0 | 1 => 1,
            2..=4 => 4,
            _ => MAX_ROWS,
        };
        let simdgroups = self.w.layout.rows.div_ceil(OUTPUTS);
        self.launch(&format!("gemv{variant}_{most}"))?
            .input(&self.x.operand)
            .input(&self.w.operand)
            .input_or(u, &self.w.operand)
            .input_or(b, &self.w.operand)
            .input_or(self.bias, &self.w.operand)
            .output(out)
            .params(&self.params())
            .run(grid::row_per_simdgroup(simdgroups, SIMDGROUPS))
    }

    /// For many rows. The base may be what `out` holds.
    pub fn tiles(&self, variant: &str, out: &Buffer) -> Result<()> {
        /// Rows and outputs of a tile: `TILE` in the kernel.
        const TILE: usize = 32;
        debug_assert!(self.act == Act::Identity && self.low.is_none());
        self.launch(&format!("tile{variant}"))?
            .input(&self.x.operand)
            .input(&self.w.operand)
            .input_or(self.base, &self.w.operand)
            .input_or(self.bias, &self.w.operand)
            .output(out)
            .params(&self.params())
            .run(grid::tiles(self.x.layout.rows, self.w.layout.rows, TILE))
    }

    fn params(&self) -> Params {
        let (x, w) = (self.x.layout, self.w.layout);
        let none = MatrixLayout::contiguous(0, 0);
        let b = self.low.map_or(none, |[_, b]| b.layout);
        let mask = self.mask.unwrap_or(Mask::new(0.0, 0));
        let vector = 4 * self.dtype.size_in_bytes();
        let aligned = self.w.operand.is_aligned(vector) && w.row.is_multiple_of(4);
        Params {
            x_row: x.row as u64,
            x_col: x.col as u64,
            w_row: w.row as u64,
            w_col: w.col as u64,
            b_row: b.row as u64,
            b_col: b.col as u64,
            rows: x.rows as u32,
            outputs: w.rows as u32,
            cols: x.cols as u32,
            rank: b.cols as u32,
            scale: self.scale,
            has_base: self.base.is_some().into(),
            has_bias: self.bias.is_some().into(),
            aligned: aligned.into(),
            seed_low: mask.seed as u32,
            seed_high: (mask.seed >> 32) as u32,
            threshold: mask.threshold,
            keep: mask.scale,
            act: self.act.code(),
            act_param: self.act.param(),
        }
    }

    fn launch(&self, variant: &str) -> Result<Launch<'a>> {
        let dtype = dtype_name(self.dtype, "linear")?;
        let kernel = format!("linear_fwd_{variant}_{dtype}");
        Launch::new(self.device, &sources::LINEAR, &kernel)
    }
}

/// `x·Wᵀ` by Candle's GEMM, or nothing where there is nothing to multiply.
pub fn gemm(x: Arg, w: Arg) -> Result<Option<Arc<Buffer>>> {
    let matrix = |(storage, layout)| {
        let (operand, matrix) = Operand::matrix(storage, layout)?;
        if candle_gemm::fits(matrix) {
            return Ok((operand, matrix));
        }
        let operand = Operand::contiguous(storage, layout)?;
        Result::Ok((operand, MatrixLayout::of_shape(layout.shape())))
    };
    if x.1.shape().elem_count() == 0 {
        return Ok(None);
    }
    let ((xs, xl), (ws, wl)) = (matrix(x)?, matrix(w)?);
    candle_gemm::gemm(x.0.device(), (&xs, xl), (&ws, wl)).map(Some)
}

impl Product<'_> {
    /// The result in the dtype of `x` and `w`, which are those of the product as tensors.
    pub fn run(&self, x: Arg, w: Arg) -> Result<Arc<Buffer>> {
        let out = || alloc(self.device, self.count(), self.dtype);
        if self.count() == 0 {
            return out();
        }
        if self.has_few_rows() {
            let out = out()?;
            self.gemv("", &out)?;
            return Ok(out);
        }
        // Candle's GEMM ends in no bias.
        if self.bias.is_some() && self.scale == 1.0 {
            return act_tiles(self, &[]);
        }
        // Those that scale are gradients of low rank, which GEMM is no better at.
        let base = if self.scale == 1.0 { gemm(x, w)? } else { None };
        if let Some(base) = base {
            return Ok(base);
        }
        let out = out()?;
        self.tiles("", &out)?;
        Ok(out)
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "linear" Params {
        x_row, x_col, w_row, w_col, b_row, b_col, rows, outputs, cols, rank, scale, has_base,
        has_bias, aligned, seed_low, seed_high, threshold, keep, act, act_param
    }
}
