//! Launches of kernels/reduce.metal.

use super::{Over, Reduce, ReduceDims, Reduction, NAME};
use crate::check;
use crate::metal::elementwise::dense;
use crate::metal::{
    aligned_rows, alloc, build_like, dtype_name, finish, grid, row_grid, sources, Launch, Operand,
    RowOperand, RowStrides, SIMD_COLS,
};
use crate::op::on_cpu;
use crate::op::on_metal::{Arg, Args, OpResult};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalDevice, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

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
    scale: f32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MaxBwdParams {
    cols: u64,
    aligned: u32,
    reserved: u32,
}

pub fn forward(op: Reduce, (x, l): Arg) -> OpResult {
    let (rows, cols) = op.over.split(l.shape());
    if rows * cols == 0 {
        return empty(op, (x, l));
    }
    let launches = Launches::new(x, op.reduction)?;
    let xs = match op.over {
        Over::LastDim => RowOperand::new(x, l)?,
        Over::All => contiguous_rows(Operand::contiguous(x, l)?, cols),
    };
    let scale = match op.reduction {
        Reduction::Mean => 1.0 / cols as f32,
        Reduction::Sum | Reduction::Max => 1.0,
    };
    let out = launches.rows(&xs, [rows, cols], scale, x.dtype())?;
    let storage = finish(out, x.device(), rows, x.dtype());
    Ok((storage, op.over.shape(l.shape())))
}

/// One run of neighbouring dims after the other, the last one first, with results in f32 between two of them.
pub fn over_dims(op: &ReduceDims, (x, l): Arg) -> OpResult {
    if l.shape().elem_count() == 0 {
        return on_cpu(x, |nothing| {
            super::cpu::over_dims(op, (nothing, &Layout::contiguous(l.shape())))
        });
    }
    let launches = Launches::new(x, op.reduction)?;
    let runs = op.runs(l.dims());
    // Rows are read where they lie.
    let begins_with_rows = runs.first().is_some_and(|run| run.is_last_dim);
    let mut operand = match begins_with_rows {
        true => Operand::strided(x, l),
        false => Operand::contiguous(x, l)?,
    };
    let mut results = None;
    for (i, run) in runs.iter().enumerate() {
        let (to, scale) = match i + 1 == runs.len() {
            true => (x.dtype(), op.scale(l.dims())),
            false => (DType::F32, 1.0),
        };
        let out = match run.inner {
            1 if i == 0 && begins_with_rows => {
                launches.rows(&RowOperand::new(x, l)?, [run.outer, run.n], scale, to)?
            }
            1 => {
                let rows = contiguous_rows(operand, run.n);
                launches.rows(&rows, [run.outer, run.n], scale, to)?
            }
            _ => launches.columns(&operand, [run.outer, run.n, run.inner], scale, to)?,
        };
        operand = Operand::fresh(out.clone(), run.outer * run.inner, to);
        results = Some(out);
    }
    let shape = op.reduced_shape(l.dims());
    let Some(out) = results else {
        return Err(check::error(NAME, "got no dims to reduce"));
    };
    Ok((
        finish(out, x.device(), shape.elem_count(), x.dtype()),
        shape,
    ))
}

fn contiguous_rows(operand: Operand<'_>, cols: usize) -> RowOperand<'_> {
    let strides = RowStrides::contiguous(cols);
    RowOperand { operand, strides }
}

/// The launches of one reduction. Numbers are of the tensor's dtype or, between two launches, f32.
struct Launches<'a> {
    device: &'a MetalDevice,
    dtype: DType,
    dtype_name: &'static str,
    kind: &'static str,
}

impl<'a> Launches<'a> {
    fn new(x: &'a MetalStorage, reduction: Reduction) -> Result<Self> {
        Ok(Launches {
            device: x.device(),
            dtype: x.dtype(),
            dtype_name: dtype_name(x.dtype(), NAME)?,
            kind: match reduction {
                Reduction::Sum | Reduction::Mean => "sum",
                Reduction::Max => "max",
            },
        })
    }

