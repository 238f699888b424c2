//! The negative log-likelihood `−w[t] · x[t]` of log-probabilities x. Backward: `−g · w[t]` at the target, 0 elsewhere.

#[cfg(feature = "metal")]
use super::metal;
use super::{check_frozen, cpu, loss_shape, reference_nll, CrossEntropy};
use super::{CrossEntropyConfig, LossReduction};
use crate::check;
use crate::op::{self, kernels, signature, Grads, Op, Spec};
use candle_core::{Result, Shape, Tensor};

pub(super) const NAME: &str = "nll";

/// The negative log-likelihood of log-probabilities `[.., classes]` and a target class for each row, as of
/// [`cross_entropy`](super::cross_entropy()), which is faster and keeps less where the log-probabilities come from a
/// `log_softmax`. Labels are not smoothed here, and there is no z-loss. Differentiable in the log-probabilities.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{nll, CrossEntropyConfig};
/// let log_probs = Tensor::new(&[[-1f32, -2.], [-3., -4.]], &Device::Cpu)?;
/// let target = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let loss = nll(&log_probs, &target, &CrossEntropyConfig::default())?;
/// assert_eq!(loss.to_scalar::<f32>()?, 2.5);
/// # candle_core::Result::Ok(())
/// ```
pub fn nll(log_probs: &Tensor, target: &Tensor, config: &CrossEntropyConfig) -> Result<Tensor> {
    let (eps, z) = (config.label_smoothing, config.z_loss);
    let message = format_args!("got label_smoothing = {eps} and z_loss = {z}, expected 0 for both");
    check::ensure(eps == 0.0 && z == 0.0, NAME, message)?;
    let args = [Some(log_probs), Some(target), config.weight.as_ref()];
    let args: Vec<&Tensor> = args.into_iter().flatten().collect();
    check_frozen(NAME, &args[2..])?;
    op::apply(NAME, Likelihood(config.into()), &args)
}

/// `(log_probs, target[, weight])` → the loss.
struct Likelihood(CrossEntropy);

impl Op for Likelihood {
    signature!(NAME(log_probs, target, weight));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.0.check(name, args)
    }
    kernels!(self, args => device::nll(self.0, args));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        let op = Nll {
            op: self.0,
            shape: inputs[0].shape().clone(),
        };
        let grad = grad.flatten_all()?;
        let args = [&[&grad], &inputs[1..]].concat();
        let dx = op::grads(inputs, &[&|| op::apply("nll_bwd", op.clone(), &args)])?;
        Ok([dx, vec![None; inputs.len() - 1]].concat())
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let CrossEntropy {
            ignore_index,
            reduction,
            ..
        } = self.0;
        let config = CrossEntropyConfig {
            ignore_index,
            reduction,
            weight: args.get(2).map(|&w| w.clone()),
            ..Default::default()
        };
        reference_nll(args[0], args[1], &config)
    }
}

/// `(grad_out, target[, weight])` → the gradient of log-probabilities of this shape.
#[derive(Clone)]
pub(crate) struct Nll {
    pub(crate) op: CrossEntropy,
    pub(crate) shape: Shape,
}

impl Op for Nll {
    signature!("nll_bwd"(grad_out, target, weight));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let rows = loss_shape(LossReduction::None, self.shape.dims());
        check::has_shape(name, "target", args[1].layout, rows.dims())?;
        let (got, rows) = (args[0].dims(), rows.elem_count());
        let message = format_args!("got grad_out of shape {got:?}, expected [1] or [{rows}]");
        check::ensure(got == [1] || got == [rows], name, message)
    }
    kernels!(self, args => device::nll_gradient(self, args));
}
