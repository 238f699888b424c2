//! Activation functors over lanes, and the maps that apply them.

use super::{Act, NAME};
use crate::cpu::elementwise::{self, Input, Map};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, math, parallel, with_float};
use candle_core::{CpuStorage, Layout, Result, Shape};

/// One activation: its value and its derivative. Methods must be `inline(always)`.
pub trait ActFn: Copy + Send + Sync {
    /// Cost of an element, as in [`parallel`].
    const COST: usize;
    fn value<S: Simd>(&self, s: S, x: S::F) -> S::F;
    fn slope<S: Simd>(&self, s: S, x: S::F) -> S::F;
}

macro_rules! act_fns {
    ($($name:ident, $cost:expr, |$s:ident, $x:ident| $value:expr, $slope:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub struct $name;
        impl ActFn for $name {
            const COST: usize = $cost;
            #[inline(always)]
            fn value<S: Simd>(&self, $s: S, $x: S::F) -> S::F {
                $value
            }
            #[inline(always)]
            fn slope<S: Simd>(&self, $s: S, $x: S::F) -> S::F {
                $slope
            }
        }
    )*};
}

act_fns! {
    Identity, 1, |_s, x| x, {
        let _ = x;
        _s.splat(1.0)
    };
    // max(NaN, 0) = 0, as stock Candle has it.
    Relu, 1, |s, x| s.max(x, s.splat(0.0)),
        s.select(s.lt(s.splat(0.0), x), s.splat(1.0), s.splat(0.0));
    Relu2, 1, |s, x| {
        let r = s.max(x, s.splat(0.0));
        s.mul(r, r)
    }, {
        let r = s.max(x, s.splat(0.0));
        s.add(r, r)
    };
    Gelu, parallel::EXP, |s, x| s.mul(x, math::sigmoid(s, gelu_twice_u(s, x))),
        gelu_slope(s, x);
    GeluErf, 2 * parallel::EXP, |s, x| s.mul(x, math::normal_cdf(s, x)),
        s.add(math::normal_cdf(s, x), times_vanishing(s, x, math::normal_pdf(s, x)));
    Silu, parallel::EXP, |s, x| s.mul(x, math::sigmoid(s, x)),
        s.add(math::sigmoid(s, x), times_vanishing(s, x, math::sigmoid_slope(s, x)));
    Sigmoid, parallel::EXP, |s, x| math::sigmoid(s, x), math::sigmoid_slope(s, x);
    // 1 − tanh²x = 4σ′(2x), without the cancellation.
    Tanh, parallel::EXP, |s, x| math::tanh(s, x),
        s.mul(s.splat(4.0), math::sigmoid_slope(s, s.add(x, x)));
    Softplus, 2 * parallel::EXP, |s, x| {
        let e = math::exp(s, s.neg(s.abs(x)));
        s.add(s.max(s.splat(0.0), x), math::log1p_unit(s, e))
    }, math::sigmoid(s, x);
}

/// x·d, but 0 where d has vanished: there ∞·0 would make a NaN of it.
#[inline(always)]
fn times_vanishing<S: Simd>(s: S, x: S::F, d: S::F) -> S::F {
    s.select(s.eq(d, s.splat(0.0)), d, s.mul(x, d))
}

/// 2u for u = √(2/π)(x + 0.044715x³): the tanh GELU is x·½(1 + tanh u) = x·σ(2u).
#[inline(always)]
fn gelu_twice_u<S: Simd>(s: S, x: S::F) -> S::F {
    let cubic = s.splat(GELU_TWO_ALPHA * GELU_CUBIC);
    s.mul(x, s.fma(s.mul(x, x), cubic, s.splat(GELU_TWO_ALPHA)))
}

#[inline(always)]
fn gelu_slope<S: Simd>(s: S, x: S::F) -> S::F {
    let u = gelu_twice_u(s, x);
    let cubic = s.splat(3.0 * GELU_TWO_ALPHA * GELU_CUBIC);
    let du = s.fma(s.mul(x, x), cubic, s.splat(GELU_TWO_ALPHA));
    let tail = times_vanishing(s, s.mul(x, du), math::sigmoid_slope(s, u));
    s.add(math::sigmoid(s, u), tail)
}

/// 2·√(2/π)
const GELU_TWO_ALPHA: f32 = 1.595_769_1;
const GELU_CUBIC: f32 = 0.044_715;

#[derive(Clone, Copy)]
pub struct LeakyRelu(pub f32);

impl ActFn for LeakyRelu {
    const COST: usize = 1;
    #[inline(always)]
    fn value<S: Simd>(&self, s: S, x: S::F) -> S::F {
        s.mul(x, self.slope(s, x))
    }
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::F) -> S::F {
        s.select(s.lt(s.splat(0.0), x), s.splat(1.0), s.splat(self.0))
    }
}

/// Runs `$body` with `$a` bound to the functor of `$act`, so that the kind is a type in inner loops.
macro_rules! with_act {
    ($act:expr, |$a:ident| $body:expr) => {{
        use $crate::ops::activation::cpu as fns;
        use $crate::ops::activation::Act;
        match $act {
            Act::Identity => {
                let $a = fns::Identity;
                $body
            }
            Act::Relu => {
                let $a = fns::Relu;
                $body
            }
            Act::Relu2 => {
                let $a = fns::Relu2;
                $body
            }
            Act::LeakyRelu(slope) => {
                let $a = fns::LeakyRelu(slope);
                $body
            }
            Act::Gelu => {
                let $a = fns::Gelu;
                $body
            }
            Act::GeluErf => {
                let $a = fns::GeluErf;
                $body
            }
            Act::Silu => {
                let $a = fns::Silu;
                $body
            }
            Act::Sigmoid => {
                let $a = fns::Sigmoid;
                $body
            }
            Act::Tanh => {
                let $a = fns::Tanh;
                $body
            }
            Act::Softplus => {
                let $a = fns::Softplus;
                $body
            }
        }
    }};
}
pub(crate) use with_act;

#[derive(Clone, Copy)]
struct Value<A>(A);

impl<A: ActFn> Map<1, 1> for Value<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x]: [S::F; 1]) -> [S::F; 1] {
        [self.0.value(s, x)]
    }
}

#[derive(Clone, Copy)]
struct Slope<A>(A);

impl<A: ActFn> Map<2, 1> for Slope<A> {
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, [x, g]: [S::F; 2]) -> [S::F; 1] {
        [s.mul(g, self.0.slope(s, x))]
    }
}

pub fn forward(act: Act, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
    let n = l.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let x = Input::<T>::dense((x, l))?;
        with_act!(act, |a| Ok(T::wrap(elementwise::map(n, [x], Value(a)))))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(act: Act, x: &mut CpuStorage, l: &Layout) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            with_act!(act, |a| elementwise::map_in_place(x, [], Value(a)))
        });
        Ok(())
    })
}

pub fn backward(
    act: Act,
    (x, xl): (&CpuStorage, &Layout),
    g: (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::dense(g)?];
        with_act!(act, |a| Ok(T::wrap(elementwise::map(n, inputs, Slope(a)))))
    })?;
    Ok((out, xl.shape().clone()))
}
