//! One product on Metal.

use super::{output_shape, NAME};
use crate::metal::matmul::{Matrix, Product};
use crate::metal::{finish, Operand};
use crate::op::on_metal::{Arg, OpResult};
use candle_core::backend::BackendStorage;

pub fn forward(x: Arg, w: Arg, bias: Option<Arg>, scale: f32) -> OpResult {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let (xs, ws) = (Matrix::new(NAME, x)?, Matrix::new(NAME, w)?);
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let product = Product {
        scale,
        bias: bias.as_ref(),
        ..Product::new(device, &xs, &ws)
    };
    let out = product.run(x, w)?;
    let shape = output_shape(x.1, ws.layout.rows);
    Ok((finish(out, device, product.count(), dtype), shape))
}
