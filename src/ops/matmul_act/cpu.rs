//! One product, or a batch of them.

use super::{output_shape, Stacks, NAME};
use crate::cpu::matmul::{batch, Matrix, Product};
use crate::cpu::{element::Element, with_float};
use crate::ops::activation::Act;
use crate::ops::linear::cpu::{vector, Arg};
use candle_core::{CpuStorage, Result, Shape};

pub fn forward(
    act: Act,
    (x, xl): Arg,
    (y, yl): Arg,
    bias: Option<Arg>,
) -> Result<(CpuStorage, Shape)> {
    let shape = output_shape(xl, yl, bias.map(|(_, l)| l))?;
    let stacks = Stacks::new(&shape.dims()[..shape.rank() - 2], xl, yl);
    with_float!(NAME, x, |x: &[T]| {
        let y = y.as_slice::<T>()?;
        let bias = bias.map(vector::<T>).transpose()?;
        let product = |i| {
            let (x_at, y_at) = stacks.offsets(i);
            let x = Matrix::new(from(x, xl.start_offset() + x_at), stacks.x);
            let y = Matrix::new(from(y, yl.start_offset() + y_at), stacks.y);
            Product {
                addend: bias.as_deref().map(|bias| Matrix::repeated(bias, x.rows)),
                act,
                ..Product::new(x, y.t())
            }
        };
        Ok((T::wrap(batch(stacks.count(), product)), shape))
    })
}

/// A view of nothing may begin past the end.
fn from<T>(data: &[T], start: usize) -> &[T] {
    &data[start.min(data.len())..]
}
