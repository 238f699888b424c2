//! A map over (x, scale, bias), the last two read by their period where they were broadcast.

use super::NAME;
use crate::cpu::elementwise::{self, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::ops::activation::cpu::{with_body, Around, Part};
use crate::ops::activation::Act;
use candle_core::{CpuStorage, Layout, Result, Shape};

#[derive(Clone, Copy)]
struct Affine;

impl Around<3, 1, 1> for Affine {
    const PARTS: [Part; 1] = [Part::Value];
    #[inline(always)]
    fn z<S: Simd>(&self, s: S, [x, scale, bias]: [S::F; 3]) -> S::F {
        s.fma(x, scale, bias)
    }
    #[inline(always)]
    fn out<S: Simd>(&self, _: S, _: [S::F; 3], [value]: [S::F; 1]) -> [S::F; 1] {
        [value]
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
        Ok(T::wrap(with_body!(Affine, act, |body| elementwise::map(n, inputs, body))))
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
            with_body!(Affine, act, |body| elementwise::map_in_place(
                x, inputs, body
            ))
        });
        Ok(())
    })
}
