//! Launches of kernels/binary_act.metal.

use super::{BinaryAct, BinaryOp, NAME};
use crate::metal::elementwise::{Elementwise, Input};
use crate::metal::sources::BINARY_ACT;
use crate::metal::{dtype_name, Spread};
use crate::op::on_metal::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalStorage, Result};

fn kernel(
    pass: &str,
    BinaryAct { op, act }: BinaryAct,
    dtype: DType,
) -> Result<Elementwise<Spread, f32>> {
    let dtype = dtype_name(dtype, NAME)?;
    Ok(Elementwise {
        source: &BINARY_ACT,
        kernel: format!("{NAME}_{pass}_{}_{}_{dtype}", op.name(), act.name()),
        spread: |rest| Spread::from(&rest[0]),
        op: act.param(),
    })
}

pub fn forward(op: BinaryAct, x: Arg, y: Arg) -> OpResult {
    let out = kernel("fwd", op, x.0.dtype())?.map(x, &[Input::Spread(y)], 1)?;
    Ok((out, x.1.shape().clone()))
}

pub fn inplace(op: BinaryAct, x: ArgMut, y: Arg) -> Result<()> {
    kernel("inplace", op, x.0.dtype())?.map_in_place(x, &[Input::Spread(y)])
}

pub fn backward(op: BinaryAct, x: Arg, y: Arg, g: Arg) -> Result<MetalStorage> {
    let outputs = match op.op {
        BinaryOp::Add => 1,
        BinaryOp::Mul => 2,
    };
    let rest = [Input::Spread(y), Input::Dense(g)];
    kernel("bwd", op, x.0.dtype())?.map(x, &rest, outputs)
}

#[cfg(test)]
type Params = crate::metal::elementwise::Params<Spread, f32>;
#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "binary_act" BinaryActParams { n, spread = "y", op = "act_param", aligned }
}
