//! The negative log-likelihood.

use super::{of_nothing, Rows};
use crate::metal::{aligned_rows, alloc, build, grid, Operand, RowOperand};
use crate::op::on_metal::{Args, OpResult};
use crate::ops::cross_entropy::cpu::rows_and_cols;
use crate::ops::cross_entropy::nll::{self, Nll};
use crate::ops::cross_entropy::{loss_shape, CrossEntropy};
use candle_core::backend::BackendStorage;
use candle_core::DType;

pub fn nll(op: CrossEntropy, args: Args) -> OpResult {
    let (x, layout) = args[0];
    let shape = loss_shape(op.reduction, layout.dims());
    let [rows, cols] = rows_and_cols(layout.dims());
    if rows == 0 {
        return Ok((of_nothing(op.reduction, x)?, shape));
    }
    let xs = RowOperand::new(x, layout)?;
    let logits = (x.device(), x.dtype(), [rows, cols]);
    let mut all = Rows::new(nll::NAME, &op, 1.0, logits, &args[1..])?.undivided();
    all.params.x = xs.strides;
    let losses = alloc(x.device(), rows, DType::F32)?;
    all.launch("nll")?
        .input(&xs.operand)
        .input(&all.targets)
        .input_or(all.weight.as_ref(), &all.targets)
        .output(&losses)
        .params(&all.params)
        .run(grid::elementwise(rows, 1))?;
    Ok((all.result(losses, None, op.reduction)?, shape))
}

/// `(grad_out, target[, weight])` → zeros, but −g · w at the targets.
pub fn nll_gradient(op: &Nll, args: Args) -> OpResult {
    let (g, layout) = args[0];
    let size = rows_and_cols(op.shape.dims());
    let dx = build(g, size[0] * size[1], |dx| {
        let grad = Operand::contiguous(g, layout)?;
        let mut all = Rows::new(
            nll::NAME,
            &op.op,
            1.0,
            (g.device(), g.dtype(), size),
            &args[1..],
        )?;
        all.params.aligned = aligned_rows(&[], size);
        let total = all.total()?;
        let launch = all.launch("nll_bwd")?.input(&grad).input(&all.targets);
        launch
            .input_or(all.weight.as_ref(), &all.targets)
            .input_buffer(&total)
            .output(dx)
            .params(&all.params)
            .params(&u32::from(grad.count() > 1))
            .run(grid::elementwise_rows(size[0], size[1], 4))
    })?;
    Ok((dx, op.shape.clone()))
}
