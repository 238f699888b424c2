//! Launches of kernels/kl_div.metal.

use super::{loss_shape, Distribution, KlDiv, LossReduction, KEPT, NAME};
use crate::check;
use crate::metal::{
    aligned_rows, alloc, build, dtype_name, finish, grid, row_grid, sources, Launch, Operand,
    RowOperand, RowStrides,
};
use crate::op::on_metal::{Arg, Args};
use crate::ops::cross_entropy::cpu::rows_and_cols;
use crate::ops::cross_entropy::metal::of_nothing;
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct KlDivParams {
    q: RowStrides,
    p: RowStrides,
    cols: u64,
    rows: u32,
    q_logits: u32,
    p_logits: u32,
    grad_rows: u32,
    unit: f32,
    aligned: u32,
}

/// Rows of input and target.
struct Rows<'a> {
    q: RowOperand<'a>,
    p: RowOperand<'a>,
    params: KlDivParams,
}

impl<'a> Rows<'a> {
    fn new(op: KlDiv, (q, ql): Arg<'a>, (p, pl): Arg<'a>) -> Result<Self> {
        let [rows, cols] = rows_and_cols(ql.dims());
        let message = format_args!("got {rows} rows, expected less than 2^32");
        check::ensure(rows < u32::MAX as usize, NAME, message)?;
        let (q, p) = (RowOperand::new(q, ql)?, RowOperand::new(p, pl)?);
        let params = KlDivParams {
            q: q.strides,
            p: p.strides,
            cols: cols as u64,
            rows: rows as u32,
            q_logits: (op.input == Distribution::Logits).into(),
            p_logits: (op.target == Distribution::Logits).into(),
            grad_rows: 0,
            unit: op.unit(rows),
            aligned: aligned_rows(&[q.parts(), p.parts()], [rows, cols]),
        };
        Ok(Rows { q, p, params })
    }
}

fn launch<'a>(op: KlDiv, pass: &str, x: &'a MetalStorage) -> Result<Launch<'a>> {
    let probs = if op.target == Distribution::Probs {
        "_probs"
    } else {
        ""
    };
    let kernel = format!("{NAME}_{pass}{probs}_{}", dtype_name(x.dtype(), NAME)?);
    Launch::new(x.device(), &sources::KL_DIV, &kernel)
}

/// The divergence, and the numbers that are kept of each row.
pub fn forward(op: KlDiv, args: Args) -> Result<[(MetalStorage, Shape); 2]> {
    let (x, layout) = args[0];
    let ([rows, cols], device) = (rows_and_cols(layout.dims()), x.device());
    let shape = loss_shape(op.reduction, layout.dims());
    let kept = alloc(device, rows * KEPT, DType::F32)?;
    let result = (
        finish(kept.clone(), device, rows * KEPT, DType::F32),
        (rows, KEPT).into(),
    );
    if rows == 0 {
        return Ok([(of_nothing(op.reduction, x)?, shape), result]);
    }
    let all = Rows::new(op, args[0], args[1])?;
    let losses = alloc(device, rows, DType::F32)?;
    let (path, grid) = row_grid([rows, cols]);
    launch(op, &format!("fwd_{path}"), x)?
        .input(&all.q.operand)
        .input(&all.p.operand)
        .output(&losses)
        .output(&kept)
        .params(&all.params)
        .run(grid)?;
    let one_by_one = op.reduction == LossReduction::None;
    if one_by_one && x.dtype() == DType::F32 {
        return Ok([(finish(losses, device, rows, DType::F32), shape), result]);
    }
    let (pass, grid, count) = match one_by_one {
        true => ("narrow", grid::elementwise(rows, 1), rows),
        false => ("sum", grid::row_per_threadgroup(1, rows, 1), 1),
    };
    let loss = build(x, count, |out| {
        let kernel = format!("{NAME}_{pass}_{}", dtype_name(x.dtype(), NAME)?);
        Launch::new(device, &sources::KL_DIV, &kernel)?
            .input_buffer(&losses)
            .output(out)
            .params(&all.params)
            .run(grid)
    })?;
    Ok([(loss, shape), result])
}

/// The gradient of the input, or of the target, from `(input, target, kept, grad_out)`.
pub fn gradient(op: KlDiv, of_target: bool, args: Args) -> Result<MetalStorage> {
    let (x, layout) = args[0];
    let [rows, cols] = rows_and_cols(layout.dims());
    build(x, rows * cols, |out| {
        let all = Rows::new(op, args[0], args[1])?;
        let kept = Operand::contiguous(args[2].0, args[2].1)?;
        let grad = Operand::contiguous(args[3].0, args[3].1)?;
        let params = KlDivParams {
            grad_rows: (grad.count() > 1).into(),
            ..all.params
        };
        launch(op, if of_target { "bwd_target" } else { "bwd_input" }, x)?
            .input(&all.q.operand)
            .input(&all.p.operand)
            .input(&kept)
            .input(&grad)
            .output(out)
            .params(&params)
            .run(grid::elementwise_rows(rows, cols, 4))
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    KlDivParams => "kl_div" KlDivParams { q, p, cols, rows, q_logits, p_logits, grad_rows, unit, aligned }
}
