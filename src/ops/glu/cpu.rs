//! Maps over (gate, up) and (gate, up, g), of two tensors or of the halves of packed rows.

use super::NAME;
use crate::act::Act;
use crate::cpu::act::{around_act, WithAct};
use crate::cpu::elementwise::{self, Input, Walk};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut, OpResult};
use candle_core::{CpuStorage, Layout, Result};

around_act! {
    /// act(gate) · up
    Forward<2, 1, 1> of [Value] first;
    |_, [gate, _]| gate;
    |s, [_, up], [value]| [s.mul(value, up)]
}

around_act! {
    /// (dgate, dup)
    Backward<3, 2, 2> of [Derivative, Value] first;
    |_, [gate, _, _]| gate;
    |s, [_, up, g], [derivative, value]| [s.mul(s.mul(g, up), derivative), s.mul(g, value)]
}

pub fn forward(act: Act, gate: Arg, up: Arg) -> OpResult {
    let n = gate.1.shape().elem_count();
    let out = with_float!(NAME, gate.0, T => {
        let inputs = [Input::<T>::dense(gate)?, Input::dense(up)?];
        Ok(T::wrap(elementwise::map(n, inputs, WithAct(Forward, act))))
    })?;
    Ok((out, gate.1.shape().clone()))
}

pub fn inplace(act: Act, gate: ArgMut, up: Arg) -> Result<()> {
    with_float!(NAME, gate.0, |x: &[T]| {
        let up = Input::dense(up)?;
        gather::update(x, gate.1, |x: &mut [T]| {
            elementwise::map_in_place(x, [up], WithAct(Forward, act))
        });
        Ok(())
    })
}

pub fn backward(act: Act, gate: Arg, up: Arg, g: Arg) -> Result<CpuStorage> {
    let n = gate.1.shape().elem_count();
    with_float!(NAME, gate.0, T => {
        let inputs = [Input::<T>::dense(gate)?, Input::dense(up)?, Input::dense(g)?];
        Ok(T::wrap(elementwise::map(n, inputs, WithAct(Backward, act))))
    })
}

/// The walks over the halves of the rows, and how many elements each half has in all.
fn halves(x: &Layout) -> ([Walk; 2], usize) {
    let len = x.dims().last().map_or(0, |d| d / 2);
    (Walk::halves(len), x.shape().elem_count() / 2)
}

pub fn forward_packed(act: Act, (x, l): Arg) -> Result<CpuStorage> {
    let (halves, n) = halves(l);
    with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        let inputs = halves.map(|half| Input::walked(&x, half));
        Ok(T::wrap(elementwise::map(n, inputs, WithAct(Forward, act))))
    })
}

pub fn backward_packed(act: Act, (x, l): Arg, g: Arg) -> Result<CpuStorage> {
    let (halves, n) = halves(l);
    with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        let [gate, up] = halves.map(|half| Input::walked(&x, half));
        let inputs = [gate, up, Input::dense(g)?];
        Ok(T::wrap(elementwise::map_to(
            n,
            inputs,
            halves,
            WithAct(Backward, act),
        )))
    })
}
