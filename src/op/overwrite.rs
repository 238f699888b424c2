//! Several tensors that one kernel overwrites: a parameter and an optimiser's moments, say. Candle's in-place ops overwrite
//! one tensor; nested ones hold the storages of several.

use super::candle::admit;
use super::{Arg, ArgMut, KernelStorage};
use crate::check;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
#[cfg(feature = "metal")]
use candle_core::{MetalStorage, Storage};
use std::cell::RefCell;

/// What is done with the storages, once: the targets in order, then the tensor that is read.
type Writer<'a, S> = &'a mut dyn FnMut(&mut [ArgMut<S>], Arg<S>) -> Result<()>;

/// Calls `f` with the storages of `targets`, to be overwritten, and of `source`, to be read.
///
/// All tensors have elements and are on one device, and no two of them share memory: this is checked, since locking one storage
/// twice would wait for ever. The storages are locked from the last target to the first, and the source with the first. So
/// that two threads never wait for each other, targets behind the first must be tensors which no other code locks.
pub(crate) fn overwrite<S: Lockable>(
    name: &'static str,
    targets: &[&Tensor],
    source: &Tensor,
    f: Writer<'_, S>,
) -> Result<()> {
    let tensors = || targets.iter().chain([&source]);
    for (i, tensor) in tensors().enumerate() {
        check::ensure(
            tensors().take(i).all(|other| !share_memory(other, tensor)),
            name,
            "got two tensors that share memory, expected tensors of their own: one of them is overwritten",
        )?;
    }
    let Some((first, rest)) = targets.split_first() else {
        return Ok(());
    };
    nested(name, first, rest, source, &mut [], f)
}

/// Whether two tensors lie in the same storage. Neither may be locked by this thread.
pub(crate) fn share_memory(a: &Tensor, b: &Tensor) -> bool {
    storage_address(a) == storage_address(b)
}

/// Tells the memory of tensors apart: it lies at one address for as long as a tensor of it lives. This thread may not hold the
/// storage locked. On Metal it is the buffer, which Candle's copies of a storage share.
pub(crate) fn storage_address(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        #[cfg(feature = "metal")]
        Storage::Metal(storage) => std::ptr::from_ref(storage.buffer()) as usize,
        storage => std::ptr::from_ref(storage) as usize,
    }
}

fn nested<S: Lockable>(
    name: &'static str,
    first: &Tensor,
    rest: &[&Tensor],
    source: &Tensor,
    held: &mut [ArgMut<S>],
    f: Writer<'_, S>,
) -> Result<()> {
    match rest.split_last() {
        None => S::lock_both(name, first, source, &mut |target, source| {
            admit(name, || &["the first target"], 0, &(&*target.0, target.1))?;
            admit(name, || &["the source"], 0, &source)?;
            f(&mut before(target, held), source)
        }),
        Some((last, rest)) => S::lock(name, last, &mut |target| {
            admit(name, || &["a target"], 0, &(&*target.0, target.1))?;
            nested(name, first, rest, source, &mut before(target, held), f)
        }),
    }
}

/// The target before those that are held.
fn before<'a, S>(target: ArgMut<'a, S>, held: &'a mut [ArgMut<'_, S>]) -> Vec<ArgMut<'a, S>> {
    let held = held.iter_mut().map(|(s, l)| (&mut **s, *l));
    [target].into_iter().chain(held).collect()
}

/// What is done with a target and the source.
type Both<'a, S> = &'a mut dyn FnMut(ArgMut<S>, Arg<S>) -> Result<()>;

/// A storage that in-place ops lock.
pub(crate) trait Lockable: KernelStorage {
    fn lock(
        name: &'static str,
        target: &Tensor,
        f: &mut dyn FnMut(ArgMut<Self>) -> Result<()>,
    ) -> Result<()>;
    fn lock_both(
        name: &'static str,
        target: &Tensor,
        source: &Tensor,
        f: Both<'_, Self>,
    ) -> Result<()>;
}

/// An in-place op that hands the storages which Candle has locked for it to a function.
struct Locked<F> {
    name: &'static str,
    f: RefCell<F>,
}

/// The traits for the storages of one device. The last argument is what else each impl needs.
macro_rules! lockable {
    ($storage:ty, $fwd:ident, $lock:ident, $lock_both:ident, { $($rest1:tt)* }, { $($rest2:tt)* }) => {
        type $lock<'a> = Locked<&'a mut dyn FnMut(ArgMut<$storage>) -> Result<()>>;
        type $lock_both<'a> = Locked<Both<'a, $storage>>;

        impl InplaceOp1 for $lock<'_> {
            fn name(&self) -> &'static str {
                self.name
            }
            fn $fwd(&self, s: &mut $storage, l: &Layout) -> Result<()> {
                (self.f.borrow_mut())((s, l))
            }
            $($rest1)*
        }

        impl InplaceOp2 for $lock_both<'_> {
            fn name(&self) -> &'static str {
                self.name
            }
            fn $fwd(&self, s: &mut $storage, l: &Layout, s2: &$storage, l2: &Layout) -> Result<()> {
                (self.f.borrow_mut())((s, l), (s2, l2))
            }
            $($rest2)*
        }

        impl Lockable for $storage {
            fn lock(
                name: &'static str,
                target: &Tensor,
                f: &mut dyn FnMut(ArgMut<Self>) -> Result<()>,
            ) -> Result<()> {
                let f = RefCell::new(f);
                target.inplace_op1(&$lock { name, f })
            }
            fn lock_both(
                name: &'static str,
                target: &Tensor,
                source: &Tensor,
                f: Both<'_, Self>,
            ) -> Result<()> {
                let f = RefCell::new(f);
                target.inplace_op2(source, &$lock_both { name, f })
            }
        }
    };
}

lockable!(CpuStorage, cpu_fwd, LockCpu, LockBothCpu, {}, {});

#[cfg(feature = "metal")]
fn not_on_metal(name: &str) -> Result<()> {
    Err(check::error(
        name,
        "got a tensor on the CPU, expected Metal",
    ))
}

#[cfg(feature = "metal")]
lockable!(
    MetalStorage,
    metal_fwd,
    LockMetal,
    LockBothMetal,
    {
        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            not_on_metal(self.name)
        }
    },
    {
        fn cpu_fwd(
            &self,
            _: &mut CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<()> {
            not_on_metal(self.name)
        }
    }
);
