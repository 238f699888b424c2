//! Launches of kernels/affine_act.metal.

use super::NAME;
use crate::act::Act;
use crate::metal::elementwise::{Elementwise, Input};
use crate::metal::sources::AFFINE_ACT;
use crate::metal::{dtype_name, Spread};
use crate::op::on_metal::{ArgMut, Args, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct ScaleBias {
    scale: Spread,
    bias: Spread,
}

fn kernel(pass: &str, act: Act, dtype: DType) -> Result<Elementwise<ScaleBias, f32>> {
    let dtype = dtype_name(dtype, NAME)?;
    Ok(Elementwise {
        source: &AFFINE_ACT,
        kernel: format!("{NAME}_{pass}_{}_{dtype}", act.name()),
        spread: |rest| ScaleBias {
            scale: (&rest[0]).into(),
            bias: (&rest[1]).into(),
        },
        op: act.param(),
    })
}

pub fn forward(act: Act, args: Args) -> OpResult {
    let (x, rest) = (args[0], [args[1], args[2]].map(Input::Spread));
    let y = kernel("fwd", act, x.0.dtype())?.map(x, &rest, 1)?;
    Ok((y, x.1.shape().clone()))
}

pub fn inplace(act: Act, x: ArgMut, rest: Args) -> Result<()> {
    let rest = [rest[0], rest[1]].map(Input::Spread);
    kernel("inplace", act, x.0.dtype())?.map_in_place(x, &rest)
}

#[cfg(test)]
type Params = crate::metal::elementwise::Params<ScaleBias, f32>;
#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "affine_act" AffineActParams { n, spread.scale, spread.bias, op = "act_param", aligned }
}
