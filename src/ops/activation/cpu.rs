//! Activation functors over lanes, and the maps that apply them.

use super::{Act, NAME};
use crate::cpu::elementwise::{self, Body, Input, Map};
use crate::cpu::simd::Simd;
use crate::cpu::{element::Element, gather, math, parallel, with_float};
use candle_core::backend::BackendStorage;
use candle_core::{op, CpuStorage, Layout, Result, Shape};

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
    Gelu, parallel::EXP, |s, x| s.div(x, math::one_plus_exp_neg(s, gelu_twice_u(s, x))),
        gelu_slope(s, x);
    GeluErf, 2 * parallel::EXP, |s, x| s.mul(x, math::normal_cdf(s, x)),
        s.add(math::normal_cdf(s, x), times_vanishing(s, x, math::normal_pdf(s, x)));
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
const GELU_TWO_ALPHA: f32 = 1.595_769_2;
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

/// Runs `$run` with `$body` bound to the op `$around` with the activation `$act` in its middle; the kind is
/// a type in the inner loop.
macro_rules! with_body {
    ($around:expr, $act:expr, |$body:ident| $run:expr) => {
        $crate::ops::activation::cpu::with_body!(@ $around, $act, $body, $run;
            Identity, Relu, Relu2, LeakyRelu(slope), Gelu, GeluErf, Silu, Sigmoid, Tanh, Softplus)
    };
    (@ $around:expr, $act:expr, $body:ident, $run:expr; $($kind:ident $(($param:ident))?),*) => {
        match $act {
            $($crate::ops::activation::Act::$kind $(($param))? => {
                let act = $crate::ops::activation::cpu::$kind $(($param))?;
                let $body = $crate::ops::activation::cpu::Fused($around, act);
                $run
            })*
        }
    };
}
pub(crate) use with_body;

/// What an op takes of the activation in its middle.
#[derive(Clone, Copy)]
pub enum Part {
    Value,
    Slope,
}

/// What stands before and after the activation: z of the inputs, the outputs of the inputs and K parts
/// of act(z). Methods must be `inline(always)`.
pub trait Around<const I: usize, const K: usize, const O: usize>: Copy + Send + Sync {
    const PARTS: [Part; K];
    fn z<S: Simd>(&self, s: S, x: [S::F; I]) -> S::F;
    fn out<S: Simd>(&self, s: S, x: [S::F; I], parts: [S::F; K]) -> [S::F; O];
}

/// An op around an activation, in one loop.
#[derive(Clone, Copy)]
pub struct Fused<P, A, const K: usize>(pub P, pub A);

impl<P, A, const I: usize, const K: usize, const O: usize> Map<I, O> for Fused<P, A, K>
where
    P: Around<I, K, O>,
    A: ActFn,
{
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, _: usize, x: [S::F; I]) -> [S::F; O] {
        let z = self.0.z(s, x);
        let mut parts = [z; K];
        for (out, part) in parts.iter_mut().zip(P::PARTS) {
            *out = match part {
                Part::Value => self.1.value(s, z),
                Part::Slope => self.1.slope(s, z),
            };
        }
        self.0.out(s, x, parts)
    }
}

/// y = act(x)
#[derive(Clone, Copy)]
struct Forward;

impl Around<1, 1, 1> for Forward {
    const PARTS: [Part; 1] = [Part::Value];
    #[inline(always)]
    fn z<S: Simd>(&self, _: S, [x]: [S::F; 1]) -> S::F {
        x
    }
    #[inline(always)]
    fn out<S: Simd>(&self, _: S, _: [S::F; 1], [value]: [S::F; 1]) -> [S::F; 1] {
        [value]
    }
}

/// dx = g · act′(x)
#[derive(Clone, Copy)]
struct Backward;

impl Around<2, 1, 1> for Backward {
    const PARTS: [Part; 1] = [Part::Slope];
    #[inline(always)]
    fn z<S: Simd>(&self, _: S, [x, _]: [S::F; 2]) -> S::F {
        x
    }
    #[inline(always)]
    fn out<S: Simd>(&self, s: S, [_, g]: [S::F; 2], [slope]: [S::F; 1]) -> [S::F; 1] {
        [s.mul(g, slope)]
    }
}

/// ReLU on 16-bit elements as they are: without widening they run at the speed of memory.
#[derive(Clone, Copy)]
struct ReluBits;

impl<T: Element> Body<T, 1, 1> for ReluBits {
    fn cost(&self) -> usize {
        1
    }
    #[inline(always)]
    unsafe fn stretch<S: Simd>(
        &self,
        _: S,
        _: usize,
        [x]: [*const T; 1],
        [y]: [*mut T; 1],
        n: usize,
    ) {
        // Two loops that the compiler vectorises by itself; one would have to reckon with any overlap.
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

pub fn forward(act: Act, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
    let n = l.shape().elem_count();
    // Stock's loop runs at the speed of memory.
    if let (Act::Relu, CpuStorage::F32(_)) = (act, x) {
        return Ok((x.unary_impl::<op::Relu>(l)?, l.shape().clone()));
    }
    let out = with_float!(NAME, x, T => {
        let x = [Input::<T>::dense((x, l))?];
        Ok(T::wrap(match act {
            Act::Relu if size_of::<T>() == 2 => elementwise::map(n, x, ReluBits),
            act => with_body!(Forward, act, |body| elementwise::map(n, x, body)),
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(act: Act, x: &mut CpuStorage, l: &Layout) -> Result<()> {
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            if act == Act::Relu && size_of::<T>() == 2 {
                return elementwise::map_in_place(x, [], ReluBits);
            }
            with_body!(Forward, act, |body| elementwise::map_in_place(x, [], body))
        });
        Ok(())
    })
}

/// x[i] = act(x[i]) for floats side by side, by this thread.
///
/// # Safety
/// `x` is valid for reads and writes of `n` elements.
pub unsafe fn forward_stretch(act: Act, x: *mut f32, n: usize) {
    with_body!(Forward, act, |body| elementwise::map_stretch(x, n, body))
}

pub fn backward(
    act: Act,
    (x, xl): (&CpuStorage, &Layout),
    g: (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::dense(g)?];
        Ok(T::wrap(with_body!(Backward, act, |body| elementwise::map(n, inputs, body))))
    })?;
    Ok((out, xl.shape().clone()))
}
