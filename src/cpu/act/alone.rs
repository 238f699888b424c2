//! `y = f(x)` and `y = f′(x)` for an activation f, as loops of their own.

use super::{cost, with_lanes, ActLanes, GeluErfFor16Bits};
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::elementwise::{map_run, ElementwiseOp, Map};
use crate::cpu::simd::{dispatch, Kernel, Simd};

/// `y = f(x)`
#[derive(Clone, Copy)]
pub struct ActAlone(pub Act);

impl<T: Element> ElementwiseOp<T, 1, 1> for ActAlone {
    fn cost(&self) -> usize {
        cost(self.0)
    }
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, s: S, _: usize, [x]: [*const T; 1], [y]: [*mut T; 1], n: usize) {
        // SAFETY: the caller's promise is the one that `Values::new` asks for.
        s.call(unsafe { Values::new(self.0, x, y, n) })
    }
}

/// `x[i] = f(x[i])`, on this thread, for values that are then rounded to `R`.
pub fn apply_in_place<R: Element>(act: Act, x: &mut [f32]) {
    let (p, n) = (x.as_mut_ptr(), x.len());
    // SAFETY: x has n elements, and is both the input and the output.
    dispatch(unsafe { Values::new(act, p, p, n) }.rounded_to::<R>())
}

macro_rules! act_loop {
    ($(#[$doc:meta])* $name:ident, $map:ident, $method:ident, $is_shorter_for_16_bits:literal) => {
        $(#[$doc])*
        pub struct $name<T> {
            act: Act,
            x: *const T,
            y: *mut T,
            n: usize,
            for_16_bits: bool,
        }

        impl<T: Element> $name<T> {
            /// # Safety
            /// `x` is valid for reads and `y` for writes of `n` elements; they are the same or don't overlap.
            #[inline(always)]
            pub unsafe fn new(act: Act, x: *const T, y: *mut T, n: usize) -> Self {
                let for_16_bits = size_of::<T>() == 2;
                Self { act, x, y, n, for_16_bits }
            }
        }

        impl<T: Element> Kernel for $name<T> {
            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                if $is_shorter_for_16_bits && self.for_16_bits && self.act == Act::GeluErf {
                    // SAFETY: `new` asked for pointers to n elements.
                    return unsafe { map_run(s, $map(GeluErfFor16Bits), [self.x], [self.y], self.n) };
                }
                // SAFETY: `new` asked for pointers to n elements.
                with_lanes!(self.act, |lanes| unsafe {
                    map_run(s, $map(lanes), [self.x], [self.y], self.n)
                })
            }
        }

        #[derive(Clone, Copy)]
        struct $map<A>(A);

        impl<A: ActLanes> Map<1, 1> for $map<A> {
            const COST: usize = A::COST;
            #[inline(always)]
            fn map<S: Simd>(&self, s: S, [x]: [S::F; 1]) -> [S::F; 1] {
                [self.0.$method(s, x)]
            }
        }
    };
}

act_loop! {
    /// `y[i] = f(x[i])` for `n` adjacent elements.
    Values, Value, value, true
}
act_loop! {
    /// `y[i] = f′(x[i])` for `n` adjacent elements.
    Derivatives, Derivative, derivative, false
}

impl<T> Values<T> {
    /// Where the results are then rounded to `R`, which for 16 bits allows shorter formulas.
    #[inline(always)]
    pub fn rounded_to<R>(self) -> Self {
        let for_16_bits = size_of::<R>() == 2;
        Values {
            for_16_bits,
            ..self
        }
    }
}