    /// A launch of the kernel that reads numbers of dtype `from` and writes those of dtype `to`.
    fn launch(&self, family: &str, from: DType, to: DType) -> Result<Launch<'a>> {
        let Launches {
            kind, dtype_name, ..
        } = self;
        let (pass, dtype) = match (from == self.dtype, to == self.dtype) {
            (true, true) => ("", *dtype_name),
            (true, false) => ("_part", *dtype_name),
            (false, true) => ("_join", *dtype_name),
            (false, false) => ("", "f32"),
        };
        let kernel = format!("{NAME}_{family}_{kind}{pass}_{dtype}");
        Launch::new(self.device, &sources::REDUCE, &kernel)
    }

    fn rows(
        &self,
        x: &RowOperand<'_>,
        [rows, cols]: [usize; 2],
        scale: f32,
        to: DType,
    ) -> Result<Arc<Buffer>> {
        let from = x.operand.dtype();
        let out = alloc(self.device, rows, to)?;
        let (parts, part) = grid::row_parts(rows, cols);
        let params = RowParams {
            x: x.strides,
            cols: cols as u64,
            part: part as u64,
            rows: rows as u32,
            parts: parts as u32,
            scale,
            aligned: aligned_rows(&[x.parts()], [rows, cols]),
        };
        if cols <= SIMD_COLS && from == to {
            let Launches { kind, .. } = self;
            let kernel = format!("{NAME}_fwd_{kind}_simd_{}", dtype_name(from, NAME)?);
            Launch::new(self.device, &sources::REDUCE, &kernel)?
                .input(&x.operand)
                .output(&out)
                .params(&params)
                .run(row_grid([rows, cols]).1)?;
        } else if parts == 1 {
            self.launch("fwd", from, to)?
                .input(&x.operand)
                .output(&out)
                .params(&params)
                .run(grid::row_per_threadgroup(rows, cols, 4))?;
        } else {
            let partials = alloc(self.device, rows * parts, DType::F32)?;
            self.launch("fwd", from, DType::F32)?
                .input(&x.operand)
                .output(&partials)
                .params(&RowParams {
                    scale: 1.0,
                    ..params
                })
                .run(grid::row_per_threadgroup(rows * parts, part, 4))?;
            self.launch("fwd", DType::F32, to)?
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
        Ok(out)
    }

    fn columns(
        &self,
        x: &Operand<'_>,
        [outer, rows, cols]: [usize; 3],
        scale: f32,
        to: DType,
    ) -> Result<Arc<Buffer>> {
        let out = alloc(self.device, outer * cols, to)?;
        let part = rows.div_ceil(grid::column_parts(rows, outer * cols));
        let parts = rows.div_ceil(part);
        let params = ColumnParams {
            rows: rows as u64,
            part: part as u64,
            cols: cols as u32,
            parts: parts as u32,
            scale,
            reserved: 0,
        };
        if parts == 1 {
            self.launch("columns", x.dtype(), to)?
                .input(x)
                .output(&out)
                .params(&params)
                .run(grid::columns(cols, 1).times(outer))?;
        } else {
            let partials = alloc(self.device, outer * parts * cols, DType::F32)?;
            self.launch("columns", x.dtype(), DType::F32)?
                .input(x)
                .output(&partials)
                .params(&ColumnParams {
                    scale: 1.0,
                    ..params
                })
                .run(grid::columns(cols, parts).times(outer))?;
            self.launch("columns", DType::F32, to)?
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
        Ok(out)
    }
}

/// Sums of nothing, which are constants.
fn empty(op: Reduce, (x, l): Arg) -> OpResult {
    on_cpu(x, |nothing| {
        super::cpu::forward(op, (nothing, &Layout::contiguous(l.shape())))
    })
}

/// What a CPU makes of a tensor without elements, on x's device.
fn on_cpu(x: &MetalStorage, reduce: impl Fn(&CpuStorage) -> on_cpu::OpResult) -> OpResult {
    let nothing = CpuStorage::F32(Vec::new()).to_dtype(&Layout::contiguous(0), x.dtype())?;
    let (sums, shape) = reduce(&nothing)?;
    Ok((x.device().storage_from_cpu_storage(&sums)?, shape))
}

pub fn max_backward(over: Over, args: Args) -> OpResult {
    let (x, xl) = args[0];
    let (rows, cols) = over.split(xl.shape());
    build_like((x, xl), |out| {
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
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    RowParams => "reduce" RowParams { x, cols, part, rows, parts, scale, aligned }
    ColumnParams => "reduce" ColumnParams { rows, part, cols, parts, scale, reserved }
    MaxBwdParams => "reduce" MaxBwdParams { cols, aligned, reserved }
}
