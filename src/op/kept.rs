//! The op that a graph keeps. Most ops are a few numbers: those lie in the node itself, because the backward of a tiny tensor
//! takes as long as a few allocations.

use super::any::AnyOp;
use super::Op;
use std::cell::UnsafeCell;
use std::mem::{needs_drop, MaybeUninit};

/// Room for an op of a few numbers, which may change behind a shared reference if they are atomic.
pub(super) struct Room(UnsafeCell<MaybeUninit<[u64; 4]>>);

// SAFETY: an op is `Send` and `Sync`, and nothing but the op is in its room.
unsafe impl Sync for Room {}

/// Any [`Op`], owned.
pub(super) enum Kept {
    /// An op in `room`, and the function that finds it there.
    Here {
        room: Room,
        /// # Safety
        /// The room is that of the op for which [`Kept::new`] chose the function.
        find: unsafe fn(&Room) -> &dyn AnyOp,
    },
    Boxed(Box<dyn AnyOp>),
}

impl Kept {
    #[inline]
    pub fn new<O: Op>(op: O) -> Self {
        let fits = size_of::<O>() <= size_of::<Room>() && align_of::<O>() <= align_of::<Room>();
        if !fits || needs_drop::<O>() {
            return Kept::Boxed(Box::new(op));
        }
        let room = Room(UnsafeCell::new(MaybeUninit::uninit()));
        // SAFETY: the op fits into the room by its size and its alignment.
        unsafe { room.0.get().cast::<O>().write(op) };
        Kept::Here {
            room,
            find: find::<O>,
        }
    }

    pub fn get(&self) -> &dyn AnyOp {
        match self {
            // SAFETY: `new` alone makes this variant, with the function for the op that it has written there.
            Kept::Here { room, find } => unsafe { find(room) },
            Kept::Boxed(op) => op.as_ref(),
        }
    }
}

/// # Safety
/// There is an O in the room.
unsafe fn find<O: Op>(room: &Room) -> &dyn AnyOp {
    // SAFETY: the caller has put an O there, which lives as long as the room.
    unsafe { &*room.0.get().cast::<O>() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{signature, Args, OpResult};
    use candle_core::{CpuStorage, Device, Result, Tensor, Var};

    /// x → x, of a graph, whose gradient is the sum of the numbers that the op holds.
    struct Holds<N>(N);

    impl<N: AsRef<[f64]> + Send + Sync + 'static> Op for Holds<N> {
        signature!("holds"(x));
        fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage> {
            Ok((args[0].0.clone(), args[0].1.shape().clone()))
        }
        #[cfg(feature = "metal")]
        fn metal(&self, _: Args<candle_core::MetalStorage>) -> OpResult<candle_core::MetalStorage> {
            candle_core::bail!("a test on the CPU alone")
        }
        fn bwd(&self, _: &[&Tensor], _: &Tensor, g: &Tensor) -> crate::op::Grads {
            Ok(vec![Some((g * self.0.as_ref().iter().sum::<f64>())?)])
        }
    }

    fn gradient<N: AsRef<[f64]> + Send + Sync + 'static>(numbers: N) -> Result<f32> {
        let x = Var::new(&[1f32], &Device::Cpu)?;
        let y = crate::op::apply_kernel("holds", Holds(numbers), &[x.as_tensor()])?;
        let grads = y.backward()?;
        grads
            .get(&x)
            .map_or(Ok(f32::NAN), |g| g.get(0)?.to_scalar())
    }

    #[test]
    fn ops_of_any_size_keep_what_they_hold() -> Result<()> {
        assert_eq!(gradient([])?, 0.0);
        assert_eq!(gradient([1.0, 2.0, 3.0, 4.0])?, 10.0);
        assert_eq!(gradient([1.0, 2.0, 3.0, 4.0, 5.0])?, 15.0);
        assert_eq!(gradient(vec![6.0, 7.0])?, 13.0);
        Ok(())
    }
}
