//! The Kullback-Leibler divergence `Σ p · (log p − log q)` of rows of the target p from rows of the input q, each given as
//! logits or as log-probabilities, the target as probabilities too.
//!
//! A term with p = 0 is 0, and so is its gradient. Backward, with P = Σ p of a row (1 for logits) and its divergence D:
//!
//! ```text
//! input    logits  g · (P·q − p)         log q  −g · p
//! target   logits  g · p · (log p − log q − D)
//!          log p   g · p · (log p − log q + 1)
//!          p       g · (log p − log q + 1)
//! ```
//!
//! All is computed in f32. The forward keeps six numbers of a row; no distribution is written to memory.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::cross_entropy::{loss_shape, only, LossReduction};
use super::targets;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, MultiOp, Op, Spec};
use candle_core::{DType, Error, Result, Tensor, D};

const NAME: &str = "kl_div";

/// How a distribution over the last dim is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Its probabilities are the softmax.
    Logits,
    /// Its probabilities are the exponentials.
    LogProbs,
    /// As they are.
    Probs,
}

/// How [`kl_div()`] is computed, and the CustomOp of input and target that does it.
///
/// The default is PyTorch's `kl_div` with `reduction="batchmean"`: log-probabilities for the input, probabilities for the
/// target. A mean divides by the number of rows, which makes it the mean divergence.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{Distribution, KlDiv};
/// let teacher = Tensor::new(&[[1f32, 2.], [5., 3.]], &Device::Cpu)?;
/// let op = KlDiv { input: Distribution::Logits, target: Distribution::Logits, ..Default::default() };
/// assert_eq!(teacher.apply_op2(&teacher, op)?.to_scalar::<f32>()?, 0.);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KlDiv {
    /// How the input is given: as logits or as log-probabilities.
    pub input: Distribution,
    /// How the target is given.
    pub target: Distribution,
    /// How the divergences of the rows become the result.
    pub reduction: LossReduction,
}

impl Default for KlDiv {
    fn default() -> Self {
        KlDiv {
            input: Distribution::LogProbs,
            target: Distribution::Probs,
            reduction: LossReduction::Mean,
        }
    }
}

/// The divergence of the target's rows from the input's, both `[.., classes]`. Differentiable in both.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{kl_div, KlDiv};
/// let log_q = Tensor::new(&[[0.5f32, 0.5]], &Device::Cpu)?.log()?;
/// let p = Tensor::new(&[[1f32, 0.]], &Device::Cpu)?;
/// assert_eq!(kl_div(&log_q, &p, KlDiv::default())?.to_scalar::<f32>()?, 2f32.ln());
/// # candle_core::Result::Ok(())
/// ```
pub fn kl_div(input: &Tensor, target: &Tensor, config: KlDiv) -> Result<Tensor> {
    only(
        NAME,
        op::apply_multi(NAME, Divergence(config), &[input, target])?,
    )
}

impl KlDiv {
    fn check_args(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, &["input", "target"], &args[..2])?;
        check::has_dims(name, args[0].layout)?;
        check::same_shape(name, args[0], "target", args[1])?;
        targets::check_count(name, "classes", args[0].dims()[args[0].rank() - 1])?;
        let message = "got probabilities for the input, expected logits or log-probabilities";
        check::ensure(self.input != Distribution::Probs, name, message)
    }

    /// What a row's divergence counts for in the result.
    fn unit(&self, rows: usize) -> f32 {
        match self.reduction {
            LossReduction::Mean => 1.0 / rows as f32,
            LossReduction::Sum | LossReduction::None => 1.0,
        }
    }

    /// The gradients of those of input and target that track one.
    fn gradients(&self, inputs: [&Tensor; 2], kept: &Tensor, grad: &Tensor) -> Grads {
        let wanted = inputs.map(|t| t.track_op());
        let gradient = Gradient { op: *self, wanted };
        let args = [inputs[0], inputs[1], kept, &grad.flatten_all()?];
        let mut made = op::apply_multi("kl_div_bwd", gradient, &args)?.into_iter();
        Ok(wanted
            .map(|wanted| if wanted { made.next() } else { None })
            .to_vec())
    }
}

custom_op!(KlDiv: CustomOp2);

