//! The value and the derivative of each activation function, over lanes of f32.

use crate::cpu::simd::Simd;
use crate::cpu::{math, parallel};

/// One activation function f over lanes: f(x) and f′(x), each lane for itself.
///
/// What an implementation must satisfy:
/// - Every method is `inline(always)`, because it is compiled into the `target_feature` function of its caller.
/// - A lane of the result depends on the same lane of x alone: kernels pass zeros in the lanes past the end of the data.
/// - A NaN gives NaN, but for `Relu` and `Relu2`, where value and derivative are 0, as in stock Candle.
/// - At ±∞ and wherever f′ underflows, the results are the limits of f and f′, never the NaN of ∞ · 0.
pub trait ActLanes: Copy + Send + Sync {
    /// What an element costs beside a plain copy (see [`parallel`]). From [`parallel::EXP`] on, the value and the derivative
    /// are compiled once per instruction set, not into every op.
    const COST: usize;
    /// f(x)
    fn value<S: Simd>(&self, s: S, x: S::F) -> S::F;
    /// f′(x)
    fn derivative<S: Simd>(&self, s: S, x: S::F) -> S::F;
}

macro_rules! act_lanes {
    ($($name:ident, $cost:expr, |$s:ident, $x:ident| $value:expr, $derivative:expr;)*) => {$(
        #[derive(Clone, Copy)]
        pub struct $name;
        impl ActLanes for $name {
            const COST: usize = $cost;
            #[inline(always)]
            fn value<S: Simd>(&self, $s: S, $x: S::F) -> S::F {
                $value
            }
            #[inline(always)]
            fn derivative<S: Simd>(&self, $s: S, $x: S::F) -> S::F {
                $derivative
            }
        }
    )*};
}

act_lanes! {
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
    GeluTanh, parallel::EXP, |s, x| s.div(x, math::one_plus_exp_neg(s, gelu_twice_u(s, x))),
        gelu_derivative(s, x);
    GeluErf, 2 * parallel::EXP, |s, x| s.mul(x, math::normal_cdf(s, x)),
        math::normal_cdf_times_x_slope(s, x);
    Silu, parallel::EXP, |s, x| s.div(x, math::one_plus_exp_neg(s, x)),
        s.add(math::sigmoid(s, x), times_vanishing(s, x, math::sigmoid_slope(s, x)));
    Sigmoid, parallel::EXP, |s, x| math::sigmoid(s, x), math::sigmoid_slope(s, x);
    // 1 − tanh²x = 4σ′(2x), without the cancellation.
    Tanh, parallel::EXP, |s, x| math::tanh(s, x),
        s.mul(s.splat(4.0), math::sigmoid_slope(s, s.add(x, x)));
    Softplus, 2 * parallel::EXP, |s, x| {
        let e = math::exp_nonpositive(s, s.neg(s.abs(x)));
        s.add(s.max(s.splat(0.0), x), math::log1p_unit(s, e))
    }, math::sigmoid(s, x);
}

/// x·d, but 0 where d is 0: there an infinite x would give ∞ · 0 = NaN.
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
fn gelu_derivative<S: Simd>(s: S, x: S::F) -> S::F {
    let u = gelu_twice_u(s, x);
    let cubic = s.splat(3.0 * GELU_TWO_ALPHA * GELU_CUBIC);
    let du = s.fma(s.mul(x, x), cubic, s.splat(GELU_TWO_ALPHA));
    let tail = times_vanishing(s, s.mul(x, du), math::sigmoid_slope(s, u));
    s.add(math::sigmoid(s, u), tail)
}

/// 2·√(2/π)
const GELU_TWO_ALPHA: f32 = 1.595_769_2;
const GELU_CUBIC: f32 = 0.044_715;

#[derive(Clone, Copy)]
pub struct LeakyRelu(pub f32);

impl ActLanes for LeakyRelu {
    const COST: usize = 1;
    #[inline(always)]
    fn value<S: Simd>(&self, s: S, x: S::F) -> S::F {
        s.mul(x, self.derivative(s, x))
    }
    #[inline(always)]
    fn derivative<S: Simd>(&self, s: S, x: S::F) -> S::F {
        s.select(s.lt(s.splat(0.0), x), s.splat(1.0), s.splat(self.0))
    }
}

/// Runs `$run` with `$lanes` bound to the [`ActLanes`] of the activation that the value `$act` names.
macro_rules! with_lanes {
    ($act:expr, |$lanes:ident| $run:expr) => {
        $crate::cpu::act::with_lanes!(@ $act, $lanes, $run;
            Identity, Relu, Relu2, LeakyRelu(slope), GeluTanh, GeluErf, Silu, Sigmoid, Tanh, Softplus)
    };
    (@ $act:expr, $lanes:ident, $run:expr; $($kind:ident $(($param:ident))?),*) => {
        match $act {
            $($crate::act::Act::$kind $(($param))? => {
                let $lanes = $crate::cpu::act::$kind $(($param as f32))?;
                $run
            })*
        }
    };
}
pub(crate) use with_lanes;
