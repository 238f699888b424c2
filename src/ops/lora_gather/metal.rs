//! Launches of kernels/lora_gather.metal.

use super::{Routes, NAME};
use crate::check;
use crate::metal::matmul::{Matrix, Product};
use crate::metal::{alloc, dtype_name, finish, grid, sources, upload, Launch, Operand};
use crate::op::on_metal::Arg;
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// Simdgroups of a threadgroup, each with an element of u.
const SIMDGROUPS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct GatherParams {
    x_row: u64,
    x_col: u64,
    a_stack: u64,
    a_row: u64,
    a_col: u64,
    rows: u32,
    outputs: u32,
    cols: u32,
    has_bias: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OuterParams {
    p_row: u64,
    p_col: u64,
    q_row: u64,
    q_col: u64,
    height: u32,
    width: u32,
}

/// Adapters where they lie.
struct Stack<'a> {
    operand: Operand<'a>,
    /// From adapter to adapter, row to row and column to column.
    stride: [usize; 3],
}

impl<'a> Stack<'a> {
    fn new((storage, layout): Arg<'a>) -> Self {
        let stride = layout.stride();
        Stack {
            operand: Operand::strided(storage, layout),
            stride: [stride[0], stride[1], stride[2]],
        }
    }
}

fn launch<'a>(variant: &str, x: &'a MetalStorage) -> Result<Launch<'a>> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    let kernel = format!("{NAME}_{variant}_{dtype}");
    Launch::new(x.device(), &sources::LORA_GATHER, &kernel)
}

pub fn forward(routes: &Routes, args: &[Arg], held: &[Arg]) -> Result<MetalStorage> {
    let (x, a, b) = (args[0], args[1], args[2]);
    let (w, bias) = (held[0], held.get(1).copied());
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let (xs, ws) = (Matrix::new(NAME, x)?, Matrix::new(NAME, w)?);
    let base = Product::new(device, &xs, &ws);
    let (count, outputs, rank) = (base.count(), ws.layout.rows, a.1.dims()[1]);
    if count == 0 {
        return Ok(finish(alloc(device, 0, dtype)?, device, 0, dtype));
    }
    let base = base.base(x, w)?;
    let out = match dtype {
        DType::F32 => base.clone(),
        _ => alloc(device, count, dtype)?,
    };
    let wide = if dtype == DType::F32 {
        "down"
    } else {
        "down_wide"
    };
    let u = launch_down(wide, DType::F32, routes, x, a)?;
    let adapter_of_row = upload(device, routes.adapter_of_row())?;
    let scales = upload(device, &padded(routes.scales(), 0.0))?;
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let b = Stack::new(b);
    let rows = routes.adapter_of_row().len();
    let params = GatherParams {
        x_row: 0,
        x_col: 0,
        a_stack: b.stride[0] as u64,
        a_row: b.stride[1] as u64,
        a_col: b.stride[2] as u64,
        rows: rows as u32,
        outputs: outputs as u32,
        cols: rank as u32,
        has_bias: bias.is_some().into(),
    };
    launch("up", x.0)?
        .input_buffer(&u)
        .input(&b.operand)
        .input_buffer(&adapter_of_row)
        .input_buffer(&scales)
        .input_buffer(&base)
        .input_or(bias.as_ref(), &b.operand)
        .output(&out)
        .params(&params)
        .run(grid::elementwise_rows(rows, outputs, 1))?;
    Ok(finish(out, device, count, dtype))
}

/// A buffer needs an element.
fn padded<T: Copy>(data: &[T], none: T) -> Vec<T> {
    if data.is_empty() {
        return vec![none];
    }
    data.to_vec()
}

pub fn down(routes: &Routes, x: Arg, a: Arg) -> Result<MetalStorage> {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let count = routes.adapter_of_row().len() * a.1.dims()[1];
    let u = launch_down("down", dtype, routes, x, a)?;
    Ok(finish(u, device, count, dtype))
}

fn launch_down(
    variant: &str,
    dtype: DType,
    routes: &Routes,
    x: Arg,
    a: Arg,
) -> Result<Arc<Buffer>> {
    let (rows, rank) = (routes.adapter_of_row().len(), a.1.dims()[1]);
    let out = alloc(x.0.device(), rows * rank, dtype)?;
    if rows * rank == 0 {
        return Ok(out);
    }
    if rows * rank > u32::MAX as usize {
        let message = format!("got {rows} rows of rank {rank}, expected less than 2^32 elements");
        return Err(check::error(NAME, message));
    }
    let (xs, stack) = (Matrix::new(NAME, x)?, Stack::new(a));
    let adapter_of_row = upload(x.0.device(), routes.adapter_of_row())?;
    let params = GatherParams {
        x_row: xs.layout.row as u64,
        x_col: xs.layout.col as u64,
        a_stack: stack.stride[0] as u64,
        a_row: stack.stride[1] as u64,
        a_col: stack.stride[2] as u64,
        rows: rows as u32,
        outputs: rank as u32,
        cols: xs.layout.cols as u32,
        has_bias: 0,
    };
    launch(variant, x.0)?
        .input(&xs.operand)
        .input(&stack.operand)
        .input_buffer(&adapter_of_row)
        .output(&out)
        .params(&params)
        .run(grid::row_per_simdgroup(rows * rank, SIMDGROUPS))?;
    Ok(out)
}

pub fn outer(routes: &Routes, p: Arg, q: Arg) -> Result<MetalStorage> {
    let (device, dtype) = (p.0.device(), p.0.dtype());
    let (height, width, adapters) = (p.1.dims()[1], q.1.dims()[1], routes.adapters());
    let count = adapters * height * width;
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        let (ps, qs) = (Matrix::new(NAME, p)?, Matrix::new(NAME, q)?);
        let order = upload(device, &padded(routes.order(), 0))?;
        let starts = upload(device, routes.starts())?;
        let scales = upload(device, routes.scales())?;
        let params = OuterParams {
            p_row: ps.layout.row as u64,
            p_col: ps.layout.col as u64,
            q_row: qs.layout.row as u64,
            q_col: qs.layout.col as u64,
            height: height as u32,
            width: width as u32,
        };
        launch("outer", p.0)?
            .input(&ps.operand)
            .input(&qs.operand)
            .input_buffer(&order)
            .input_buffer(&starts)
            .input_buffer(&scales)
            .output(&out)
            .params(&params)
            .run(grid::elementwise_rows(height, width, 1).times(adapters))?;
    }
    Ok(finish(out, device, count, dtype))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    GatherParams => "lora_gather" GatherParams { x_row, x_col, a_stack, a_row, a_col, rows, outputs, cols, has_bias }
    OuterParams => "lora_gather" OuterParams { p_row, p_col, q_row, q_col, height, width }
}
