//! Elementwise ops with an activation inside, such as `f(x + y)` or `f(gate) · up`.

use super::alone::{Derivatives, Values};
use super::{cost, ActLanes, GeluTanh, Identity, LeakyRelu, Relu, Relu2, Silu};
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::elementwise::{aligned_after, map_run, ElementwiseOp, Map};
use crate::cpu::simd::{Simd, MAX_LANES};
use candle_core::DType;
use std::mem::MaybeUninit;

/// f(z) or f′(z) of the activation f.
#[derive(Clone, Copy)]
pub enum ActTerm {
    Value,
    Derivative,
}

/// An elementwise op of I inputs and O outputs with an activation f inside: `y = output(x, terms)`, where the K terms are
/// f(z) or f′(z) at `z = act_input(x)`.
///
/// What an implementation must satisfy: every method is `inline(always)`, and a lane of a result depends on the same lane of
/// the arguments alone.
pub trait AroundAct<const I: usize, const K: usize, const O: usize>: Copy + Send + Sync {
    /// Which of f(z) and f′(z) `output` is given, in its order. K is at least 1.
    const TERMS: [ActTerm; K];
    /// Whether the only term is f(z).
    const FORWARD: bool = matches!(Self::TERMS.as_slice(), [ActTerm::Value]);
    /// Whether `act_input` is the first input as it is: f32 inputs then need no copy of z.
    const ACT_INPUT_IS_FIRST: bool = false;
    /// z
    fn act_input<S: Simd>(&self, s: S, x: [S::F; I]) -> S::F;
    fn output<S: Simd>(&self, s: S, x: [S::F; I], terms: [S::F; K]) -> [S::F; O];
}

/// Defines a type that implements [`AroundAct`]: its I, K and O and its terms, then z and the output as if by closures. `first`
/// says that z is the first input as it is.
macro_rules! around_act {
    ($(#[$doc:meta])* $name:ident<$i:literal, $k:literal, $o:literal> of [$($term:ident),+] $($first:ident)?;
        |$zs:pat_param, $zx:pat_param| $z:expr;
        |$s:pat_param, $x:pat_param, $terms:pat_param| $output:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl $crate::cpu::act::AroundAct<$i, $k, $o> for $name {
            const TERMS: [$crate::cpu::act::ActTerm; $k] = [$($crate::cpu::act::ActTerm::$term),+];
            $(const ACT_INPUT_IS_FIRST: bool = $crate::cpu::act::around_act!(@ $first);)?
            #[inline(always)]
            fn act_input<S: Simd>(&self, $zs: S, $zx: [S::F; $i]) -> S::F {
                $z
            }
            #[inline(always)]
            fn output<S: Simd>(&self, $s: S, $x: [S::F; $i], $terms: [S::F; $k]) -> [S::F; $o] {
                $output
            }
        }
    };
    (@ first) => {
        true
    };
}
pub(crate) use around_act;

/// The op `P` around an activation.
#[derive(Clone, Copy)]
pub struct WithAct<P, const K: usize>(pub P, pub Act);

impl<T, P, const I: usize, const K: usize, const O: usize> ElementwiseOp<T, I, O> for WithAct<P, K>
where
    T: Element,
    P: AroundAct<I, K, O>,
{
    fn cost(&self) -> usize {
        cost(self.1)
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S, _: usize, x: [*const T; I], y: [*mut T; O], n: usize) {
        let WithAct(op, act) = *self;
        // SAFETY: x and y have n elements each, as each of these functions asks.
        unsafe {
            match act {
                Act::Identity => map_run(s, Fused(op, Identity), x, y, n),
                Act::Relu => map_run(s, Fused(op, Relu), x, y, n),
                Act::Relu2 => map_run(s, Fused(op, Relu2), x, y, n),
                Act::LeakyRelu(slope) => map_run(s, Fused(op, LeakyRelu(slope as f32)), x, y, n),
                // What models use most: blocks take up to 1.6 times as long.
                Act::Silu if P::FORWARD && T::DTYPE == DType::F32 => {
                    map_run(s, Fused(op, Silu), x, y, n)
                }
                Act::GeluTanh if P::FORWARD && T::DTYPE == DType::F32 => {
                    map_run(s, Fused(op, GeluTanh), x, y, n)
                }
                _ => by_blocks(s, op, act, x, y, n),
            }
        }
    }
}

/// The op `P` around the activation `A`, for one vector.
#[derive(Clone, Copy)]
struct Fused<P, A, const K: usize>(P, A);

impl<P, A, const I: usize, const K: usize, const O: usize> Map<I, O> for Fused<P, A, K>
where
    P: AroundAct<I, K, O>,
    A: ActLanes,
{
    const COST: usize = A::COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, x: [S::F; I]) -> [S::F; O] {
        let z = self.0.act_input(s, x);
        let mut terms = [z; K];
        for (out, term) in terms.iter_mut().zip(P::TERMS) {
            *out = match term {
                ActTerm::Value => self.1.value(s, z),
                ActTerm::Derivative => self.1.derivative(s, z),
            };
        }
        self.0.output(s, x, terms)
    }
}

