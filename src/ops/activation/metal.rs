//! Launches of kernels/activation.metal.

use super::{Act, NAME};
use crate::metal::elementwise::{map, map_in_place, Input};
use crate::metal::sources::ACTIVATION;
use crate::metal::{aligned4, dtype_name, Operand};
use crate::op::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    act_param: f32,
    aligned: u32,
}

impl Params {
    fn new(act: Act, operands: &[&Operand]) -> Self {
        Params {
            n: operands[0].count() as u64,
            act_param: act.param(),
            aligned: aligned4(operands),
        }
    }
}

fn kernel(pass: &str, act: Act, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!("{NAME}_{pass}_{}_{dtype}", act.name()))
}

pub fn forward(act: Act, x: Arg<MetalStorage>) -> OpResult<MetalStorage> {
    let kernel = kernel("fwd", act, x.0)?;
    let out = map(&ACTIVATION, &kernel, x, &[], 1, |o| Params::new(act, o))?;
    Ok((out, x.1.shape().clone()))
}

pub fn inplace(act: Act, x: ArgMut<MetalStorage>) -> Result<()> {
    let kernel = kernel("inplace", act, x.0)?;
    map_in_place(&ACTIVATION, &kernel, x, &[], |o| Params::new(act, o))
}

pub fn backward(act: Act, x: Arg<MetalStorage>, g: Arg<MetalStorage>) -> OpResult<MetalStorage> {
    let kernel = kernel("bwd", act, x.0)?;
    let params = |o: &[&Operand]| Params::new(act, o);
    let dx = map(&ACTIVATION, &kernel, x, &[Input::Dense(g)], 1, params)?;
    Ok((dx, x.1.shape().clone()))
}

#[cfg(test)]
crate::metal::mirror::mirrors! {
    Params => "activation" ActivationParams { n, act_param, aligned }
}
