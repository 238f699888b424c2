//! The storages that kernels read and write: the CPU's and Metal's, by one trait.

use super::any::{AnyInplaceOp, AnyOp};
use super::candle::admit;
use super::{by_reference, Arg, ArgMut, Args, OpResult};
use crate::check;
use candle_core::backend::{BackendDevice, BackendStorage};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor,
};
use std::cell::{Cell, RefCell};

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
    /// Calls `f` with the storages of up to three tensors while they are locked for reading.
    fn read(name: &'static str, tensors: &[&Tensor], f: Reader<'_, Self>) -> Result<()>;
}

/// The elements of an argument in order.
pub(crate) fn contiguous_copy<S: KernelStorage>(
    name: &'static str,
    (storage, layout): Arg<'_, S>,
) -> Result<S>
where
    S::Device: BackendDevice<Storage = S>,
{
    check::fits_in_memory(name, "a copy", layout.dims())?;
    let mut copy = storage
        .device()
        .zeros_impl(layout.shape(), storage.dtype())?;
    storage.copy_strided_src(&mut copy, 0, layout)?;
    Ok(copy)
}

/// What is done with storages, once.
type Reader<'a, S> = &'a mut dyn FnMut(Args<S>) -> Result<()>;

/// Applies a CustomOp that calls a [`Reader`] to as many tensors as there are.
macro_rules! apply_reader {
    ($tensors:expr, $op:expr) => {{
        let op = $op;
        let made = match *$tensors {
            [x] => x.apply_op1_no_bwd(&op),
            [x, y] => x.apply_op2_no_bwd(y, &op),
            [x, y, z] => x.apply_op3_no_bwd(y, z, &op),
            _ => Err(check::error(
                op.name,
                "up to three storages are read at a time",
            )),
        };
        match op.done.get() {
            true => Ok(()),
            false => made.map(drop),
        }
    }};
}

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
    fn read(name: &'static str, tensors: &[&Tensor], f: Reader<'_, Self>) -> Result<()> {
        apply_reader!(tensors, ReadCpu::new(name, f))
    }
}

/// A CustomOp that shows the storages which Candle has locked for it to a [`Reader`]. It has no result, so it ends in an
/// error, which costs less than an empty tensor: `done` tells that error from one of the reader's.
struct Read<'a, S> {
    name: &'static str,
    f: RefCell<Reader<'a, S>>,
    done: Cell<bool>,
}

type ReadCpu<'a> = Read<'a, CpuStorage>;
#[cfg(feature = "metal")]
type ReadMetal<'a> = Read<'a, MetalStorage>;

impl<'a, S> Read<'a, S> {
    fn new(name: &'static str, f: Reader<'a, S>) -> Self {
        Read {
            name,
            f: RefCell::new(f),
            done: Cell::new(false),
        }
    }

    fn show<R>(&self, args: Args<S>) -> Result<R> {
        self.f.borrow_mut()(args)?;
        self.done.set(true);
        Err(Error::Msg(String::new()))
    }
}

/// One of Candle's traits for [`Read`] of each device's storages.
macro_rules! read {
    ($kind:ident: $($s:ident $l:ident),+) => {
        impl $kind for ReadCpu<'_> {
            read!(@name);
            fn cpu_fwd(&self, $($s: &CpuStorage, $l: &Layout),+) -> Result<(CpuStorage, Shape)> {
                self.show(&[$(($s, $l)),+])
            }
        }
        #[cfg(feature = "metal")]
        impl $kind for ReadMetal<'_> {
            read!(@name);
            fn cpu_fwd(&self, $($s: &CpuStorage, $l: &Layout),+) -> Result<(CpuStorage, Shape)> {
                $(let _ = ($s, $l);)+
                Err(check::error(self.name, "got a tensor on the CPU, expected Metal"))
            }
            fn metal_fwd(&self, $($s: &MetalStorage, $l: &Layout),+) -> Result<(MetalStorage, Shape)> {
                self.show(&[$(($s, $l)),+])
            }
        }
    };
    (@name) => {
        fn name(&self) -> &'static str {
            self.name
        }
    };
}
read!(CustomOp1: a la);
read!(CustomOp2: a la, b lb);
read!(CustomOp3: a la, b lb, c lc);

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
    fn read(name: &'static str, tensors: &[&Tensor], f: Reader<'_, Self>) -> Result<()> {
        apply_reader!(tensors, ReadMetal::new(name, f))
    }
}

/// The most tensors whose storages are read at once.
pub(super) const MOST_ARGS: usize = 9;

/// Calls `f` with the storages of up to nine tensors, all of them on one device.
///
/// An op reads the tensors beyond its CustomOp's arguments through here. The storages are locked, three at a time, by
/// applying a CustomOp to their tensors, because that takes Candle's recursive read lock: `Tensor::storage_and_layout` would
/// wait for ever where this thread already reads the same storage and another thread waits to write it.
pub(crate) fn with_storages<S: KernelStorage, R>(
    name: &'static str,
    tensors: &[&Tensor],
    f: impl FnOnce(Args<S>) -> Result<R>,
) -> Result<R> {
    with_named_storages(name, &[], tensors, f)
}

/// As [`with_storages`]; errors call the tensors `called`.
pub(super) fn with_named_storages<S: KernelStorage, R>(
    name: &'static str,
    called: &'static [&'static str],
    tensors: &[&Tensor],
    f: impl FnOnce(Args<S>) -> Result<R>,
) -> Result<R> {
    check::ensure(
        tensors.len() <= MOST_ARGS,
        name,
        format_args!("got {} tensors, expected up to {MOST_ARGS}", tensors.len()),
    )?;
    let (mut f, mut result) = (Some(f), None);
    let mut run = |args: Args<S>| {
        result = f.take().map(|f| f(args)).transpose()?;
        Ok(())
    };
    match tensors.len() {
        // Not by `nested`, which would also serve: a tiny tensor's op takes as long as a few of its calls.
        1..=3 => S::read(name, tensors, &mut |args| {
            admit_all(name, called, 0, tensors, args)?;
            run(args)
        })?,
        _ => nested(name, called, tensors, &[], &mut run)?,
    }
    result.ok_or_else(|| check::error(name, "the storages could not be read"))
}

/// Checks what was read of the tensors, which are the arguments from number `first` on.
#[inline(always)]
fn admit_all<S: KernelStorage>(
    name: &'static str,
    called: &'static [&'static str],
    first: usize,
    tensors: &[&Tensor],
    read: Args<S>,
) -> Result<()> {
    for (i, (arg, tensor)) in read.iter().zip(tensors).enumerate() {
        admit(name, || called, first + i, arg)?;
        // An in-place op of a user's may have put a storage of another dtype into the tensor.
        check::same_dtype(name, tensor.dtype(), "a storage", arg.0.dtype())?;
    }
    Ok(())
}

fn nested<S: KernelStorage>(
    name: &'static str,
    called: &'static [&'static str],
    tensors: &[&Tensor],
    args: Args<S>,
    f: &mut dyn FnMut(Args<S>) -> Result<()>,
) -> Result<()> {
    if tensors.is_empty() {
        return f(args);
    }
    let (now, rest) = tensors.split_at(tensors.len().min(3));
    S::read(name, now, &mut |read| {
        admit_all(name, called, args.len(), now, read)?;
        if rest.is_empty() && args.is_empty() {
            return f(read);
        }
        let count = args.len() + read.len();
        let mut all = [read[0]; MOST_ARGS];
        all[..args.len()].copy_from_slice(args);
        all[args.len()..count].copy_from_slice(read);
        nested(name, called, rest, &all[..count], f)
    })
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
