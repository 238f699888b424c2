//! `y = f(x)` and `y = f′(x)` for an activation f, as loops of their own.

use super::{cost, with_lanes, ActLanes};
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::elementwise::{self, map_run, ElementwiseOp, Map};
use crate::cpu::simd::{Kernel, Simd};

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

/// `x[i] = f(x[i])`, on this thread.
pub fn apply_in_place(act: Act, x: &mut [f32]) {
    elementwise::apply_in_place(x, &ActAlone(act))
}

macro_rules! act_loop {
    ($(#[$doc:meta])* $name:ident, $map:ident, $method:ident) => {
        $(#[$doc])*
        pub struct $name<T> {
            act: Act,
            x: *const T,
            y: *mut T,
            n: usize,
        }

        impl<T: Element> $name<T> {
            /// # Safety
            /// `x` is valid for reads and `y` for writes of `n` elements; they are the same or don't overlap.
            #[inline(always)]
            pub unsafe fn new(act: Act, x: *const T, y: *mut T, n: usize) -> Self {
                Self { act, x, y, n }
            }
        }

        impl<T: Element> Kernel for $name<T> {
            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
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
    Values, Value, value
}
act_loop! {
    /// `y[i] = f′(x[i])` for `n` adjacent elements.
    Derivatives, Derivative, derivative
}
