//! Launches of kernels/binary_act.metal.

use super::{BinaryAct, BinaryOp, NAME};
use crate::metal::elementwise::{map, map_in_place, Input};
use crate::metal::sources::BINARY_ACT;
use crate::metal::{aligned4, dtype_name, Operand, Spread};
use crate::op::{self, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    y: Spread,
    act_param: f32,
    aligned: u32,
}

impl Params {
    /// The operands are x, y and perhaps the gradient.
    fn new(op: BinaryAct, operands: &[&Operand]) -> Self {
        Params {
            n: operands[0].count() as u64,
            y: operands[1].into(),
            act_param: op.act.param(),
            aligned: aligned4(operands),
        }
    }
}

fn kernel(pass: &str, op: BinaryAct, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!(
        "{NAME}_{pass}_{}_{}_{dtype}",
        op.op.name(),
        op.act.name()
    ))
}

type Arg<'a> = op::Arg<'a, MetalStorage>;

pub fn forward(op: BinaryAct, x: Arg, y: Arg) -> OpResult<MetalStorage> {
    let (kernel, rest) = (kernel("fwd", op, x.0)?, [Input::Spread(y)]);
    let out = map(&BINARY_ACT, &kernel, x, &rest, 1, |o| Params::new(op, o))?;
    Ok((out, x.1.shape().clone()))
}

pub fn inplace(op: BinaryAct, x: ArgMut<MetalStorage>, y: Arg) -> Result<()> {
    let (kernel, rest) = (kernel("inplace", op, x.0)?, [Input::Spread(y)]);
    map_in_place(&BINARY_ACT, &kernel, x, &rest, |o| Params::new(op, o))
}

pub fn backward(op: BinaryAct, x: Arg, y: Arg, g: Arg) -> Result<MetalStorage> {
    let outputs = match op.op {
        BinaryOp::Add => 1,
        BinaryOp::Mul => 2,
    };
    let (kernel, rest) = (kernel("bwd", op, x.0)?, [Input::Spread(y), Input::Dense(g)]);
    let params = |o: &[&Operand]| Params::new(op, o);
    map(&BINARY_ACT, &kernel, x, &rest, outputs, params)
}

#[cfg(test)]
crate::metal::mirror::mirrors! {
    Params => "binary_act" BinaryActParams { n, y, act_param, aligned }
}
