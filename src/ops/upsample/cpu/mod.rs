//! Resizing on the CPU, row by row: what a row is made of along the height comes first, whole vectors at a time.

mod backward;
mod bilinear;
mod nearest;

pub use backward::backward;

use super::{Upsample, NAME};
use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::with_float;
use crate::op::on_cpu::Arg;
use candle_core::{CpuStorage, Result};

pub fn forward(op: &Upsample, (x, l): Arg) -> Result<CpuStorage> {
    let dims = l.dims();
    let planes = dims[0] * dims[1];
    with_float!(NAME, x, |x: &[T]| {
        // Tables would be as long as a size that nothing else has limited.
        if planes * op.size[0] * op.size[1] == 0 {
            return Ok(T::wrap(Vec::new()));
        }
        let (x, [rows, columns]) = (RowView::new(x, l), op.axes(dims));
        Ok(T::wrap(match op.is_nearest(dims) {
            true => nearest::resized(&x, planes, &rows, &columns),
            false => bilinear::resized(&x, planes, &rows, &columns),
        }))
    })
}
