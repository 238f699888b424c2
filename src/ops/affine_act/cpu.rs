//! A map over (x, scale, bias), the last two read by their period where they were broadcast.

use super::NAME;
use crate::act::Act;
use crate::cpu::act::{around_act, WithAct};
use crate::cpu::elementwise::{self, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::op::on_cpu::{ArgMut, Args, OpResult};
use candle_core::Result;

around_act! {
    /// act(x · scale + bias)
    Affine<3, 1, 1> of [Value];
    |s, [x, scale, bias]| s.fma(x, scale, bias);
    |_, _, value| value
}

pub fn forward(act: Act, args: Args) -> OpResult {
    let ((x, xl), scale, bias) = (args[0], args[1], args[2]);
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [
            Input::<T>::dense((x, xl))?,
            Input::spread(scale, xl)?,
            Input::spread(bias, xl)?,
        ];
        Ok(T::wrap(elementwise::map(n, inputs, WithAct(Affine, act))))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn inplace(act: Act, (x, l): ArgMut, rest: Args) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let inputs = [Input::spread(rest[0], l)?, Input::spread(rest[1], l)?];
        gather::update(x, l, |x: &mut [T]| {
            elementwise::map_in_place(x, inputs, WithAct(Affine, act))
        });
        Ok(())
    })
}
