//! Launches of kernels/dropout.metal.

use super::{Dropout, DropoutAdd, NAME};
use crate::metal::dtype_name;
use crate::metal::elementwise::{Elementwise, Input};
use crate::metal::sources::DROPOUT;
use crate::op::on_metal::{Arg, ArgMut, OpResult};
use crate::philox::Mask;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct MaskParams {
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    scale: f32,
}

fn kernel(variant: &str, mask: Mask, dtype: DType) -> Result<Elementwise<(), MaskParams>> {
    let dtype = dtype_name(dtype, NAME)?;
    Ok(Elementwise {
        source: &DROPOUT,
        kernel: format!("{NAME}_{variant}_{dtype}"),
        spread: |_| (),
        op: MaskParams {
            seed_low: mask.seed as u32,
            seed_high: (mask.seed >> 32) as u32,
            threshold: mask.threshold,
            scale: mask.scale,
        },
    })
}

pub fn forward(Dropout { relu, p, seed }: Dropout, x: Arg) -> OpResult {
    let variant = if relu { "fwd_relu" } else { "fwd_identity" };
    let y = kernel(variant, Mask::new(p, seed), x.0.dtype())?.map(x, &[], 1)?;
    Ok((y, x.1.shape().clone()))
}

pub fn inplace(Dropout { relu, p, seed }: Dropout, x: ArgMut) -> Result<()> {
    let variant = if relu {
        "inplace_relu"
    } else {
        "inplace_identity"
    };
    kernel(variant, Mask::new(p, seed), x.0.dtype())?.map_in_place(x, &[])
}

pub fn forward_add(DropoutAdd { p, seed }: DropoutAdd, x: Arg, residual: Arg) -> OpResult {
    let rest = [Input::Dense(residual)];
    let y = kernel("add", Mask::new(p, seed), x.0.dtype())?.map(x, &rest, 1)?;
    Ok((y, x.1.shape().clone()))
}

#[cfg(test)]
type Params = crate::metal::elementwise::Params<(), MaskParams>;
#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "dropout" DropoutParams { n, op.seed_low, op.seed_high, op.threshold, op.scale, aligned }
}
