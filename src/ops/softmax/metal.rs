//! Launches of kernels/softmax.metal.

use super::cpu::without_dims_behind;
use super::{split, MaskedSoftmax, Softmax, SoftmaxBwd, NAME};
use crate::metal::grid::{self, Grid};
use crate::metal::{
    aligned_rows, build_like, dtype_name, row_grid, sources, update, Launch, Operand, RowOperand,
    RowStrides, SIMD_COLS,
};
use crate::op::on_metal::{Arg, ArgMut, Args, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalDevice, Result, Shape};

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

impl SoftmaxColumnParams {
    fn new([n, inner]: [usize; 2], scale: f32) -> Self {
        Self {
            n: n as u64,
            inner: inner as u32,
            scale,
        }
    }
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

fn mask_rows<'a>(mask: Option<&Arg<'a>>, shape: &Shape) -> Result<Option<RowOperand<'a>>> {
    match mask {
        Some(&(mask, l)) => Ok(Some(RowOperand::new(mask, &l.broadcast_as(shape)?)?)),
        None => Ok(None),
    }
}

/// A kernel of which `pass` says what it does to rows or columns.
fn launch<'a>(device: &'a MetalDevice, pass: &str) -> Result<Launch<'a>> {
    Launch::new(device, &sources::SOFTMAX, &format!("{NAME}_{pass}"))
}

pub fn forward(op: Softmax, (x, l): Arg) -> OpResult {
    let [outer, n, inner] = split(l.shape(), op.dim);
    let (device, dtype) = (x.device(), x.dtype());
    build_like((x, l), |out| {
        if inner > 1 {
            let log = if op.log { "_log" } else { "" };
            let pass = format!("fwd_columns{log}_{}", dtype_name(dtype, NAME)?);
            return launch(device, &pass)?
                .input(&Operand::contiguous(x, l)?)
                .output(out)
                .params(&SoftmaxColumnParams::new([n, inner], 1.0))
                .run(grid::elementwise_rows(outer, inner, 1));
        }
        let x = RowOperand::new(x, &without_dims_behind(l, op.dim))?;
        let (variant, grid) = variant([outer, n], dtype)?;
        launch(device, &format!("fwd_{}_{variant}", kind(op.log)))?
            .input(&x.operand)
            .output(out)
            .params(&SoftmaxParams::new(x.parts(), [outer, n]))
            .run(grid)
    })
}

fn kind(log: bool) -> &'static str {
    if log {
        "log"
    } else {
        "plain"
    }
}

pub fn inplace(log: bool, (x, l): ArgMut) -> Result<()> {
    let size = rows_and_cols(l.shape());
    update((x, l), |x, target| {
        let (variant, grid) = variant(size, x.dtype())?;
        let rows = (target, RowStrides::contiguous(size[1]));
        launch(x.device(), &format!("inplace_{}_{variant}", kind(log)))?
            .inout(target)
            .params(&SoftmaxParams::new(rows, size))
            .run(grid)
    })
}

/// The kind of a masked softmax, by its mask.
fn masked_kind(mask: &Option<RowOperand>) -> &'static str {
    match mask {
        Some(_) => "biased",
        None => "scaled",
    }
}

pub fn masked(op: MaskedSoftmax, args: Args) -> OpResult {
    let ((x, l), shape) = (args[0], args[0].1.shape());
    build_like((x, l), |out| {
        let (xs, mask) = (RowOperand::new(x, l)?, mask_rows(args.get(1), shape)?);
        let params = SoftmaxParams::masked(op, xs.parts(), mask.as_ref(), shape);
        let (variant, grid) = variant(rows_and_cols(shape), x.dtype())?;
        let kernel = format!("fwd_{}_{variant}", masked_kind(&mask));
        let launch = launch(x.device(), &kernel)?.input(&xs.operand);
        let launch = mask.iter().fold(launch, |l, mask| l.input(&mask.operand));
        launch.output(out).params(&params).run(grid)
    })
}

pub fn masked_inplace(op: MaskedSoftmax, (x, l): ArgMut, rest: Args) -> Result<()> {
    let (shape, size) = (l.shape(), rows_and_cols(l.shape()));
    update((x, l), |x, target| {
        let mask = mask_rows(rest.first(), shape)?;
        let rows = (target, RowStrides::contiguous(size[1]));
        let params = SoftmaxParams::masked(op, rows, mask.as_ref(), shape);
        let (variant, grid) = variant(size, x.dtype())?;
        let kernel = format!("inplace_{}_{variant}", masked_kind(&mask));
        let launch = launch(x.device(), &kernel)?.inout(target);
        let launch = mask.iter().fold(launch, |l, mask| l.input(&mask.operand));
        launch.params(&params).run(grid)
    })
}

pub fn backward(op: SoftmaxBwd, (y, yl): Arg, (g, gl): Arg) -> OpResult {
    let [outer, n, inner] = split(yl.shape(), op.dim);
    let (device, log) = (y.device(), if op.log { "_log" } else { "" });
    let name = dtype_name(y.dtype(), NAME)?;
    build_like((y, yl), |out| {
        if inner > 1 {
            return launch(device, &format!("bwd_columns{log}_{name}"))?
                .input(&Operand::contiguous(y, yl)?)
                .input(&Operand::contiguous(g, gl)?)
                .output(out)
                .params(&SoftmaxColumnParams::new([n, inner], op.scale))
                .run(grid::elementwise_rows(outer, inner, 1));
        }
        let y = RowOperand::new(y, &without_dims_behind(yl, op.dim))?;
        let g = RowOperand::new(g, &without_dims_behind(gl, op.dim))?;
        let (path, grid) = row_grid([outer, n]);
        launch(device, &format!("bwd_{path}{log}_{name}"))?
            .input(&y.operand)
            .input(&g.operand)
            .output(out)
            .params(&SoftmaxBwdParams {
                cols: n as u64,
                y: y.strides,
                g: g.strides,
                rows: outer as u32,
                scale: op.scale,
                aligned: aligned_rows(&[y.parts(), g.parts()], [outer, n]),
                reserved: 0,
            })
            .run(grid)
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    SoftmaxParams => "softmax" SoftmaxParams { cols, x, mask, rows, queries, scale, aligned }
    SoftmaxBwdParams => "softmax" SoftmaxBwdParams { cols, y, g, rows, scale, aligned, reserved }
    SoftmaxColumnParams => "softmax" SoftmaxColumnParams { n, inner, scale }
}