impl Op for KlDiv {
    signature!(NAME(input, target));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.check_args(name, args)
    }
    kernels!(self, args => {
        let [loss, _] = device::forward(*self, args)?;
        Ok(loss)
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        let detached = [inputs[0].detach(), inputs[1].detach()];
        let args: Vec<&Tensor> = detached.iter().collect();
        let kept = only(NAME, op::apply_multi(NAME, Measure(*self), &args)?)?;
        self.gradients([inputs[0], inputs[1]], &kept, grad)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], *self)
    }
}

/// Numbers that are kept of a row, in f32: the input's maximum and the logarithm of its sum of exponentials, the target's, Σ p
/// and the divergence. Without logits the first two, or the next two, are 0.
const KEPT: usize = 6;

/// `(input, target)` → the divergence, and the [`KEPT`] numbers of each row.
struct Divergence(KlDiv);

impl MultiOp for Divergence {
    const ARGS: &'static [&'static str] = &["input", "target"];
    const SAVED: usize = 1;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.0.check_args(name, args)
    }
    kernels!(many: self, args => device::forward(self.0, args).map(Vec::from));
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        match &grads[0] {
            Some(grad) => self
                .0
                .gradients([&inputs[0], &inputs[1]], &outputs[1], grad),
            None => Ok(vec![None; 2]),
        }
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![reference(args[0], args[1], self.0)?])
    }
}

/// What is alike in ops that have no gradient and no reference.
macro_rules! no_gradient {
    () => {
        fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
            Err(Error::BackwardNotSupported { op: NAME })
        }
        fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
            Err(check::error(NAME, "no kernel for this device or dtype"))
        }
    };
}

/// `(input, target)` → the [`KEPT`] numbers of each row alone.
struct Measure(KlDiv);

impl MultiOp for Measure {
    const ARGS: &'static [&'static str] = Divergence::ARGS;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.0.check_args(name, args)
    }
    kernels!(many: self, args => {
        let [_, kept] = device::forward(self.0, args)?;
        Ok(vec![kept])
    });
    no_gradient!();
}

/// `(input, target, kept, grad_out)` → the gradients of input and target that are wanted. `grad_out` has one element, or one
/// for each row.
#[derive(Clone, Copy)]
struct Gradient {
    op: KlDiv,
    wanted: [bool; 2],
}

impl MultiOp for Gradient {
    const ARGS: &'static [&'static str] = &["input", "target", "kept", "grad_out"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check_args(name, args)?;
        let dims = args[0].dims();
        let rows = dims[..dims.len() - 1].iter().product();
        check::has_shape(name, "kept", args[2].layout, &[rows, KEPT])?;
        let message = format_args!("got kept numbers of {:?}, expected f32", args[2].dtype);
        check::ensure(args[2].dtype == DType::F32, name, message)?;
        check::same_dtype(name, args[0].dtype, "grad_out", args[3].dtype)?;
        let got = args[3].dims();
        let message = format_args!("got grad_out of shape {got:?}, expected [1] or [{rows}]");
        check::ensure(got == [1] || got == [rows], name, message)
    }
    kernels!(many: self, args => {
        let mut grads = Vec::new();
        for i in [0, 1] {
            if self.wanted[i] {
                grads.push((device::gradient(self.op, i == 1, args)?, args[0].1.shape().clone()));
            }
        }
        Ok(grads)
    });
    no_gradient!();
}

/// The composition of stock ops that [`kl_div()`] replaces.
pub fn reference(input: &Tensor, target: &Tensor, config: KlDiv) -> Result<Tensor> {
    let log_q = match config.input {
        Distribution::Logits => candle_nn::ops::log_softmax(input, D::Minus1)?,
        _ => input.clone(),
    };
    let (p, log_p) = match config.target {
        Distribution::Logits => {
            let log_p = candle_nn::ops::log_softmax(target, D::Minus1)?;
            (log_p.exp()?, log_p)
        }
        Distribution::LogProbs => (target.exp()?, target.clone()),
        Distribution::Probs => {
            let positive = target.eq(0.0)?.where_cond(&target.ones_like()?, target)?;
            (target.clone(), positive.log()?)
        }
    };
    let terms = (&p * (log_p - log_q)?)?;
    let terms = p.eq(0.0)?.where_cond(&terms.zeros_like()?, &terms)?;
    let rows = terms.sum(D::Minus1)?;
    match config.reduction {
        LossReduction::None => Ok(rows),
        LossReduction::Sum => rows.sum_all(),
        LossReduction::Mean => rows.sum_all()? / rows.elem_count() as f64,
    }
}
