//! Maps over (x, y) and (x, y, g); y is read by its period where it was broadcast.

use super::{BinaryAct, BinaryOp, NAME};
use crate::cpu::act::{around_act, WithAct};
use crate::cpu::elementwise::{self, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut, OpResult};
use candle_core::{CpuStorage, Result};

around_act! {
    /// act(x + y)
    Add<2, 1, 1> of [Value];
    |s, [x, y]| s.add(x, y);
    |_, _, value| value
}

around_act! {
    /// act(x · y)
    Mul<2, 1, 1> of [Value];
    |s, [x, y]| s.mul(x, y);
    |_, _, value| value
}

around_act! {
    /// dz = g · act′(x + y)
    AddBwd<3, 1, 1> of [Derivative];
    |s, [x, y, _]| s.add(x, y);
    |s, [_, _, g], [derivative]| [s.mul(g, derivative)]
}

around_act! {
    /// (dz · y, dz · x) with dz = g · act′(x · y)
    MulBwd<3, 1, 2> of [Derivative];
    |s, [x, y, _]| s.mul(x, y);
    |s, [x, y, g], [derivative]| {
        let dz = s.mul(g, derivative);
        [s.mul(dz, y), s.mul(dz, x)]
    }
}

pub fn forward(BinaryAct { op, act }: BinaryAct, (x, xl): Arg, y: Arg) -> OpResult {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::spread(y, xl)?];
        Ok(T::wrap(match op {
            BinaryOp::Add => elementwise::map(n, inputs, WithAct(Add, act)),
            BinaryOp::Mul => elementwise::map(n, inputs, WithAct(Mul, act)),
        }))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn inplace(BinaryAct { op, act }: BinaryAct, (x, xl): ArgMut, y: Arg) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let y = [Input::spread(y, xl)?];
        gather::update(x, xl, |x: &mut [T]| match op {
            BinaryOp::Add => elementwise::map_in_place(x, y, WithAct(Add, act)),
            BinaryOp::Mul => elementwise::map_in_place(x, y, WithAct(Mul, act)),
        });
        Ok(())
    })
}

pub fn backward(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): Arg,
    y: Arg,
    g: Arg,
) -> Result<CpuStorage> {
    let n = xl.shape().elem_count();
    with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::spread(y, xl)?, Input::dense(g)?];
        Ok(T::wrap(match op {
            BinaryOp::Add => elementwise::map(n, inputs, WithAct(AddBwd, act)),
            BinaryOp::Mul => elementwise::map(n, inputs, WithAct(MulBwd, act)),
        }))
    })
}
