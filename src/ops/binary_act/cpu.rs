//! Maps over (x, y) and (x, y, g); y is read by its period where it was broadcast.

use super::{BinaryAct, BinaryOp, NAME};
use crate::cpu::elementwise::{self, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::ops::activation::cpu::{with_body, Around, Part};
use candle_core::{CpuStorage, Layout, Result, Shape};

/// act(x ∘ y)
macro_rules! forward_of {
    ($name:ident, $op:ident) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl Around<2, 1, 1> for $name {
            const PARTS: [Part; 1] = [Part::Value];
            #[inline(always)]
            fn z<S: Simd>(&self, s: S, [x, y]: [S::F; 2]) -> S::F {
                s.$op(x, y)
            }
            #[inline(always)]
            fn out<S: Simd>(&self, _: S, _: [S::F; 2], [value]: [S::F; 1]) -> [S::F; 1] {
                [value]
            }
        }
    };
}
forward_of!(Add, add);
forward_of!(Mul, mul);

/// dz = g · act′(x + y)
#[derive(Clone, Copy)]
struct AddBwd;

impl Around<3, 1, 1> for AddBwd {
    const PARTS: [Part; 1] = [Part::Slope];
    #[inline(always)]
    fn z<S: Simd>(&self, s: S, [x, y, _]: [S::F; 3]) -> S::F {
        s.add(x, y)
    }
    #[inline(always)]
    fn out<S: Simd>(&self, s: S, [_, _, g]: [S::F; 3], [slope]: [S::F; 1]) -> [S::F; 1] {
        [s.mul(g, slope)]
    }
}

/// (dz · y, dz · x) with dz = g · act′(x · y)
#[derive(Clone, Copy)]
struct MulBwd;

impl Around<3, 1, 2> for MulBwd {
    const PARTS: [Part; 1] = [Part::Slope];
    #[inline(always)]
    fn z<S: Simd>(&self, s: S, [x, y, _]: [S::F; 3]) -> S::F {
        s.mul(x, y)
    }
    #[inline(always)]
    fn out<S: Simd>(&self, s: S, [x, y, g]: [S::F; 3], [slope]: [S::F; 1]) -> [S::F; 2] {
        let dz = s.mul(g, slope);
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
        Ok(T::wrap(match op {
            BinaryOp::Add => with_body!(Add, act, |body| elementwise::map(n, inputs, body)),
            BinaryOp::Mul => with_body!(Mul, act, |body| elementwise::map(n, inputs, body)),
        }))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn forward_inplace(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): (&mut CpuStorage, &Layout),
    y: (&CpuStorage, &Layout),
) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        let y = [Input::spread(y, xl)?];
        gather::update(x, xl, |x: &mut [T]| match op {
            BinaryOp::Add => with_body!(Add, act, |body| elementwise::map_in_place(x, y, body)),
            BinaryOp::Mul => with_body!(Mul, act, |body| elementwise::map_in_place(x, y, body)),
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
        Ok(T::wrap(match op {
            BinaryOp::Add => with_body!(AddBwd, act, |body| elementwise::map(n, inputs, body)),
            BinaryOp::Mul => with_body!(MulBwd, act, |body| elementwise::map(n, inputs, body)),
        }))
    })
}
