//! The negative log-likelihood: one element of each row.

use super::{contiguous, rows_and_cols, weights};
use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::with_float;
use crate::op::on_cpu::{Args, OpResult};
use crate::ops::cross_entropy::nll::{Nll, NAME};
use crate::ops::cross_entropy::{loss_shape, CrossEntropy};
use crate::ops::targets::{self, IGNORED};

use super::Terms;

pub fn nll(op: CrossEntropy, args: Args) -> OpResult {
    let (x, layout) = args[0];
    let [_, cols] = rows_and_cols(layout.dims());
    let targets = targets::read(NAME, "target", args[1], cols, op.ignore_index)?;
    let losses = with_float!(NAME, x, |x: &[T]| {
        let weight = weights::<T>(args.get(2))?;
        let terms = Terms::new(&op, 1.0, &targets, weight.as_deref(), cols);
        let x = RowView::new(x, layout);
        let loss = |(row, &target): (usize, &u32)| {
            if target == IGNORED {
                return 0.0;
            }
            let target = target as usize;
            // SAFETY: x has a row for each target, which is one of its columns.
            let x = unsafe { *x.row(row).add(target) }.widen();
            -x * weight.as_deref().map_or(1.0, |w| w[target].widen())
        };
        let losses = targets.iter().enumerate().map(loss).collect();
        Ok(T::wrap(terms.reduce(losses, op.reduction)))
    })?;
    Ok((losses, loss_shape(op.reduction, layout.dims())))
}

/// `(grad_out, target[, weight])` → zeros, but −g · w at the targets.
pub fn nll_gradient(op: &Nll, args: Args) -> OpResult {
    let [_, cols] = rows_and_cols(op.shape.dims());
    let targets = targets::read(NAME, "target", args[1], cols, op.op.ignore_index)?;
    let dx = with_float!(NAME, args[0].0, T => {
        let (grad, weight) = (contiguous::<T>(args[0])?, weights::<T>(args.get(2))?);
        let unit = Terms::new(&op.op, 1.0, &targets, weight.as_deref(), cols).unit();
        let mut dx = vec![T::ZERO; op.shape.elem_count()];
        for (row, &target) in targets.iter().enumerate().filter(|(_, &t)| t != IGNORED) {
            let grad = grad[if grad.len() == 1 { 0 } else { row }].widen();
            let weight = weight.as_deref().map_or(1.0, |w| w[target as usize].widen());
            dx[row * cols + target as usize] = T::narrow(-grad * weight * unit);
        }
        Ok(T::wrap(dx))
    })?;
    Ok((dx, op.shape.clone()))
}
