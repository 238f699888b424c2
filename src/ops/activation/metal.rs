//! Launches of kernels/activation.metal.

use super::{Act, NAME};
use crate::metal::dtype_name;
use crate::metal::elementwise::{Elementwise, Input};
use crate::metal::sources::ACTIVATION;
use crate::op::on_metal::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

fn kernel(pass: &str, act: Act, dtype: DType) -> Result<Elementwise<(), f32>> {
    let dtype = dtype_name(dtype, NAME)?;
    Ok(Elementwise {
        source: &ACTIVATION,
        kernel: format!("{NAME}_{pass}_{}_{dtype}", act.name()),
        spread: |_| (),
        op: act.param(),
    })
}

pub fn forward(act: Act, x: Arg) -> OpResult {
    let y = kernel("fwd", act, x.0.dtype())?.map(x, &[], 1)?;
    Ok((y, x.1.shape().clone()))
}

pub fn inplace(act: Act, x: ArgMut) -> Result<()> {
    kernel("inplace", act, x.0.dtype())?.map_in_place(x, &[])
}

pub fn backward(act: Act, x: Arg, g: Arg) -> OpResult {
    let dx = kernel("bwd", act, x.0.dtype())?.map(x, &[Input::Dense(g)], 1)?;
    Ok((dx, x.1.shape().clone()))
}

#[cfg(test)]
type Params = crate::metal::elementwise::Params<(), f32>;
#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "activation" ActivationParams { n, op = "act_param", aligned }
}
