//! One product.

use super::{output_shape, NAME};
use crate::cpu::matmul::{Matrix, Product, Stored};
use crate::cpu::{element::Element, gather, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use candle_core::{CpuStorage, Result};

pub fn forward((x, xl): Arg, (w, wl): Arg, bias: Option<Arg>, scale: f32) -> OpResult {
    let shape = output_shape(xl, wl.dims()[0]);
    with_float!(NAME, x, |x: &[T]| {
        let (x, w) = (Stored::new(x, xl), Stored::new(w.as_slice::<T>()?, wl));
        let bias = bias.map(vector::<T>).transpose()?;
        let product = Product {
            scale,
            addend: bias
                .as_deref()
                .map(|bias| Matrix::repeated(bias, x.matrix().rows)),
            ..Product::new(x.matrix(), w.matrix())
        };
        Ok((T::wrap(product.run::<T>()), shape))
    })
}

/// The outputs where there is nothing to multiply: a bias, or 0.
pub fn bias_only(
    op: &'static str,
    (x, xl): Arg,
    outputs: usize,
    bias: Option<Arg>,
) -> Result<CpuStorage> {
    let rows: usize = xl.dims().iter().rev().skip(1).product();
    with_float!(op, x, T => {
        let row = match bias {
            Some(bias) => vector::<T>(bias)?.into_owned(),
            None => vec![T::ZERO; outputs],
        };
        Ok(T::wrap(row.repeat(rows)))
    })
}

/// The elements of a bias.
pub fn vector<'a, T: Element>((v, l): Arg<'a>) -> Result<std::borrow::Cow<'a, [T]>> {
    Ok(gather::contiguous(v.as_slice::<T>()?, l))
}
