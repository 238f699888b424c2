//! [`Op`] and [`InplaceOp`] as trait objects, so that the code between a function and its kernel is compiled once instead of
//! once for each op.

use super::{ArgMut, Args, Grads, InplaceOp, Op, OpResult, Spec};
use crate::check;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Result, Tensor};

/// Any [`Op`]; the methods are those of the same name.
pub(crate) trait AnyOp: Send + Sync {
    /// [`Op::ARGS`]
    fn arg_names(&self) -> &'static [&'static str];
    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()>;
    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage>;
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage>;
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, grad: &Tensor) -> Grads;
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor>;
}

impl<O: Op> AnyOp for O {
    fn arg_names(&self) -> &'static [&'static str] {
        O::ARGS
    }
    #[inline]
    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        super::check(self, name, args)
    }
    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage> {
        Op::cpu(self, args)
    }
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        Op::metal(self, args)
    }
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, grad: &Tensor) -> Grads {
        Op::bwd(self, inputs, y, grad)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        Op::reference(self, args)
    }
}

/// Any [`InplaceOp`]; the methods are those of the same name.
pub(crate) trait AnyInplaceOp: AnyOp {
    fn check_inplace(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()>;
    fn cpu_inplace(&self, x: ArgMut<CpuStorage>, rest: Args<CpuStorage>) -> Result<()>;
    #[cfg(feature = "metal")]
    fn metal_inplace(&self, x: ArgMut<MetalStorage>, rest: Args<MetalStorage>) -> Result<()>;
}

impl<O: InplaceOp> AnyInplaceOp for O {
    fn check_inplace(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        if O::FLOATS {
            check::same_floats(name, O::ARGS, args)?;
        }
        check::frozen(name, &Op::held(self))?;
        InplaceOp::check_inplace(self, name, args)
    }
    fn cpu_inplace(&self, x: ArgMut<CpuStorage>, rest: Args<CpuStorage>) -> Result<()> {
        InplaceOp::cpu_inplace(self, x, rest)
    }
    #[cfg(feature = "metal")]
    fn metal_inplace(&self, x: ArgMut<MetalStorage>, rest: Args<MetalStorage>) -> Result<()> {
        InplaceOp::metal_inplace(self, x, rest)
    }
}
