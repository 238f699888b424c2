//! One product, or a batch of them.

use super::{output_shape, NAME};
use crate::act::Act;
use crate::cpu::matmul::{batch, Matrix, Product};
use crate::cpu::{element::Element, with_float};
use crate::layout::BatchLayout;
use crate::op::on_cpu::{Arg, OpResult};
use crate::ops::linear::cpu::vector;

pub fn forward(act: Act, (x, xl): Arg, (y, yl): Arg, bias: Option<Arg>) -> OpResult {
    let shape = output_shape(NAME, xl, yl, bias.map(|(_, l)| l))?;
    let batch_layout = BatchLayout::new(&shape.dims()[..shape.rank() - 2], xl, yl);
    with_float!(NAME, x, |x: &[T]| {
        let y = y.as_slice::<T>()?;
        let bias = bias.map(vector::<T>).transpose()?;
        let product = |i| {
            let (x_at, y_at) = batch_layout.offsets(i);
            let x = Matrix::new(from(x, xl.start_offset() + x_at), batch_layout.x);
            let y = Matrix::new(from(y, yl.start_offset() + y_at), batch_layout.y);
            Product {
                addend: bias.as_deref().map(|bias| Matrix::repeated(bias, x.rows)),
                act,
                ..Product::new(x, y.t())
            }
        };
        Ok((T::wrap(batch(batch_layout.count(), product)), shape))
    })
}

/// A view of nothing may begin past the end.
fn from<T>(data: &[T], start: usize) -> &[T] {
    &data[start.min(data.len())..]
}
