//! Activations on the CPU: as loops of their own, and inside other elementwise ops.
//!
//! A cheap activation (ReLU and the like) is compiled into the loop of every op, element type and instruction set. A
//! costly one (everything with an exponential) would make that product too large: 10 activations × 9 ops × 3 element types ×
//! 3 instruction sets were a third of this crate's code. It is compiled once per instruction set instead, as a loop over f32
//! ([`alone`]); an op runs it over blocks that stay in the L1 cache ([`around`]).

mod alone;
mod around;
mod lanes;

pub use alone::{apply_in_place, ActAlone, Values};
pub(crate) use around::around_act;
pub use around::{ActTerm, AroundAct, WithAct};
pub use lanes::*;

use crate::act::Act;

/// What an element costs beside a plain copy (see [`parallel`](super::parallel)).
fn cost(act: Act) -> usize {
    fn of<A: ActLanes>(_: A) -> usize {
        A::COST
    }
    with_lanes!(act, |lanes| of(lanes))
}
