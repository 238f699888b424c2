//! A map over (x, scale, bias), the last two read by their period where they were broadcast.

use super::NAME;
use crate::act::Act;
use crate::cpu::act::{ActTerm, AroundAct, WithAct};
use crate::cpu::elementwise::{self, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::op::{Arg, ArgMut, OpResult};
use candle_core::{CpuStorage, Result};

#[derive(Clone, Copy)]
struct Affine;

impl AroundAct<3, 1, 1> for Affine {
    const TERMS: [ActTerm; 1] = [ActTerm::Value];
    #[inline(always)]
    fn act_input<S: Simd>(&self, s: S, [x, scale, bias]: [S::F; 3]) -> S::F {
        s.fma(x, scale, bias)
    }
    #[inline(always)]
    fn output<S: Simd>(&self, _: S, _: [S::F; 3], [value]: [S::F; 1]) -> [S::F; 1] {
        [value]
    }
}

pub fn forward(
    act: Act,
    (x, xl): Arg<CpuStorage>,
    scale: Arg<CpuStorage>,
    bias: Arg<CpuStorage>,
) -> OpResult<CpuStorage> {
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

pub fn inplace(
    act: Act,
    (x, xl): ArgMut<CpuStorage>,
    scale: Arg<CpuStorage>,
    bias: Arg<CpuStorage>,
) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let inputs = [Input::spread(scale, xl)?, Input::spread(bias, xl)?];
        gather::update(x, xl, |x: &mut [T]| {
            elementwise::map_in_place(x, inputs, WithAct(Affine, act))
        });
        Ok(())
    })
}
