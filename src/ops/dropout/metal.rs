//! Launches of kernels/dropout.metal.

use super::{Dropout, DropoutAdd, NAME};
use crate::metal::elementwise::{map, map_in_place, Input};
use crate::metal::sources::DROPOUT;
use crate::metal::{aligned4, dtype_name, Operand};
use crate::op::{Arg, ArgMut, OpResult};
use crate::philox::Mask;
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    scale: f32,
    aligned: u32,
}

impl Params {
    fn new(mask: Mask, operands: &[&Operand]) -> Self {
        Params {
            n: operands[0].count() as u64,
            seed_low: mask.seed as u32,
            seed_high: (mask.seed >> 32) as u32,
            threshold: mask.threshold,
            scale: mask.scale,
            aligned: aligned4(operands),
        }
    }
}

fn kernel(variant: &str, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!("{NAME}_{variant}_{dtype}"))
}

fn act(op: Dropout) -> &'static str {
    if op.relu {
        "relu"
    } else {
        "identity"
    }
}

pub fn forward(op: Dropout, x: Arg<MetalStorage>) -> OpResult<MetalStorage> {
    let (kernel, mask) = (
        kernel(&format!("fwd_{}", act(op)), x.0)?,
        Mask::new(op.p, op.seed),
    );
    let out = map(&DROPOUT, &kernel, x, &[], 1, |o| Params::new(mask, o))?;
    Ok((out, x.1.shape().clone()))
}

pub fn inplace(op: Dropout, x: ArgMut<MetalStorage>) -> Result<()> {
    let kernel = kernel(&format!("inplace_{}", act(op)), x.0)?;
    let mask = Mask::new(op.p, op.seed);
    map_in_place(&DROPOUT, &kernel, x, &[], |o| Params::new(mask, o))
}

pub fn forward_add(
    op: DropoutAdd,
    x: Arg<MetalStorage>,
    residual: Arg<MetalStorage>,
) -> OpResult<MetalStorage> {
    let (kernel, mask) = (kernel("add", x.0)?, Mask::new(op.p, op.seed));
    let rest = [Input::Dense(residual)];
    let out = map(&DROPOUT, &kernel, x, &rest, 1, |o| Params::new(mask, o))?;
    Ok((out, x.1.shape().clone()))
}

#[cfg(test)]
crate::metal::mirror::mirrors! {
    Params => "dropout" DropoutParams { n, seed_low, seed_high, threshold, scale, aligned }
}
