//! Elementwise maps of one activation, and a shorter loop for 16-bit ReLU.

use super::{Act, NAME};
use crate::cpu::act::{around_act, ActAlone, WithAct};
use crate::cpu::elementwise::{self, ElementwiseOp, Input};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{op, CpuStorage, Result};

around_act! {
    /// dx = g · act′(x)
    Backward<2, 1, 1> of [Derivative] first;
    |_, [x, _]| x;
    |s, [_, g], [derivative]| [s.mul(g, derivative)]
}

/// ReLU on 16-bit elements as they are: without widening they run at the speed of memory.
#[derive(Clone, Copy)]
struct ReluBits;

impl<T: Element> ElementwiseOp<T, 1, 1> for ReluBits {
    fn cost(&self) -> usize {
        1
    }
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, _: S, _: usize, [x]: [*const T; 1], [y]: [*mut T; 1], n: usize) {
        // SAFETY: x and y have n elements. If they are the same memory, an element is read before it is written.
        unsafe {
            // The compiler vectorises both loops by itself. One loop for both cases would need a check for overlap at run time.
            if std::ptr::eq(x, y) {
                for i in 0..n {
                    *y.add(i) = (*y.add(i)).relu();
                }
            } else {
                for i in 0..n {
                    *y.add(i) = (*x.add(i)).relu();
                }
            }
        }
    }
}

pub fn forward(act: Act, (x, l): Arg) -> OpResult {
    let n = l.shape().elem_count();
    // Stock's loop runs at the speed of memory.
    if let (Act::Relu, CpuStorage::F32(_)) = (act, x) {
        return Ok((x.unary_impl::<op::Relu>(l)?, l.shape().clone()));
    }
    let out = with_float!(NAME, x, T => {
        let x = [Input::<T>::dense((x, l))?];
        Ok(T::wrap(match act {
            Act::Relu if size_of::<T>() == 2 => elementwise::map(n, x, ReluBits),
            act => elementwise::map(n, x, ActAlone(act)),
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn inplace(act: Act, (x, l): ArgMut) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            if act == Act::Relu && size_of::<T>() == 2 {
                return elementwise::map_in_place(x, [], ReluBits);
            }
            elementwise::map_in_place(x, [], ActAlone(act))
        });
        Ok(())
    })
}

pub fn backward(act: Act, (x, xl): Arg, g: Arg) -> OpResult {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::dense(g)?];
        Ok(T::wrap(elementwise::map(n, inputs, WithAct(Backward, act))))
    })?;
    Ok((out, xl.shape().clone()))
}
