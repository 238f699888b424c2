//! Elementwise ops that make their mask as they go.

use super::{Dropout, DropoutAdd, NAME};
use crate::cpu::elementwise::{self, ElementwiseOp, Input};
use crate::cpu::simd::{Kernel, Simd};
use crate::cpu::{element::Element, gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut, OpResult};
use crate::philox::{Mask, BLOCK};
use candle_core::Result;

/// Cost of ten Philox rounds, in units of [`crate::cpu::parallel`].
const COST: usize = 16;

/// What is masked, and what is done with it.
trait Around<const I: usize>: Copy + Send + Sync {
    /// The element that the mask keeps or drops. Must be `inline(always)`, as `out`.
    fn masked<S: Simd>(s: S, x: [S::F; I]) -> S::F;
    fn out<S: Simd>(s: S, x: [S::F; I], masked: S::F) -> S::F;
}

/// x
#[derive(Clone, Copy)]
struct Plain;

impl Around<1> for Plain {
    #[inline(always)]
    fn masked<S: Simd>(_: S, [x]: [S::F; 1]) -> S::F {
        x
    }
    #[inline(always)]
    fn out<S: Simd>(_: S, _: [S::F; 1], masked: S::F) -> S::F {
        masked
    }
}

/// max(x, 0)
#[derive(Clone, Copy)]
struct Relu;

impl Around<1> for Relu {
    #[inline(always)]
    fn masked<S: Simd>(s: S, [x]: [S::F; 1]) -> S::F {
        s.max(x, s.splat(0.0))
    }
    #[inline(always)]
    fn out<S: Simd>(_: S, _: [S::F; 1], masked: S::F) -> S::F {
        masked
    }
}

/// x, then plus the residual
#[derive(Clone, Copy)]
struct Add;

impl Around<2> for Add {
    #[inline(always)]
    fn masked<S: Simd>(_: S, [x, _]: [S::F; 2]) -> S::F {
        x
    }
    #[inline(always)]
    fn out<S: Simd>(s: S, [_, residual]: [S::F; 2], masked: S::F) -> S::F {
        s.add(masked, residual)
    }
}

/// The factors of a block of elements, compiled once per instruction set.
struct Factors<'a> {
    mask: Mask,
    start: usize,
    out: &'a mut [f32; BLOCK],
}

impl Kernel for Factors<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.mask.factors(self.start, self.out)
    }
}

#[derive(Clone, Copy)]
struct Masked<A>(A, Mask);

impl<T: Element, A: Around<I>, const I: usize> ElementwiseOp<T, I, 1> for Masked<A> {
    fn cost(&self) -> usize {
        COST
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(
        &self,
        s: S,
        index: usize,
        x: [*const T; I],
        [y]: [*mut T; 1],
        n: usize,
    ) {
        let mut factors = [0f32; BLOCK];
        let mut start = 0;
        while start < n {
            let len = BLOCK.min(n - start);
            if (index + start).is_multiple_of(4) {
                s.call(Factors {
                    mask: self.1,
                    start: index + start,
                    out: &mut factors,
                });
            } else {
                for (k, factor) in factors.iter_mut().enumerate().take(len) {
                    *factor = self.1.factor(index + start + k);
                }
            }
            for i in (0..len).step_by(S::LANES) {
                let mut args = [s.splat(0.0); I];
                // SAFETY: len − i elements of each x and y are left from start + i on. `BLOCK` is a multiple of a vector's
                // lanes, so that a vector of factors begins at i.
                unsafe {
                    for (arg, x) in args.iter_mut().zip(&x) {
                        *arg = T::load_upto(s, x.add(start + i), len - i);
                    }
                    let factor = s.load_f32(factors.as_ptr().add(i));
                    let kept = s.mul(A::masked(s, args), factor);
                    // A dropped NaN or infinity is 0.
                    let dropped = s.eq(factor, s.splat(0.0));
                    let out = A::out(s, args, s.select(dropped, s.splat(0.0), kept));
                    T::store_upto(s, y.add(start + i), len - i, out);
                }
            }
            start += len;
        }
    }
}

pub fn forward(op: Dropout, (x, l): Arg) -> OpResult {
    let (n, mask) = (l.shape().elem_count(), Mask::new(op.p, op.seed));
    let out = with_float!(NAME, x, T => {
        let x = Input::<T>::dense((x, l))?;
        Ok(T::wrap(if op.relu {
            elementwise::map(n, [x], Masked(Relu, mask))
        } else {
            elementwise::map(n, [x], Masked(Plain, mask))
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn inplace(op: Dropout, (x, l): ArgMut) -> Result<()> {
    let mask = Mask::new(op.p, op.seed);
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            if op.relu {
                elementwise::map_in_place(x, [], Masked(Relu, mask))
            } else {
                elementwise::map_in_place(x, [], Masked(Plain, mask))
            }
        });
        Ok(())
    })
}

pub fn forward_add(op: DropoutAdd, (x, xl): Arg, residual: Arg) -> OpResult {
    let (n, mask) = (xl.shape().elem_count(), Mask::new(op.p, op.seed));
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::dense(residual)?];
        Ok(T::wrap(elementwise::map(n, inputs, Masked(Add, mask))))
    })?;
    Ok((out, xl.shape().clone()))
}
