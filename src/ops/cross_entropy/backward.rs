//! The gradient of the logits, from the factors that the forward keeps of each row.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, CrossEntropy, Loss, NAME};
use crate::check;
use crate::op::{self, kernels, signature, Grads, InplaceOp, MultiOp, Op, Spec};
use candle_core::{DType, Result, Tensor};
use std::sync::Arc;

/// `(logits, target[, weight])` → the factors of the gradient alone.
pub struct Measure(pub CrossEntropy);

impl MultiOp for Measure {
    const ARGS: &'static [&'static str] = Loss::ARGS;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.0.check(name, args)
    }
    kernels!(many: self, args => {
        let [_, factors] = device::forward(&Loss::new(NAME, self.0), args)?;
        Ok(vec![factors])
    });
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(candle_core::Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
        Err(check::error(NAME, "no kernel for this device or dtype"))
    }
}

/// Numbers of a row in the factors: maximum, the factor of `exp(x − maximum)`, what is subtracted at the target, what is
/// subtracted times the class weight at every class (all f32), and the target (u32, [`IGNORED`](crate::ops::targets::IGNORED) for none). They lie
/// in one u32 tensor `[rows, 5]` as bits.
pub const FACTORS: usize = 5;

/// `(logits, factors, grad_out)` → the gradient of the logits. `grad_out` has one element, or one for each row.
#[derive(Clone)]
pub struct Gradient {
    /// Class weights, where labels are smoothed by them.
    weight: Option<Arc<Tensor>>,
}

impl Gradient {
    pub fn new(op: &CrossEntropy, weight: Option<&Tensor>) -> Self {
        let smoothed = weight.filter(|_| op.label_smoothing > 0.0);
        Gradient {
            weight: smoothed.map(|w| Arc::new(w.detach())),
        }
    }

    pub fn of(&self, logits: &Tensor, factors: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let args = [logits, factors, &grad.flatten_all()?];
        op::apply("cross_entropy_bwd", self.clone(), &args)
    }

    /// The gradient in the memory of the logits, if that is possible.
    pub fn overwriting(&self, logits: &Tensor, factors: &Tensor, grad: &Tensor) -> Result<Tensor> {
        if !can_overwrite(logits) {
            return self.of(logits, factors, grad);
        }
        let target = logits.detach();
        let rest = [factors, &grad.flatten_all()?];
        op::apply_inplace("cross_entropy_inplace", self.clone(), &target, &rest)?;
        Ok(target)
    }
}

impl Op for Gradient {
    signature!("cross_entropy_bwd"(logits, factors, grad_out));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (x, factors, grad) = (args[0], args[1], args[2]);
        check::has_dims(name, x.layout)?;
        let rows: usize = x.dims()[..x.rank() - 1].iter().product();
        check::has_shape(name, "factors", factors.layout, &[rows, FACTORS])?;
        let message = format_args!("got factors of {:?}, expected u32", factors.dtype);
        check::ensure(factors.dtype == DType::U32, name, message)?;
        check::same_dtype(name, x.dtype, "grad_out", grad.dtype)?;
        let got = grad.dims();
        let message = format_args!("got grad_out of shape {got:?}, expected [1] or [{rows}]");
        check::ensure(got == [1] || got == [rows], name, message)
    }
    fn held(&self) -> Vec<&Tensor> {
        self.weight.iter().map(Arc::as_ref).collect()
    }
    kernels!(self, args => {
        let weight: Vec<&Tensor> = Op::held(self);
        op::with_storages(Self::NAME, &weight, |weight| device::gradient(args, weight.first().copied()))
    });
}

impl InplaceOp for Gradient {
    kernels!(in place: self, x, rest => {
        let weight: Vec<&Tensor> = Op::held(self);
        op::with_storages(Self::NAME, &weight, |weight| device::gradient_inplace(x, rest, weight.first().copied()))
    });
}

/// Whether each of the logits has a place of its own in memory.
pub fn can_overwrite(logits: &Tensor) -> bool {
    logits.elem_count() > 0 && !logits.layout().has_internal_overlap()
}

/// Whether x is a variable or a view of one. Only a variable that x depends on can share its memory: an op that does not
/// return a view has memory of its own, and a detached view has no gradient.
pub fn is_in_a_variable(x: &Tensor) -> bool {
    let memory = |x: &Tensor| std::ptr::from_ref(&*x.storage_and_layout().0);
    let own = memory(x);
    let mut nodes = x.sorted_nodes().into_iter();
    x.is_variable() || nodes.any(|node| node.is_variable() && memory(node) == own)
}
