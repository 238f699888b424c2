//! Reductions of rows and over any dims, and the gradient of the maximum. Those of columns are in
//! [`crate::cpu::column_sums`].

mod dims;
mod max_backward;
mod rows;

pub use dims::over_dims;
pub use max_backward::max_backward;

use super::{Reduce, Reduction, NAME};
use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use crate::ops::reduce::Over;

pub fn forward(op: Reduce, (x, l): Arg) -> OpResult {
    let (rows, cols) = op.over.split(l.shape());
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = &match op.over {
            Over::LastDim => RowView::new(x, l),
            Over::All => RowView::contiguous(gather::contiguous(x, l), cols),
        };
        let scale = match op.reduction {
            Reduction::Mean => 1.0 / cols as f32,
            Reduction::Sum | Reduction::Max => 1.0,
        };
        let is_max = op.reduction == Reduction::Max;
        Ok(T::wrap(rows::reduce_rows(x, [rows, cols], is_max, scale)))
    })?;
    Ok((out, op.over.shape(l.shape())))
}
