//! Launches of kernels/softmax.metal.

use super::cpu::without_dims_behind;
use super::{split, MaskedSoftmax, Softmax, SoftmaxBwd, NAME};
use crate::metal::grid::{self, Grid};
use crate::metal::{
    aligned_rows, alloc, dtype_name, finish, row_grid, sources, InPlace, Launch, Operand,
    RowOperand, RowStrides, SIMD_COLS,
};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct SoftmaxParams {
    cols: u64,
    x: RowStrides,
    mask: RowStrides,
    rows: u32,
    queries: u32,
    scale: f32,
    aligned: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SoftmaxBwdParams {
    cols: u64,
    y: RowStrides,
    g: RowStrides,
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
    fn new(x: (&Operand, RowStrides), [rows, cols]: [usize; 2]) -> Self {
        Self {
            cols: cols as u64,
            x: x.1,
            mask: x.1,
            rows: rows as u32,
            queries: 0,
            scale: 1.0,
            aligned: aligned_rows(&[x], [rows, cols]),
        }
    }

    fn masked(
        op: MaskedSoftmax,
        x: (&Operand, RowStrides),
        mask: Option<&RowOperand>,
        shape: &Shape,
    ) -> Self {
        let size = rows_and_cols(shape);
        let mut params = Self::new(x, size);
        params.scale = op.scale;
        if op.causal {
            params.queries = shape.dims()[shape.rank() - 2] as u32;
        }
        if let Some(mask) = mask {
            params.aligned = aligned_rows(&[x, mask.parts()], size);
            params.mask = mask.strides;
        }
        params
    }
}

fn rows_and_cols(shape: &Shape) -> [usize; 2] {
    let cols = shape.dims().last().copied().unwrap_or(1);
    [shape.elem_count() / cols.max(1), cols]
}

/// The end of a kernel's name, and the grid of its variant.
fn variant([rows, cols]: [usize; 2], dtype: DType) -> Result<(String, Grid)> {
    let (_, grid) = row_grid([rows, cols]);
    // A simdgroup holds its row in registers, 256 columns in 2 vectors of each lane.
    let path = match cols {
        0..=256 => "simd2",
        257..=SIMD_COLS => "simd8",
        _ => "group",
    };
    Ok((format!("{path}_{}", dtype_name(dtype, NAME)?), grid))
}

fn mask_rows<'a>(
    mask: Option<(&'a MetalStorage, &Layout)>,
    shape: &Shape,
) -> Result<Option<RowOperand<'a>>> {
    match mask {
        Some((mask, l)) => Ok(Some(RowOperand::new(mask, &l.broadcast_as(shape)?)?)),
        None => Ok(None),
    }
}

pub fn forward(op: Softmax, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
    let [outer, n, inner] = split(l.shape(), op.dim);
    let (device, dtype) = (x.device(), x.dtype());
    let count = outer * n * inner;
    let out = alloc(device, count, dtype)?;
    if count > 0 && inner == 1 {
        let x = RowOperand::new(x, &without_dims_behind(l, op.dim))?;
        let kind = if op.log { "log" } else { "plain" };
        let (variant, grid) = variant([outer, n], dtype)?;
        let kernel = format!("{NAME}_fwd_{kind}_{variant}");
        Launch::new(device, &sources::SOFTMAX, &kernel)?
            .input(&x.operand)
            .output(&out)
            .params(&SoftmaxParams::new(x.parts(), [outer, n]))
            .run(grid)?;
    } else if count > 0 {
        let log = if op.log { "_log" } else { "" };
        let kernel = format!("{NAME}_fwd_columns{log}_{}", dtype_name(dtype, NAME)?);
        Launch::new(device, &sources::SOFTMAX, &kernel)?
            .input(&Operand::contiguous(x, l)?)
            .output(&out)
            .params(&SoftmaxColumnParams {
                n: n as u64,
                inner: inner as u32,
                scale: 1.0,
            })
            .run(grid::elementwise_rows(outer, inner, 1))?;
    }
    Ok((finish(out, device, count, dtype), l.shape().clone()))
}

pub fn forward_inplace(log: bool, x: &MetalStorage, l: &Layout) -> Result<()> {
    let size = rows_and_cols(l.shape());
    let target = InPlace::new(x, l)?;
    let kind = if log { "log" } else { "plain" };
    let (variant, grid) = variant(size, x.dtype())?;
    let kernel = format!("{NAME}_inplace_{kind}_{variant}");
    let rows = (target.operand(), RowStrides::contiguous(size[1]));
    Launch::new(x.device(), &sources::SOFTMAX, &kernel)?
        .inout(target.operand())
        .params(&SoftmaxParams::new(rows, size))
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
        let x = RowOperand::new(x, xl)?;
        let mask = mask_rows(mask, shape)?;
        let params = SoftmaxParams::masked(op, x.parts(), mask.as_ref(), shape);
        let (variant, grid) = variant(rows_and_cols(shape), dtype)?;
        match &mask {
            Some(mask) => {
                let kernel = format!("{NAME}_fwd_biased_{variant}");
                Launch::new(device, &sources::SOFTMAX, &kernel)?
                    .input(&x.operand)
                    .input(&mask.operand)
                    .output(&out)
                    .params(&params)
                    .run(grid)?;
            }
            None => {
                let kernel = format!("{NAME}_fwd_scaled_{variant}");
                Launch::new(device, &sources::SOFTMAX, &kernel)?
                    .input(&x.operand)
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
    let mask = mask_rows(mask, shape)?;
    let size = rows_and_cols(shape);
    let rows = (target.operand(), RowStrides::contiguous(size[1]));
    let params = SoftmaxParams::masked(op, rows, mask.as_ref(), shape);
    let (variant, grid) = variant(size, x.dtype())?;
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
    let log = if op.log { "_log" } else { "" };
    let name = dtype_name(dtype, NAME)?;
    let kernel = |path: &str| format!("{NAME}_bwd_{path}{log}_{name}");
    if count > 0 && inner == 1 {
        let y = RowOperand::new(y, &without_dims_behind(yl, op.dim))?;
        let g = RowOperand::new(g, &without_dims_behind(gl, op.dim))?;
        let (path, grid) = row_grid([outer, n]);
        Launch::new(device, &sources::SOFTMAX, &kernel(path))?
            .input(&y.operand)
            .input(&g.operand)
            .output(&out)
            .params(&SoftmaxBwdParams {
                cols: n as u64,
                y: y.strides,
                g: g.strides,
                rows: outer as u32,
                scale: op.scale,
                aligned: aligned_rows(&[y.parts(), g.parts()], [outer, n]),
                reserved: 0,
            })
            .run(grid)?;
    } else if count > 0 {
        Launch::new(device, &sources::SOFTMAX, &kernel("columns"))?
            .input(&Operand::contiguous(y, yl)?)
            .input(&Operand::contiguous(g, gl)?)
            .output(&out)
            .params(&SoftmaxColumnParams {
                n: n as u64,
                inner: inner as u32,
                scale: op.scale,
            })
            .run(grid::elementwise_rows(outer, inner, 1))?;
    }
    Ok((finish(out, device, count, dtype), yl.shape().clone()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    SoftmaxParams => "softmax" SoftmaxParams { cols, x, mask, rows, queries, scale, aligned }
    SoftmaxBwdParams => "softmax" SoftmaxBwdParams { cols, y, g, rows, scale, aligned, reserved }
    SoftmaxColumnParams => "softmax" SoftmaxColumnParams { n, inner, scale }
}
