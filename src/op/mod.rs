//! The one trait that an op implements, and the one line that makes its struct a Candle CustomOp.
//!
//! Every call goes through here, whether a public function made it or a user's `x.apply_op1(ops::Softmax { .. })`:
//!
//! ```text
//! ops::softmax(x, 1)                  x.apply_op1(ops::Softmax { dim: 1, .. })
//!        │ apply("softmax", op, [x])         │ custom_op!(Softmax: CustomOp1)
//!        ▼                                   ▼
//!   reference(args) ◄─ no kernel here   Candle locks the storages and calls cpu_fwd or metal_fwd
//!                                            │
//!                                       Op::check(name, specs)   once per call: the kernels rely on it
//!                                            │
//!                                       Op::cpu(args) / Op::metal(args)
//! ```
//!
//! Candle's CustomOps take up to three tensors and return one. [`multi`] lifts both limits.

mod any;
mod apply;
mod by_reference;
pub(crate) mod candle;
mod kept;
mod kernels;
mod multi;
mod overwrite;
mod storage;

pub(crate) use apply::{apply, apply_inplace, apply_kernel};
pub(crate) use candle::{candle_op, custom_op};
pub(crate) use kernels::{kernels, signature};
pub(crate) use multi::{apply_multi, apply_multi_pair, put_in_graph, Backward, MultiOp};
pub(crate) use overwrite::{overwrite, storage_address};
pub(crate) use storage::{contiguous_copy, with_storages, KernelStorage};

use crate::check;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, DType, Error, Layout, Result, Shape, Tensor};

/// A tensor argument as a kernel sees it.
pub(crate) type Arg<'a, S> = (&'a S, &'a Layout);

/// The arguments of a call.
pub(crate) type Args<'a, S> = &'a [Arg<'a, S>];

/// The argument that an in-place op overwrites.
pub(crate) type ArgMut<'a, S> = (&'a mut S, &'a Layout);

/// The result of a kernel.
pub(crate) type OpResult<S> = Result<(S, Shape)>;

/// The results of a kernel with several outputs.
pub(crate) type OpResults<S> = Result<Vec<(S, Shape)>>;

/// These types for the kernels of one device.
macro_rules! of_device {
    ($storage:ident) => {
        use candle_core::$storage;

        pub(crate) type Arg<'a> = super::Arg<'a, $storage>;
        pub(crate) type Args<'a> = super::Args<'a, $storage>;
        pub(crate) type ArgMut<'a> = super::ArgMut<'a, $storage>;
        pub(crate) type OpResult = super::OpResult<$storage>;
        pub(crate) type OpResults = super::OpResults<$storage>;
    };
}

/// What kernels on the CPU take and return.
pub(crate) mod on_cpu {
    of_device!(CpuStorage);
}

/// What kernels on Metal take and return.
#[cfg(feature = "metal")]
pub(crate) mod on_metal {
    of_device!(MetalStorage);
}

/// The gradients of the inputs, `None` for those that need none.
pub(crate) type Grads = Result<Vec<Option<Tensor>>>;

/// What a check knows about an argument: everything but its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec<'a> {
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl<'a> Spec<'a> {
    pub fn dims(&self) -> &'a [usize] {
        self.layout.dims()
    }
    pub fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }
    pub fn rank(&self) -> usize {
        self.dims().len()
    }
}

impl<'a> From<&'a Tensor> for Spec<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Spec {
            layout: tensor.layout(),
            dtype: tensor.dtype(),
        }
    }
}

impl<'a, S: KernelStorage> From<&Arg<'a, S>> for Spec<'a> {
    fn from(&(storage, layout): &Arg<'a, S>) -> Self {
        Spec {
            layout,
            dtype: storage.dtype(),
        }
    }
}

/// An op: its checks, its kernels, its gradient and the composition of stock ops that it must equal.
///
/// Kernels may rely on what [`Op::check`] accepts and on nothing else.
pub(crate) trait Op: Send + Sync + 'static {
    /// The op's name in errors when a user applies the struct by hand. Public functions pass their own name.
    const NAME: &'static str;
    /// What errors call the arguments, in order. A call may leave out the last ones.
    const ARGS: &'static [&'static str];
    /// Whether all arguments are of one floating-point dtype, which is then checked before [`Op::check`].
    const FLOATS: bool = true;

    /// Accepts or refuses a call. It runs once per call, by whatever route, before any kernel; it must refuse every
    /// combination of shapes, dtypes and fields of the op for which a kernel would read or write out of bounds.
    /// Errors begin with `name`, the function that was called.
    fn check(&self, _name: &'static str, _args: &[Spec<'_>]) -> Result<()> {
        Ok(())
    }

    /// The tensors that the op holds beside its arguments. They get no gradient, so a call with one that tracks gradients is
    /// refused.
    fn held(&self) -> Vec<&Tensor> {
        Vec::new()
    }

    /// The result on the CPU.
    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage>;

    /// The result on Metal.
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage>;

    /// The gradient of each input, or `None` for one that needs none. An op without a gradient is an error in a
    /// backward pass, never a silent zero.
    fn bwd(&self, _inputs: &[&Tensor], _y: &Tensor, _grad: &Tensor) -> Grads {
        Err(Error::BackwardNotSupported { op: Self::NAME })
    }

    /// The composition of stock ops that the op replaces: the specification, the tests' oracle, and what runs on a
    /// device or dtype without a kernel. Gradient ops have none: their forward has run on a kernel.
    fn reference(&self, _args: &[&Tensor]) -> Result<Tensor> {
        Err(check::error(
            Self::NAME,
            "no kernel for this device or dtype",
        ))
    }
}

/// An op that can also write its result to the memory of its first argument.
pub(crate) trait InplaceOp: Op {
    /// Overwrites `x`, on the CPU. `rest` are the other arguments.
    fn cpu_inplace(&self, x: ArgMut<CpuStorage>, rest: Args<CpuStorage>) -> Result<()>;

    /// Overwrites `x`, on Metal.
    #[cfg(feature = "metal")]
    fn metal_inplace(&self, x: ArgMut<MetalStorage>, rest: Args<MetalStorage>) -> Result<()>;

    /// As [`Op::check`], for the in-place form. Where it refuses more, it must call [`Op::check`] itself.
    fn check_inplace(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        Op::check(self, name, args)
    }
}

/// The gradients of those `inputs` that track one, each by the function at its place. The functions of arguments that a
/// call has left out are not called.
pub(crate) fn grads(inputs: &[&Tensor], of: &[&dyn Fn() -> Result<Tensor>]) -> Grads {
    let grad = |(input, grad): (&&Tensor, &&dyn Fn() -> Result<Tensor>)| {
        input.track_op().then(grad).transpose()
    };
    inputs.iter().zip(of).map(grad).collect()
}

/// All checks of a call of an op, as kernels rely on them.
#[inline]
pub(crate) fn check<O: Op>(op: &O, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
    if O::FLOATS {
        check::same_floats(name, O::ARGS, args)?;
    }
    check::frozen(name, &op.held())?;
    op.check(name, args)
}

/// The checks' view of tensors.
pub(crate) fn specs<'a>(args: &[&'a Tensor]) -> Vec<Spec<'a>> {
    args.iter().map(|&t| t.into()).collect()
}
