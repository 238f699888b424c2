//! Maps over (x, y) and (x, y, g); y is read by its period where it was broadcast.

use super::{BinaryAct, BinaryOp, NAME};
use crate::cpu::elementwise::{self, Input, Map};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::ops::activation::cpu::{with_act, ActFn};
use candle_core::{CpuStorage, Layout, Result, Shape};

#[derive(Clone, Copy)]
struct AddAct<A>(A);

#[derive(Clone, Copy)]
struct MulAct<A>(A);

impl<A: ActFn> Map<2, 1> for AddAct<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x, y]: [S::F; 2]) -> [S::F; 1] {
        [self.0.value(s, s.add(x, y))]
    }
}

impl<A: ActFn> Map<2, 1> for MulAct<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x, y]: [S::F; 2]) -> [S::F; 1] {
        [self.0.value(s, s.mul(x, y))]
    }
}

impl<A: ActFn> Map<3, 1> for AddAct<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x, y, g]: [S::F; 3]) -> [S::F; 1] {
        [s.mul(g, self.0.slope(s, s.add(x, y)))]
    }
}

impl<A: ActFn> Map<3, 2> for MulAct<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x, y, g]: [S::F; 3]) -> [S::F; 2] {
        let dz = s.mul(g, self.0.slope(s, s.mul(x, y)));
        [s.mul(dz, y), s.mul(dz, x)]
    }
}

pub fn forward(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): (&CpuStorage, &Layout),
    y: (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::spread(y, xl)?];
        with_act!(act, |a| Ok(T::wrap(match op {
            BinaryOp::Add => elementwise::map(n, inputs, AddAct(a)),
            BinaryOp::Mul => elementwise::map(n, inputs, MulAct(a)),
        })))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn forward_inplace(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): (&mut CpuStorage, &Layout),
    y: (&CpuStorage, &Layout),
) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let inputs = [Input::spread(y, xl)?];
        gather::update(x, xl, |x: &mut [T]| {
            with_act!(act, |a| match op {
                BinaryOp::Add => elementwise::map_in_place(x, inputs, AddAct(a)),
                BinaryOp::Mul => elementwise::map_in_place(x, inputs, MulAct(a)),
            })
        });
        Ok(())
    })
}

pub fn backward(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): (&CpuStorage, &Layout),
    y: (&CpuStorage, &Layout),
    g: (&CpuStorage, &Layout),
) -> Result<CpuStorage> {
    let n = xl.shape().elem_count();
    with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::spread(y, xl)?, Input::dense(g)?];
        with_act!(act, |a| Ok(T::wrap(match op {
            BinaryOp::Add => elementwise::map::<T, 3, 1>(n, inputs, AddAct(a)),
            BinaryOp::Mul => elementwise::map::<T, 3, 2>(n, inputs, MulAct(a)),
        })))
    })
}
