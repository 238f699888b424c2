//! Launches of kernels/affine_act.metal.

use super::NAME;
use crate::act::Act;
use crate::metal::elementwise::{map, map_in_place, Input};
use crate::metal::sources::AFFINE_ACT;
use crate::metal::{aligned4, dtype_name, Operand, Spread};
use crate::op::{self, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    scale: Spread,
    bias: Spread,
    act_param: f32,
    aligned: u32,
}

impl Params {
    /// The operands are x, scale and bias.
    fn new(act: Act, operands: &[&Operand]) -> Self {
        Params {
            n: operands[0].count() as u64,
            scale: operands[1].into(),
            bias: operands[2].into(),
            act_param: act.param(),
            aligned: aligned4(operands),
        }
    }
}

fn kernel(pass: &str, act: Act, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!("{NAME}_{pass}_{}_{dtype}", act.name()))
}

type Arg<'a> = op::Arg<'a, MetalStorage>;

pub fn forward(act: Act, x: Arg, scale: Arg, bias: Arg) -> OpResult<MetalStorage> {
    let (kernel, rest) = (kernel("fwd", act, x.0)?, [scale, bias].map(Input::Spread));
    let out = map(&AFFINE_ACT, &kernel, x, &rest, 1, |o| Params::new(act, o))?;
    Ok((out, x.1.shape().clone()))
}

pub fn inplace(act: Act, x: ArgMut<MetalStorage>, scale: Arg, bias: Arg) -> Result<()> {
    let (kernel, rest) = (
        kernel("inplace", act, x.0)?,
        [scale, bias].map(Input::Spread),
    );
    map_in_place(&AFFINE_ACT, &kernel, x, &rest, |o| Params::new(act, o))
}

#[cfg(test)]
crate::metal::mirror::mirrors! {
    Params => "affine_act" AffineActParams { n, scale, bias, act_param, aligned }
}
