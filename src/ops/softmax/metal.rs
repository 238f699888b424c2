//! Launches of kernels/softmax.metal.

use super::{split, MaskedSoftmax, Softmax, SoftmaxBwd, NAME};
use crate::metal::grid::{self, Grid};
use crate::metal::{aligned4, alloc, dtype_name, finish, sources, InPlace, Launch, Operand};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result, Shape};

/// Dims of a mask that count rows, after merging; more are made contiguous.
const MASK_DIMS: usize = 6;
/// Rows up to this length go to one simdgroup each, which holds them in registers.
const SIMD_COLS: usize = 1024;
/// Simdgroups, i.e. such rows, of a threadgroup.
const SIMDGROUPS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct SoftmaxParams {
    cols: u64,
    mask_strides: [u64; MASK_DIMS],
    mask_dims: [u32; MASK_DIMS],
    mask_rank: u32,
    rows: u32,
    queries: u32,
    scale: f32,
    aligned: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SoftmaxBwdParams {
    cols: u64,
    rows: u32,
    scale: f32,
    aligned: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SoftmaxColumnParams {
    n: u64,
    inner: u32,
    scale: f32,
}

impl SoftmaxParams {
    fn new(x: &Operand, [rows, cols]: [usize; 2]) -> Self {
        Self {
            cols: cols as u64,
            mask_strides: [0; MASK_DIMS],
            mask_dims: [1; MASK_DIMS],
            mask_rank: 0,
            rows: rows as u32,
            queries: 0,
            scale: 1.0,
            aligned: aligned_rows(&[x], [rows, cols]),
            reserved: 0,
        }
    }

    fn masked(op: MaskedSoftmax, x: &Operand, mask: Option<&MaskRows>, shape: &Shape) -> Self {
        let [rows, cols] = rows_of(shape);
        let mut params = Self::new(x, [rows, cols]);
        params.scale = op.scale;
        if op.causal {
            params.queries = shape.dims()[shape.rank() - 2] as u32;
        }
        if let Some(mask) = mask {
            let strides = mask.dims.iter().all(|&(_, s)| s.is_multiple_of(4));
            params.aligned *= aligned4(&[&mask.operand]) * u32::from(strides);
            params.mask_rank = mask.dims.len() as u32;
            for (i, &(dim, stride)) in mask.dims.iter().enumerate() {
                params.mask_dims[i] = dim as u32;
                params.mask_strides[i] = stride as u64;
            }
        }
        params
    }
}

/// Whether every row may be read four elements at a time.
fn aligned_rows(operands: &[&Operand], [rows, cols]: [usize; 2]) -> u32 {
    aligned4(operands) * u32::from(rows == 1 || cols.is_multiple_of(4))
}

fn rows_of(shape: &Shape) -> [usize; 2] {
    let cols = shape.dims().last().copied().unwrap_or(1);
    [shape.elem_count() / cols.max(1), cols]
}

/// The end of a kernel's name, and the grid of its variant.
fn variant([rows, cols]: [usize; 2], dtype: DType) -> Result<(String, Grid)> {
    let (path, grid) = match cols {
        0..=256 => ("simd2", grid::row_per_simdgroup(rows, SIMDGROUPS)),
        257..=SIMD_COLS => ("simd8", grid::row_per_simdgroup(rows, SIMDGROUPS)),
        _ => ("group", grid::row_per_threadgroup(rows, cols, 4)),
    };
    Ok((format!("{path}_{}", dtype_name(dtype, NAME)?), grid))
}

/// A mask, and the dims and strides of its rows.
struct MaskRows<'a> {
    operand: Operand<'a>,
    dims: Vec<(usize, usize)>,
}

impl<'a> MaskRows<'a> {
    fn new(mask: &'a MetalStorage, l: &Layout, shape: &Shape) -> Result<Self> {
        let l = l.broadcast_as(shape)?;
        let (operand, dims) = Operand::rows(mask, &l)?;
        if dims.len() <= MASK_DIMS {
            return Ok(Self { operand, dims });
        }
        let [rows, cols] = rows_of(shape);
        Ok(Self {
            operand: Operand::contiguous(mask, &l)?,
            dims: vec![(rows, cols)],
        })
    }
}

pub fn forward(op: Softmax, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
    let [outer, n, inner] = split(l.shape(), op.dim);
    let (device, dtype) = (x.device(), x.dtype());
    let count = outer * n * inner;
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        let operand = Operand::contiguous(x, l)?;
        if inner == 1 {
            let kind = if op.log { "log" } else { "plain" };
            let (variant, grid) = variant([outer, n], dtype)?;
            let kernel = format!("{NAME}_fwd_{kind}_{variant}");
            Launch::new(device, &sources::SOFTMAX, &kernel)?
                .input(&operand)
                .output(&out)
                .params(&SoftmaxParams::new(&operand, [outer, n]))
                .run(grid)?;
        } else {
            let log = if op.log { "_log" } else { "" };
            let kernel = format!("{NAME}_fwd_columns{log}_{}", dtype_name(dtype, NAME)?);
            Launch::new(device, &sources::SOFTMAX, &kernel)?
                .input(&operand)
                .output(&out)
                .params(&SoftmaxColumnParams {
                    n: n as u64,
                    inner: inner as u32,
                    scale: 1.0,
                })
                .run(grid::elementwise_rows(outer, inner, 1))?;
        }
    }
    Ok((finish(out, device, count, dtype), l.shape().clone()))
}

