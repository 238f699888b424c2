//! Launches of kernels/linear.metal: x·Aᵀ, then the base with the rest. At most three dispatches.

use super::{Lora, NAME};
use crate::metal::matmul::{Matrix, Product};
use crate::metal::{alloc, finish, Operand};
use crate::op::on_metal::{Arg, OpResult};
use crate::ops::linear::output_shape;
use crate::philox::Mask;
use candle_core::backend::BackendStorage;
use candle_core::DType;

/// `args` are x, A and B; `held` are the op's weight and, if it has one, its bias.
pub fn forward(op: &Lora, args: &[Arg], held: &[Arg]) -> OpResult {
    let (x, a, b) = (args[0], args[1], args[2]);
    let (w, bias) = (held[0], held.get(1).copied());
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let [xs, ws, a, b] = [x, w, a, b].map(|arg| Matrix::new(NAME, arg));
    let (xs, ws, a, b) = (xs?, ws?, a?, b?);
    let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
    let shape = output_shape(x.1, ws.layout.rows);
    let whole = Product {
        bias: bias.as_ref(),
        ..Product::new(device, &xs, &ws)
    };
    let count = whole.count();
    if count == 0 {
        return Ok((finish(alloc(device, 0, dtype)?, device, 0, dtype), shape));
    }
    let down = Product {
        scale: op.scale,
        mask: op.dropout.map(|dropout| Mask::new(dropout.p, dropout.seed)),
        ..Product::new(device, &xs, &a)
    };
    let u = down.wide()?;
    if whole.has_few_rows() {
        let out = alloc(device, count, dtype)?;
        let whole = Product {
            low: Some([&u, &b]),
            ..whole
        };
        whole.gemv("", &out)?;
        return Ok((finish(out, device, count, dtype), shape));
    }
    let base = whole.base(x, w)?;
    let held = Operand::fresh(base.clone(), count, DType::F32);
    let up = Product {
        base: Some(&held),
        bias: bias.as_ref(),
        ..Product::new(device, &u, &b)
    };
    let (out, variant) = match dtype {
        DType::F32 => (base, ""),
        _ => (alloc(device, count, dtype)?, "_narrow"),
    };
    up.tiles(variant, &out)?;
    Ok((finish(out, device, count, dtype), shape))
}

pub fn up_add(scale: f32, args: &[Arg]) -> OpResult {
    let (base, u, b) = (args[0], args[1], args[2]);
    let (device, dtype) = (base.0.device(), base.0.dtype());
    let (u, b) = (Matrix::new(NAME, u)?, Matrix::new(NAME, b)?);
    let shape = base.1.shape().clone();
    let held = Operand::contiguous(base.0, base.1)?;
    let product = Product {
        scale,
        base: Some(&held),
        ..Product::new(device, &u, &b)
    };
    let out = alloc(device, product.count(), dtype)?;
    if product.count() > 0 {
        product.tiles("", &out)?;
    }
    Ok((finish(out, device, product.count(), dtype), shape))
}
