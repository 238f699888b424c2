//! Maps over (gate, up) and (gate, up, g), of two tensors or of the halves of packed rows.

use super::NAME;
use crate::cpu::elementwise::{self, Input, Map, Walk};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, with_float};
use crate::ops::activation::cpu::{with_act, ActFn};
use crate::ops::activation::Act;
use candle_core::{CpuStorage, Layout, Result, Shape};

#[derive(Clone, Copy)]
struct Gated<A>(A);

impl<A: ActFn> Map<2, 1> for Gated<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [gate, up]: [S::F; 2]) -> [S::F; 1] {
        [s.mul(self.0.value(s, gate), up)]
    }
}

impl<A: ActFn> Map<3, 2> for Gated<A> {
    const COST: usize = 2 * A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [gate, up, g]: [S::F; 3]) -> [S::F; 2] {
        let dgate = s.mul(s.mul(g, up), self.0.slope(s, gate));
        [dgate, s.mul(g, self.0.value(s, gate))]
    }
}

type Arg<'a> = (&'a CpuStorage, &'a Layout);

pub fn forward(act: Act, gate: Arg, up: Arg) -> Result<(CpuStorage, Shape)> {
    let n = gate.1.shape().elem_count();
    let out = with_float!(NAME, gate.0, T => {
        let inputs = [Input::<T>::dense(gate)?, Input::dense(up)?];
        with_act!(act, |a| Ok(T::wrap(elementwise::map(n, inputs, Gated(a)))))
    })?;
    Ok((out, gate.1.shape().clone()))
}

pub fn forward_inplace(act: Act, gate: (&mut CpuStorage, &Layout), up: Arg) -> Result<()> {
    with_float!(NAME, gate.0, |x: &[T]| {
        let up = Input::dense(up)?;
        gather::update(x, gate.1, |x: &mut [T]| {
            with_act!(act, |a| elementwise::map_in_place(x, [up], Gated(a)))
        });
        Ok(())
    })
}

pub fn backward(act: Act, gate: Arg, up: Arg, g: Arg) -> Result<CpuStorage> {
    let n = gate.1.shape().elem_count();
    with_float!(NAME, gate.0, T => {
        let inputs = [Input::<T>::dense(gate)?, Input::dense(up)?, Input::dense(g)?];
        with_act!(act, |a| {
            Ok(T::wrap(elementwise::map::<T, 3, 2>(n, inputs, Gated(a))))
        })
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
        with_act!(act, |a| Ok(T::wrap(elementwise::map(n, inputs, Gated(a)))))
    })
}

pub fn backward_packed(act: Act, (x, l): Arg, g: Arg) -> Result<CpuStorage> {
    let (halves, n) = halves(l);
    with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        let [gate, up] = halves.map(|half| Input::walked(&x, half));
        let inputs = [gate, up, Input::dense(g)?];
        with_act!(act, |a| {
            Ok(T::wrap(elementwise::map_to(n, inputs, halves, Gated(a))))
        })
    })
}
