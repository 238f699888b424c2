//! Activation functors over lanes, and the maps that apply them.

use super::{Act, NAME};
use crate::cpu::elementwise::{self, Body, Input, Map};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::staged::{Around, Function, Part};
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

/// Runs `$body` with `$a` bound to the functor of `$act`, so that the kind is a type in inner loops.
macro_rules! with_act {
    ($act:expr, |$a:ident| $body:expr) => {
        with_act!(@ $act, $a, $body;
            Act::Identity => Identity, Act::Relu => Relu, Act::Relu2 => Relu2,
            Act::LeakyRelu(slope) => LeakyRelu(slope), Act::Gelu => Gelu, Act::GeluErf => GeluErf,
            Act::Silu => Silu, Act::Sigmoid => Sigmoid, Act::Tanh => Tanh, Act::Softplus => Softplus)
    };
    (@ $act:expr, $a:ident, $body:expr; $($kind:pat => $functor:expr),*) => {
        match $act {
            $($kind => {
                let $a = $functor;
                $body
            })*
        }
    };
}

impl Function for Act {
    fn cost(&self) -> usize {
        fn cost<A: ActFn>(_: A) -> usize {
            A::COST
        }
        with_act!(*self, |a| cost(a))
    }
    fn value(&self, block: &mut [f32]) {
        with_act!(*self, |a| dispatch(Values(a, block)))
    }
    fn slope(&self, block: &mut [f32]) {
        with_act!(*self, |a| dispatch(Slopes(a, block)))
    }
}

struct Values<'a, A>(A, &'a mut [f32]);
struct Slopes<'a, A>(A, &'a mut [f32]);

macro_rules! block_kernel {
    ($name:ident, $method:ident) => {
        impl<A: ActFn> Kernel for $name<'_, A> {
            type Output = ();
            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                for z in self.1.chunks_exact_mut(S::LANES) {
                    // SAFETY: the chunk has LANES elements.
                    unsafe {
                        let y = self.0.$method(s, s.load_f32(z.as_ptr()));
                        s.store_f32(z.as_mut_ptr(), y);
                    }
                }
            }
        }
    };
}
block_kernel!(Values, value);
block_kernel!(Slopes, slope);

/// Runs `$run` with `$body` bound to the op `$around` with the activation in its middle. Activations
/// that are next to free are compiled into the op's own loop.
macro_rules! with_body {
    ($around:expr, $act:expr, |$body:ident| $run:expr) => {{
        use $crate::ops::activation::{cpu as fns, Act};
        match &$act {
            Act::Identity => {
                let $body = fns::Direct($around, fns::Identity);
                $run
            }
            Act::Relu => {
                let $body = fns::Direct($around, fns::Relu);
                $run
            }
            act => {
                let (around, function) = ($around, *act);
                let function: &dyn $crate::cpu::staged::Function = &function;
                let $body = $crate::cpu::staged::Staged { around, function };
                $run
            }
        }
    }};
}
pub(crate) use with_body;

/// An op around an activation, in one loop.
#[derive(Clone, Copy)]
pub struct Direct<P, A, const K: usize>(pub P, pub A);

impl<P, A, const I: usize, const K: usize, const O: usize> Map<I, O> for Direct<P, A, K>
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
            act => with_act!(act, |a| elementwise::map(n, x, Direct(Forward, a))),
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
            with_act!(act, |a| elementwise::map_in_place(
                x,
                [],
                Direct(Forward, a)
            ))
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
        Ok(T::wrap(with_act!(act, |a| elementwise::map(n, inputs, Direct(Backward, a)))))
    })?;
    Ok((out, xl.shape().clone()))
}