pub fn forward_inplace(log: bool, x: &MetalStorage, l: &Layout) -> Result<()> {
    let [rows, cols] = rows_of(l.shape());
    let target = InPlace::new(x, l)?;
    let kind = if log { "log" } else { "plain" };
    let (variant, grid) = variant([rows, cols], x.dtype())?;
    let kernel = format!("{NAME}_inplace_{kind}_{variant}");
    Launch::new(x.device(), &sources::SOFTMAX, &kernel)?
        .inout(target.operand())
        .params(&SoftmaxParams::new(target.operand(), [rows, cols]))
        .run(grid)?;
    target.commit()
}

pub fn masked(
    op: MaskedSoftmax,
    (x, xl): (&MetalStorage, &Layout),
    mask: Option<(&MetalStorage, &Layout)>,
) -> Result<(MetalStorage, Shape)> {
    let (device, dtype, shape) = (x.device(), x.dtype(), xl.shape());
    let count = shape.elem_count();
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        let operand = Operand::contiguous(x, xl)?;
        let mask = mask
            .map(|(m, ml)| MaskRows::new(m, ml, shape))
            .transpose()?;
        let params = SoftmaxParams::masked(op, &operand, mask.as_ref(), shape);
        let (variant, grid) = variant(rows_of(shape), dtype)?;
        match &mask {
            Some(mask) => {
                let kernel = format!("{NAME}_fwd_biased_{variant}");
                Launch::new(device, &sources::SOFTMAX, &kernel)?
                    .input(&operand)
                    .input(&mask.operand)
                    .output(&out)
                    .params(&params)
                    .run(grid)?;
            }
            None => {
                let kernel = format!("{NAME}_fwd_scaled_{variant}");
                Launch::new(device, &sources::SOFTMAX, &kernel)?
                    .input(&operand)
                    .output(&out)
                    .params(&params)
                    .run(grid)?;
            }
        }
    }
    Ok((finish(out, device, count, dtype), shape.clone()))
}