/// Elements of a block: with three inputs, two terms and two outputs in f32 they take 28 kB, which an L1 cache holds.
const BLOCK: usize = 1024;
const _: () = assert!(BLOCK.is_multiple_of(MAX_LANES));

/// Three loops over each block: z, the terms, the outputs.
///
/// # Safety
/// As for [`ElementwiseOp::run`].
#[inline(always)]
unsafe fn by_blocks<S, T, P, const I: usize, const K: usize, const O: usize>(
    s: S,
    op: P,
    act: Act,
    x: [*const T; I],
    y: [*mut T; O],
    n: usize,
) where
    S: Simd,
    T: Element,
    P: AroundAct<I, K, O>,
{
    // The last term is written over z, which nothing needs any more.
    let mut terms = [const { MaybeUninit::<[f32; BLOCK]>::uninit() }; K];
    let mut start = 0;
    let mut end = aligned_after::<S, T>(y[0], n);
    while start < n {
        if end == start {
            end = n.min(start + BLOCK);
        }
        let len = end - start;
        // SAFETY: end ≤ n, and x and y have n elements. Vectors of z begin before len ≤ BLOCK, which is a multiple of LANES,
        // so the last one ends within BLOCK. The terms read z as far as it was written, and the outputs read `len` terms.
        unsafe {
            let mut z = terms[K - 1].as_mut_ptr().cast::<f32>().cast_const();
            let mut count = len.next_multiple_of(S::LANES);
            if P::ACT_INPUT_IS_FIRST && size_of::<T>() == size_of::<f32>() {
                (z, count) = (x[0].add(start).cast(), len);
            } else {
                for i in (0..len).step_by(S::LANES) {
                    let z_lanes = op.act_input(s, load(s, x, start + i, end));
                    s.store_f32(z.cast_mut().add(i), z_lanes);
                }
            }
            for (to, term) in terms.iter_mut().zip(P::TERMS) {
                let to = to.as_mut_ptr().cast();
                match term {
                    ActTerm::Value => s.call(Values::new(act, z, to, count)),
                    ActTerm::Derivative => s.call(Derivatives::new(act, z, to, count)),
                }
            }
            for i in (0..len).step_by(S::LANES) {
                let mut lanes = [s.splat(0.0); K];
                for (lanes, term) in lanes.iter_mut().zip(&terms) {
                    *lanes = f32::load_upto(s, term.as_ptr().cast::<f32>().add(i), len - i);
                }
                let out = op.output(s, load(s, x, start + i, end), lanes);
                for (out, y) in out.iter().zip(&y) {
                    T::store_upto(s, y.add(start + i), len - i, *out);
                }
            }
        }
        start = end;
    }
}

/// The vectors of the inputs that begin at element `i` of `n`.
///
/// # Safety
/// Each x is valid for reads of `n` > `i` elements.
#[inline(always)]
unsafe fn load<S: Simd, T: Element, const I: usize>(
    s: S,
    x: [*const T; I],
    i: usize,
    n: usize,
) -> [S::F; I] {
    let mut args = [s.splat(0.0); I];
    for (arg, x) in args.iter_mut().zip(&x) {
        // SAFETY: n − i elements are left from i on.
        *arg = unsafe { T::load_upto(s, x.add(i), n - i) };
    }
    args
}
