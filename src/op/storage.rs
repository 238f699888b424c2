//! The storages that kernels read and write: the CPU's and Metal's, by one trait.

use super::any::{AnyInplaceOp, AnyOp};
use super::candle::in_bounds;
use super::{by_reference, Arg, ArgMut, Args, OpResult};
use crate::check;
use candle_core::backend::BackendStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use std::cell::RefCell;

/// A storage of a device that has kernels.
pub(crate) trait KernelStorage: BackendStorage {
    /// How many elements it holds.
    fn len(&self) -> usize;
    /// The result of an op on this device.
    fn run(name: &'static str, op: &dyn AnyOp, args: Args<Self>) -> OpResult<Self>;
    /// The in-place form of an op on this device.
    fn run_inplace(
        name: &'static str,
        op: &dyn AnyInplaceOp,
        x: ArgMut<Self>,
        rest: Args<Self>,
    ) -> Result<()>;
    /// Calls `f` with the tensor's storage while it is locked for reading.
    fn read(name: &'static str, tensor: &Tensor, f: Reader<'_, Self>) -> Result<()>;
}

/// What is done with a storage, once.
type Reader<'a, S> = &'a mut dyn FnMut(Arg<'_, S>) -> Result<()>;

impl KernelStorage for CpuStorage {
    fn len(&self) -> usize {
        match self {
            CpuStorage::U8(v) => v.len(),
            CpuStorage::U32(v) => v.len(),
            CpuStorage::I16(v) => v.len(),
            CpuStorage::I32(v) => v.len(),
            CpuStorage::I64(v) => v.len(),
            CpuStorage::BF16(v) => v.len(),
            CpuStorage::F16(v) => v.len(),
            CpuStorage::F32(v) => v.len(),
            CpuStorage::F64(v) => v.len(),
            CpuStorage::F8E4M3(v) => v.len(),
            CpuStorage::F6E2M3(v)
            | CpuStorage::F6E3M2(v)
            | CpuStorage::F4(v)
            | CpuStorage::F8E8M0(v) => v.len(),
        }
    }
    fn run(name: &'static str, op: &dyn AnyOp, args: Args<Self>) -> OpResult<Self> {
        match check::cpu_has_kernels() {
            true => op.cpu(args),
            false => by_reference::forward(name, op, args),
        }
    }
    fn run_inplace(
        name: &'static str,
        op: &dyn AnyInplaceOp,
        x: ArgMut<Self>,
        rest: Args<Self>,
    ) -> Result<()> {
        match check::cpu_has_kernels() {
            true => op.cpu_inplace(x, rest),
            false => by_reference::inplace(name, op, x, rest),
        }
    }
    fn read(name: &'static str, tensor: &Tensor, f: Reader<'_, Self>) -> Result<()> {
        let f = RefCell::new(f);
        tensor.apply_op1_no_bwd(&ReadCpu { name, f }).map(drop)
    }
}

/// Candle calls `cpu_fwd` with the storage that it has locked; the result is an empty tensor.
struct ReadCpu<'a> {
    name: &'static str,
    f: RefCell<Reader<'a, CpuStorage>>,
}

impl CustomOp1 for ReadCpu<'_> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.f.borrow_mut()((storage, layout))?;
        Ok((CpuStorage::F32(Vec::new()), 0.into()))
    }
}

#[cfg(feature = "metal")]
impl KernelStorage for MetalStorage {
    fn len(&self) -> usize {
        self.buffer().length() / self.dtype().size_in_bytes().max(1)
    }
    fn run(_: &'static str, op: &dyn AnyOp, args: Args<Self>) -> OpResult<Self> {
        op.metal(args)
    }
    fn run_inplace(
        _: &'static str,
        op: &dyn AnyInplaceOp,
        x: ArgMut<Self>,
        rest: Args<Self>,
    ) -> Result<()> {
        op.metal_inplace(x, rest)
    }
    fn read(name: &'static str, tensor: &Tensor, f: Reader<'_, Self>) -> Result<()> {
        let f = RefCell::new(f);
        tensor.apply_op1_no_bwd(&ReadMetal { name, f }).map(drop)
    }
}

/// As [`ReadCpu`].
#[cfg(feature = "metal")]
struct ReadMetal<'a> {
    name: &'static str,
    f: RefCell<Reader<'a, MetalStorage>>,
}

#[cfg(feature = "metal")]
impl CustomOp1 for ReadMetal<'_> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Err(check::error(
            self.name,
            "got a tensor on the CPU, expected Metal",
        ))
    }
    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        self.f.borrow_mut()((storage, layout))?;
        Ok((storage.clone(), 0.into()))
    }
}

/// Calls `f` with the storages of any number of tensors, all of them on one device.
///
/// An op reads the tensors beyond its CustomOp's arguments through here. Each storage is locked by applying a
/// CustomOp to its tensor, because that takes Candle's recursive read lock: `Tensor::storage_and_layout` would
/// wait for ever where this thread already reads the same storage and another thread waits to write it.
pub(crate) fn with_storages<S: KernelStorage, R>(
    name: &'static str,
    tensors: &[&Tensor],
    f: impl FnOnce(Args<S>) -> Result<R>,
) -> Result<R> {
    let (mut f, mut result) = (Some(f), None);
    nested(name, tensors, &[], &mut |args| {
        result = f.take().map(|f| f(args)).transpose()?;
        Ok(())
    })?;
    result.ok_or_else(|| check::error(name, "the storages could not be read"))
}

fn nested<S: KernelStorage>(
    name: &'static str,
    tensors: &[&Tensor],
    args: Args<S>,
    f: &mut dyn FnMut(Args<S>) -> Result<()>,
) -> Result<()> {
    match tensors.split_first() {
        None => f(args),
        Some((tensor, rest)) => S::read(name, tensor, &mut |arg| {
            in_bounds(name, arg.0.len(), arg.1)?;
            nested(name, rest, &[args, &[arg]].concat(), f)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use std::thread;

    /// Reading a storage that this thread already reads does not wait for another thread's turn to write it.
    #[test]
    fn a_storage_is_read_twice_while_another_thread_waits_to_write() -> Result<()> {
        let x = Tensor::zeros(64, DType::F32, &Device::Cpu)?;
        thread::scope(|scope| {
            let (writer, ones) = (x.clone(), x.ones_like().expect("ones"));
            let writes = scope.spawn(move || {
                for _ in 0..2000 {
                    writer.slice_set(&ones, 0, 0).expect("a write");
                }
            });
            while !writes.is_finished() {
                with_storages("test", &[&x, &x, &x], |args: Args<CpuStorage>| {
                    assert_eq!(args.len(), 3);
                    Ok(())
                })
                .expect("three readers");
            }
        });
        Ok(())
    }
}
