//! Maps over (x, y) and (x, y, g); y is read by its period where it was broadcast.

use super::{BinaryAct, BinaryOp, NAME};
use crate::cpu::act::{ActTerm, AroundAct, WithAct};
use crate::cpu::elementwise::{self, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::op::{Arg, ArgMut, OpResult};
use candle_core::{CpuStorage, Result};

/// act(x ∘ y)
macro_rules! forward_of {
    ($name:ident, $op:ident) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl AroundAct<2, 1, 1> for $name {
            const TERMS: [ActTerm; 1] = [ActTerm::Value];
            #[inline(always)]
            fn act_input<S: Simd>(&self, s: S, [x, y]: [S::F; 2]) -> S::F {
                s.$op(x, y)
            }
            #[inline(always)]
            fn output<S: Simd>(&self, _: S, _: [S::F; 2], [value]: [S::F; 1]) -> [S::F; 1] {
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

impl AroundAct<3, 1, 1> for AddBwd {
    const TERMS: [ActTerm; 1] = [ActTerm::Derivative];
    #[inline(always)]
    fn act_input<S: Simd>(&self, s: S, [x, y, _]: [S::F; 3]) -> S::F {
        s.add(x, y)
    }
    #[inline(always)]
    fn output<S: Simd>(&self, s: S, [_, _, g]: [S::F; 3], [derivative]: [S::F; 1]) -> [S::F; 1] {
        [s.mul(g, derivative)]
    }
}

/// (dz · y, dz · x) with dz = g · act′(x · y)
#[derive(Clone, Copy)]
struct MulBwd;

impl AroundAct<3, 1, 2> for MulBwd {
    const TERMS: [ActTerm; 1] = [ActTerm::Derivative];
    #[inline(always)]
    fn act_input<S: Simd>(&self, s: S, [x, y, _]: [S::F; 3]) -> S::F {
        s.mul(x, y)
    }
    #[inline(always)]
    fn output<S: Simd>(&self, s: S, [x, y, g]: [S::F; 3], [derivative]: [S::F; 1]) -> [S::F; 2] {
        let dz = s.mul(g, derivative);
        [s.mul(dz, y), s.mul(dz, x)]
    }
}

pub fn forward(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): Arg<CpuStorage>,
    y: Arg<CpuStorage>,
) -> OpResult<CpuStorage> {
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

pub fn inplace(
    BinaryAct { op, act }: BinaryAct,
    (x, xl): ArgMut<CpuStorage>,
    y: Arg<CpuStorage>,
) -> Result<()> {
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
    (x, xl): Arg<CpuStorage>,
    y: Arg<CpuStorage>,
    g: Arg<CpuStorage>,
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
