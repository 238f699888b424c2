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
    Gelu, parallel::EXP, |s, x| s.mul(x, gelu_gate(s, x)), gelu_slope(s, x);
    GeluErf, 2 * parallel::EXP, |s, x| s.mul(x, math::normal_cdf(s, x)), {
        // x·φ(x) is 0 far out, where ∞·0 would give NaN.
        let pdf = math::normal_pdf(s, x);
        let tail = s.select(s.eq(pdf, s.splat(0.0)), pdf, s.mul(x, pdf));
        s.add(math::normal_cdf(s, x), tail)
    };
    Silu, parallel::EXP, |s, x| s.mul(x, math::sigmoid(s, x)), {
        // σ + xσ(1−σ), the last product 0 where σ has saturated.
        let g = math::sigmoid(s, x);
        let d = s.mul(g, s.sub(s.splat(1.0), g));
        let tail = s.select(s.eq(d, s.splat(0.0)), d, s.mul(x, d));
        s.add(g, tail)
    };
    Sigmoid, parallel::EXP, |s, x| math::sigmoid(s, x), {
        let g = math::sigmoid(s, x);
        s.mul(g, s.sub(s.splat(1.0), g))
    };
    Tanh, parallel::EXP, |s, x| math::tanh(s, x), {
        let t = math::tanh(s, x);
        s.fnma(t, t, s.splat(1.0))
    };
    Softplus, 2 * parallel::EXP, |s, x| {
        let e = math::exp(s, s.neg(s.abs(x)));
        s.add(s.max(s.splat(0.0), x), math::log1p_unit(s, e))
    }, math::sigmoid(s, x);
}

/// The factor of x in the tanh GELU: ½(1 + tanh u) = σ(2u).
#[inline(always)]
fn gelu_gate<S: Simd>(s: S, x: S::F) -> S::F {
    let cubic = s.fma(
        s.mul(x, x),
        s.splat(GELU_TWO_ALPHA * GELU_CUBIC),
        s.splat(GELU_TWO_ALPHA),
    );
    math::sigmoid(s, s.mul(x, cubic))
}

#[inline(always)]
fn gelu_slope<S: Simd>(s: S, x: S::F) -> S::F {
    let g = gelu_gate(s, x);
    let d = s.mul(g, s.sub(s.splat(1.0), g));
    let du = s.fma(
        s.mul(x, x),
        s.splat(3.0 * GELU_TWO_ALPHA * GELU_CUBIC),
        s.splat(GELU_TWO_ALPHA),
    );
    let tail = s.select(s.eq(d, s.splat(0.0)), d, s.mul(s.mul(x, d), du));
    s.add(g, tail)
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
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = Input::full(gather::contiguous(x, l));
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
    (g, gl): (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = Input::full(gather::contiguous(x, xl));
        let g = Input::full(gather::contiguous(g.as_slice::<T>()?, gl));
        with_act!(act, |a| Ok(T::wrap(elementwise::map(n, [x, g], Slope(a)))))
    })?;
    Ok((out, xl.shape().clone()))
}
