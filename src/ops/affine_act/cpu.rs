//! A map over (x, scale, bias), the last two read by their period where they were broadcast.

use super::NAME;
use crate::cpu::elementwise::{self, Input, Map};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::ops::activation::cpu::{with_act, ActFn};
use crate::ops::activation::Act;
use candle_core::{CpuStorage, Layout, Result, Shape};

#[derive(Clone, Copy)]
struct Affine<A>(A);

impl<A: ActFn> Map<3, 1> for Affine<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x, scale, bias]: [S::F; 3]) -> [S::F; 1] {
        [self.0.value(s, s.fma(x, scale, bias))]
    }
}

pub fn forward(
    act: Act,
    (x, xl): (&CpuStorage, &Layout),
    scale: (&CpuStorage, &Layout),
    bias: (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [
            Input::<T>::dense((x, xl))?,
            Input::spread(scale, xl)?,
            Input::spread(bias, xl)?,
        ];
        with_act!(act, |a| Ok(T::wrap(elementwise::map(n, inputs, Affine(a)))))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn forward_inplace(
    act: Act,
    (x, xl): (&mut CpuStorage, &Layout),
    scale: (&CpuStorage, &Layout),
    bias: (&CpuStorage, &Layout),
) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let inputs = [Input::spread(scale, xl)?, Input::spread(bias, xl)?];
        gather::update(x, xl, |x: &mut [T]| {
            with_act!(act, |a| elementwise::map_in_place(x, inputs, Affine(a)))
        });
        Ok(())
    })
}
