//! Launches of kernels/reduce.metal.

use super::{Over, Reduce, Reduction, NAME};
use crate::metal::elementwise::dense;
use crate::metal::{
    aligned_rows, alloc, build, dtype_name, finish, grid, row_grid, sources, Launch, Operand,
    RowOperand, RowStrides, SIMD_COLS,
};
use crate::op::{Arg, Args, OpResult};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalStorage};

#[repr(C)]
#[derive(Clone, Copy)]
struct RowParams {
    x: RowStrides,
    cols: u64,
    part: u64,
    rows: u32,
    parts: u32,
    scale: f32,
    aligned: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ColumnParams {
    rows: u64,
    part: u64,
    cols: u32,
    parts: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MaxBwdParams {
    cols: u64,
    aligned: u32,
    reserved: u32,
}

pub fn forward(op: Reduce, (x, l): Arg<MetalStorage>) -> OpResult<MetalStorage> {
    let (rows, cols) = op.over.split(l.shape());
    let (device, dtype) = (x.device(), x.dtype());
    let name = dtype_name(dtype, NAME)?;
    let kind = match op.reduction {
        Reduction::Sum | Reduction::Mean => "sum",
        Reduction::Max => "max",
    };
    let kernel = |variant: &str| format!("{NAME}_fwd_{kind}{variant}_{name}");
    if rows * cols == 0 {
        return empty(op, (x, l));
    }
    let xs = match op.over {
        Over::LastDim => RowOperand::new(x, l)?,
        Over::All => RowOperand {
            operand: Operand::contiguous(x, l)?,
            strides: RowStrides::contiguous(cols),
        },
    };
    let out = alloc(device, rows, dtype)?;
    let (parts, part) = grid::row_parts(rows, cols);
    let params = RowParams {
        x: xs.strides,
        cols: cols as u64,
        part: part as u64,
        rows: rows as u32,
        parts: parts as u32,
        scale: match op.reduction {
            Reduction::Mean => 1.0 / cols as f32,
            _ => 1.0,
        },
        aligned: aligned_rows(&[xs.parts()], [rows, cols]),
    };
    if cols <= SIMD_COLS {
        Launch::new(device, &sources::REDUCE, &kernel("_simd"))?
            .input(&xs.operand)
            .output(&out)
            .params(&params)
            .run(row_grid([rows, cols]).1)?;
    } else if parts == 1 {
        Launch::new(device, &sources::REDUCE, &kernel(""))?
            .input(&xs.operand)
            .output(&out)
            .params(&params)
            .run(grid::row_per_threadgroup(rows, cols, 4))?;
    } else {
        let partials = alloc(device, rows * parts, DType::F32)?;
        Launch::new(device, &sources::REDUCE, &kernel("_part"))?
            .input(&xs.operand)
            .output(&partials)
            .params(&RowParams {
                scale: 1.0,
                ..params
            })
            .run(grid::row_per_threadgroup(rows * parts, part, 4))?;
        Launch::new(device, &sources::REDUCE, &kernel("_join"))?
            .input_buffer(&partials)
            .output(&out)
            .params(&RowParams {
                x: RowStrides::contiguous(parts),
                cols: parts as u64,
                part: parts.next_multiple_of(4) as u64,
                parts: 1,
                aligned: u32::from(rows == 1 || parts.is_multiple_of(4)),
                ..params
            })
            .run(grid::row_per_threadgroup(rows, parts, 4))?;
    }
    Ok((finish(out, device, rows, dtype), op.over.shape(l.shape())))
}

/// Sums of nothing, which are constants.
fn empty(op: Reduce, (x, l): Arg<MetalStorage>) -> OpResult<MetalStorage> {
    let nothing = CpuStorage::F32(Vec::new()).to_dtype(&Layout::contiguous(0), x.dtype())?;
    let (sums, shape) = super::cpu::forward(op, (&nothing, &Layout::contiguous(l.shape())))?;
    Ok((x.device().storage_from_cpu_storage(&sums)?, shape))
}

pub fn max_backward(over: Over, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
    let (x, xl) = args[0];
    let (rows, cols) = over.split(xl.shape());
    let out = build(x, rows * cols, |out| {
        let operands = dense(args.iter().copied())?;
        let kernel = format!("{NAME}_bwd_max_{}", dtype_name(x.dtype(), NAME)?);
        let launch = Launch::new(x.device(), &sources::REDUCE, &kernel)?;
        let rows_of_x = (&operands[0], RowStrides::contiguous(cols));
        let launch = operands.iter().fold(launch, Launch::input);
        launch
            .output(out)
            .params(&MaxBwdParams {
                cols: cols as u64,
                aligned: aligned_rows(&[rows_of_x], [rows, cols]),
                reserved: 0,
            })
            .run(grid::elementwise_rows(rows, cols, 4))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn sum_middle((x, l): Arg<MetalStorage>) -> OpResult<MetalStorage> {
    let (outer, rows, cols) = l.shape().dims3()?;
    let (device, dtype) = (x.device(), x.dtype());
    let name = dtype_name(dtype, NAME)?;
    let kernel = |variant: &str| format!("{NAME}_columns{variant}_{name}");
    let operand = Operand::contiguous(x, l)?;
    let out = alloc(device, outer * cols, dtype)?;
    let part = rows.div_ceil(grid::column_parts(rows, outer * cols));
    let parts = rows.div_ceil(part);
    let params = ColumnParams {
        rows: rows as u64,
        part: part as u64,
        cols: cols as u32,
        parts: parts as u32,
    };
    if parts == 1 {
        Launch::new(device, &sources::REDUCE, &kernel(""))?
            .input(&operand)
            .output(&out)
            .params(&params)
            .run(grid::columns(cols, 1).times(outer))?;
    } else {
        let partials = alloc(device, outer * parts * cols, DType::F32)?;
        Launch::new(device, &sources::REDUCE, &kernel("_part"))?
            .input(&operand)
            .output(&partials)
            .params(&params)
            .run(grid::columns(cols, parts).times(outer))?;
        Launch::new(device, &sources::REDUCE, &kernel("_join"))?
            .input_buffer(&partials)
            .output(&out)
            .params(&ColumnParams {
                rows: parts as u64,
                part: parts as u64,
                parts: 1,
                ..params
            })
            .run(grid::columns(cols, 1).times(outer))?;
    }
    let storage = finish(out, device, outer * cols, dtype);
    Ok((storage, (outer, cols).into()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    RowParams => "reduce" RowParams { x, cols, part, rows, parts, scale, aligned }
    ColumnParams => "reduce" ColumnParams { rows, part, cols, parts }
    MaxBwdParams => "reduce" MaxBwdParams { cols, aligned, reserved }
}