pub fn masked_inplace(
    op: MaskedSoftmax,
    (x, xl): (&MetalStorage, &Layout),
    mask: Option<(&MetalStorage, &Layout)>,
) -> Result<()> {
    let (device, shape) = (x.device(), xl.shape());
    let target = InPlace::new(x, xl)?;
    let mask = mask
        .map(|(m, ml)| MaskRows::new(m, ml, shape))
        .transpose()?;
    let params = SoftmaxParams::masked(op, target.operand(), mask.as_ref(), shape);
    let (variant, grid) = variant(rows_of(shape), x.dtype())?;
    match &mask {
        Some(mask) => {
            let kernel = format!("{NAME}_inplace_biased_{variant}");
            Launch::new(device, &sources::SOFTMAX, &kernel)?
                .inout(target.operand())
                .input(&mask.operand)
                .params(&params)
                .run(grid)?;
        }
        None => {
            let kernel = format!("{NAME}_inplace_scaled_{variant}");
            Launch::new(device, &sources::SOFTMAX, &kernel)?
                .inout(target.operand())
                .params(&params)
                .run(grid)?;
        }
    }
    target.commit()
}

pub fn backward(
    op: SoftmaxBwd,
    (y, yl): (&MetalStorage, &Layout),
    (g, gl): (&MetalStorage, &Layout),
) -> Result<(MetalStorage, Shape)> {
    let [outer, n, inner] = split(yl.shape(), op.dim);
    let (device, dtype) = (y.device(), y.dtype());
    let count = outer * n * inner;
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        let (ys, gs) = (Operand::contiguous(y, yl)?, Operand::contiguous(g, gl)?);
        let log = if op.log { "_log" } else { "" };
        let name = dtype_name(dtype, NAME)?;
        let kernel = |path: &str| format!("{NAME}_bwd_{path}{log}_{name}");
        if inner == 1 {
            let (path, grid) = if n <= SIMD_COLS {
                ("simd", grid::row_per_simdgroup(outer, SIMDGROUPS))
            } else {
                ("group", grid::row_per_threadgroup(outer, n, 4))
            };
            Launch::new(device, &sources::SOFTMAX, &kernel(path))?
                .input(&ys)
                .input(&gs)
                .output(&out)
                .params(&SoftmaxBwdParams {
                    cols: n as u64,
                    rows: outer as u32,
                    scale: op.scale,
                    aligned: aligned_rows(&[&ys, &gs], [outer, n]),
                    reserved: 0,
                })
                .run(grid)?;
        } else {
            Launch::new(device, &sources::SOFTMAX, &kernel("columns"))?
                .input(&ys)
                .input(&gs)
                .output(&out)
                .params(&SoftmaxColumnParams {
                    n: n as u64,
                    inner: inner as u32,
                    scale: op.scale,
                })
                .run(grid::elementwise_rows(outer, inner, 1))?;
        }
    }
    Ok((finish(out, device, count, dtype), yl.shape().clone()))
}

#[cfg(test)]
mod tests {
    use super::{SoftmaxBwdParams, SoftmaxColumnParams, SoftmaxParams};
    use std::mem::{offset_of, size_of};

    #[test]
    fn params_mirror_the_kernels() {
        assert_eq!(size_of::<SoftmaxParams>(), 104);
        assert_eq!(offset_of!(SoftmaxParams, mask_strides), 8);
        assert_eq!(offset_of!(SoftmaxParams, mask_dims), 56);
        assert_eq!(offset_of!(SoftmaxParams, mask_rank), 80);
        assert_eq!(offset_of!(SoftmaxParams, rows), 84);
        assert_eq!(offset_of!(SoftmaxParams, queries), 88);
        assert_eq!(offset_of!(SoftmaxParams, scale), 92);
        assert_eq!(offset_of!(SoftmaxParams, aligned), 96);
        assert_eq!(size_of::<SoftmaxBwdParams>(), 24);
        assert_eq!(offset_of!(SoftmaxBwdParams, rows), 8);
        assert_eq!(offset_of!(SoftmaxBwdParams, scale), 12);
        assert_eq!(offset_of!(SoftmaxBwdParams, aligned), 16);
        assert_eq!(size_of::<SoftmaxColumnParams>(), 16);
        assert_eq!(offset_of!(SoftmaxColumnParams, inner), 8);
        assert_eq!(offset_of!(SoftmaxColumnParams, scale), 12);
    }
}
