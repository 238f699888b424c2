//! Cross-entropy over the last dim of the logits, which are never copied, nor turned into probabilities in memory.
//!
//! With `lse = log Σ exp(x)` of a row, target t, class weights w (1 where none are given) that add up to W, label smoothing
//! ε and C classes, the loss of a row is
//!
//! ```text
//! (1 − ε) · w[t] · (lse − x[t])  +  ε / C · Σ w[c] · (lse − x[c])  +  z_loss · w[t] · lse²
//! ```
//!
//! A mean divides the sum of these by Σ w[t] over the rows that count, as PyTorch does. Backward, with the softmax p:
//!
//! ```text
//! dx[c] = g · ( ((1 − ε)·w[t] + ε·W/C + 2·z_loss·w[t]·lse) · p[c]  −  ε/C · w[c]  −  (1 − ε)·w[t]·[c = t] )
//! ```
//!
//! The forward reads the logits once and keeps, for each row, its maximum and the factors of the three terms; the backward
//! reads the logits once and writes their gradient once, to memory of its own or (`cross_entropy_inplace`) over them.
//! All is computed in f32, sums over rows in f64 on the CPU; the loss has the logits' dtype and is rounded once.

mod backward;
mod config;
pub(crate) mod cpu;
#[cfg(feature = "metal")]
pub(crate) mod metal;
mod nll;
mod reference;

use super::targets;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, MultiOp, Op, Spec};
use candle_core::{Result, Shape, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use backward::FACTORS;
use backward::{can_overwrite, is_in_a_variable, Gradient, Measure};
pub use config::{CrossEntropyConfig, LossReduction};
pub use nll::nll;
pub(crate) use reference::composed;
pub use reference::{reference, reference_nll, reference_token_log_probs};

const NAME: &str = "cross_entropy";
const TOKENS: &str = "token_log_probs";

/// The cross-entropy of logits `[.., classes]` and a target class for each row: integers (u8, u32 or i64) of the logits'
/// leading dims. Differentiable in the logits.
///
/// A target outside of the classes that is not the `ignore_index` is an error on the CPU. On Metal, where the targets are
/// not looked at before the kernels run, it makes the loss NaN.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{cross_entropy, CrossEntropyConfig};
/// let logits = Tensor::new(&[[0f32, 0.], [3., 3.]], &Device::Cpu)?;
/// let target = Tensor::new(&[0i64, -100], &Device::Cpu)?;
/// let loss = cross_entropy(&logits, &target, &CrossEntropyConfig::default())?;
/// assert!((loss.to_scalar::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # candle_core::Result::Ok(())
/// ```
pub fn cross_entropy(
    logits: &Tensor,
    target: &Tensor,
    config: &CrossEntropyConfig,
) -> Result<Tensor> {
    apply(Loss::new(NAME, config.into()), logits, target, config)
}

/// [`cross_entropy`] of logits that nobody needs afterwards: in the backward pass their gradient takes the place of the
/// logits in memory, so that the op makes no second tensor of their size. (Candle's backward makes one of its own, in which
/// it adds up a tensor's gradients.)
///
/// The caller promises that nothing reads the logits once the backward pass has begun: no other tensor that shares their
/// memory (where the logits are a view, the tensor that they are a view of is overwritten in their place), and no op in whose
/// result they are the output that its own backward reads (stock's `exp`, `tanh` or `sqrt`; a product, a sum or a scaling
/// does not). A second backward pass through the same loss is an error, and so are logits that are a variable or a view of
/// one. Where the logits can't be overwritten (they are a broadcast view, or no kernel serves their device or dtype) this
/// is [`cross_entropy`]. Detached logits have no gradient, and stay as they are.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_fused::ops::{cross_entropy_inplace, CrossEntropyConfig};
/// let x = Var::new(&[[0f32, 0.], [3., 3.]], &Device::Cpu)?;
/// let target = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let logits = x.affine(2.0, 0.0)?;
/// let loss = cross_entropy_inplace(logits, &target, &CrossEntropyConfig::default())?;
/// let grads = loss.backward()?;
/// assert_eq!(grads.get(&x).unwrap().to_vec2::<f32>()?, [[-0.5, 0.5], [0.5, -0.5]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn cross_entropy_inplace(
    logits: Tensor,
    target: &Tensor,
    config: &CrossEntropyConfig,
) -> Result<Tensor> {
    let name = "cross_entropy_inplace";
    let message =
        "got logits in the memory of a variable, expected the result of an op, which may be overwritten";
    let spared = !can_overwrite(&logits) || !is_in_a_variable(&logits);
    check::ensure(spared, name, message)?;
    let loss = Loss {
        given_up: Some(AtomicBool::new(false)),
        ..Loss::new(name, config.into())
    };
    apply(loss, &logits, target, config)
}

/// The log-probability of a chosen token in each row of logits `[.., classes]`, `x[t] − log Σ exp(x)`: what DPO, GRPO and
/// distillation need, without a tensor of all log-probabilities. The tokens are integers (u8, u32 or i64) of the logits'
/// leading dims, each a class: see [`cross_entropy`] for others. Differentiable in the logits.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::token_log_probs;
/// let logits = Tensor::new(&[[0f32, 0.], [3., 3.]], &Device::Cpu)?;
/// let log_probs = token_log_probs(&logits, &Tensor::new(&[0u32, 1], &Device::Cpu)?)?;
/// assert_eq!(log_probs.to_vec1::<f32>()?, [-2f32.ln(); 2]);
/// # candle_core::Result::Ok(())
/// ```
pub fn token_log_probs(logits: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    let config = token_config();
    let loss = Loss {
        negated: true,
        ..Loss::new(TOKENS, (&config).into())
    };
    apply(loss, logits, tokens, &config)
}

/// One number for each row, and no row ignored.
fn token_config() -> CrossEntropyConfig {
    CrossEntropyConfig {
        ignore_index: None,
        reduction: LossReduction::None,
        ..Default::default()
    }
}

fn apply(
    loss: Loss,
    logits: &Tensor,
    target: &Tensor,
    config: &CrossEntropyConfig,
) -> Result<Tensor> {
    let args = [Some(logits), Some(target), config.weight.as_ref()];
    let args: Vec<&Tensor> = args.into_iter().flatten().collect();
    let name = loss.name;
    check_frozen(name, &args[2..])?;
    only(name, op::apply_multi(name, loss, &args)?)
}

/// The only output.
pub(crate) fn only(name: &'static str, mut outputs: Vec<Tensor>) -> Result<Tensor> {
    let none = || check::error(name, "got no output, expected a loss");
    outputs.pop().ok_or_else(none)
}

/// Class weights get no gradient.
pub(crate) fn check_frozen(name: &'static str, weight: &[&Tensor]) -> Result<()> {
    let message = "got a class weight that tracks gradients, expected a detached one: it would get no gradient";
    check::ensure(!weight.iter().any(|t| t.track_op()), name, message)
}

/// [`cross_entropy`] as a CustomOp of logits and target, or of logits, target and class weights. Its backward measures the
/// rows a second time, which the function avoids.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{CrossEntropy, CrossEntropyConfig};
/// let logits = Tensor::new(&[[0f32, 0.], [3., 3.]], &Device::Cpu)?;
/// let target = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let op = CrossEntropy::from(&CrossEntropyConfig::default());
/// assert_eq!(logits.apply_op2(&target, op)?.to_scalar::<f32>()?, 2f32.ln());
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// The target of rows that don't count.
    pub ignore_index: Option<i64>,
    /// ε, from 0 to 1.
    pub label_smoothing: f32,
    /// The factor of `lse²`.
    pub z_loss: f32,
    /// How the losses of the rows become one.
    pub reduction: LossReduction,
}

impl From<&CrossEntropyConfig> for CrossEntropy {
    /// All but the class weights, which are the op's third tensor.
    fn from(config: &CrossEntropyConfig) -> Self {
        CrossEntropy {
            ignore_index: config.ignore_index,
            label_smoothing: config.label_smoothing,
            z_loss: config.z_loss,
            reduction: config.reduction,
        }
    }
}

impl CrossEntropy {
    /// Accepts logits, target and perhaps class weights.
    pub(crate) fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::is_float(name, args[0])?;
        check::has_dims(name, args[0].layout)?;
        check_classes(name, args, *args[0].dims().last().unwrap_or(&0))?;
        self.check_fields(name)
    }

    pub(crate) fn check_fields(&self, name: &'static str) -> Result<()> {
        let eps = self.label_smoothing;
        let message = format_args!("got label_smoothing = {eps}, expected 0 to 1");
        check::ensure((0.0..=1.0).contains(&eps), name, message)?;
        let z = self.z_loss;
        let message = format_args!("got z_loss = {z}, expected a finite number from 0 on");
        check::ensure(z >= 0.0 && z.is_finite(), name, message)
    }
}

/// The first argument, rows of any kind, has as many leading dims as the second, the targets; a third one has a weight for
/// each of the classes.
pub(crate) fn check_classes(name: &'static str, args: &[Spec<'_>], classes: usize) -> Result<()> {
    let (x, target) = (args[0], args[1]);
    check::fits_in_memory(name, "logits", x.dims())?;
    check::fits_in_memory(name, "target", target.dims())?;
    targets::check_dtype(name, "target", target)?;
    targets::check_count(name, "classes", classes)?;
    check::has_shape(name, "target", target.layout, &x.dims()[..x.rank() - 1])?;
    let Some(weight) = args.get(2) else {
        return Ok(());
    };
    check::same_dtype(name, x.dtype, "weight", weight.dtype)?;
    check::has_shape(name, "weight", weight.layout, &[classes])
}

custom_op!(CrossEntropy: CustomOp2, CustomOp3);

impl Op for CrossEntropy {
    signature!(NAME(logits, target, weight));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        CrossEntropy::check(self, name, args)
    }
    kernels!(self, args => {
        let [loss, _] = device::forward(&Loss::new(NAME, *self), args)?;
        Ok(loss)
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        check_frozen(NAME, &inputs[2..])?;
        let detached: Vec<Tensor> = inputs.iter().map(|t| t.detach()).collect();
        let factors = op::apply_multi(NAME, Measure(*self), &detached.iter().collect::<Vec<_>>())?;
        let factors = only(NAME, factors)?;
        let gradient = Gradient::new(self, inputs.get(2).copied());
        let dlogits = op::grads(inputs, &[&|| gradient.of(inputs[0], &factors, grad)])?;
        Ok([dlogits, vec![None; inputs.len() - 1]].concat())
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        composed(NAME, self, args)
    }
}

/// `(logits, target[, weight])` → the loss, and factors for its gradient that are kept.
pub(crate) struct Loss {
    /// The function that was called.
    pub(crate) name: &'static str,
    pub(crate) op: CrossEntropy,
    /// Whether the result is minus the loss.
    pub(crate) negated: bool,
    /// Whether the gradient has taken the place of the logits, which may be overwritten.
    given_up: Option<AtomicBool>,
}

impl Loss {
    pub(crate) fn new(name: &'static str, op: CrossEntropy) -> Self {
        Loss {
            name,
            op,
            negated: false,
            given_up: None,
        }
    }

    /// What the function calls its second argument.
    pub(crate) fn target(&self) -> &'static str {
        if self.negated {
            "tokens"
        } else {
            "target"
        }
    }

    pub(crate) fn sign(&self) -> f32 {
        if self.negated {
            -1.0
        } else {
            1.0
        }
    }
}

/// The result's shape.
pub(crate) fn loss_shape(reduction: LossReduction, x: &[usize]) -> Shape {
    match reduction {
        LossReduction::None => x[..x.len() - 1].into(),
        LossReduction::Mean | LossReduction::Sum => ().into(),
    }
}

impl MultiOp for Loss {
    const ARGS: &'static [&'static str] = &["logits", "target", "weight"];
    const SAVED: usize = 1;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check(name, args)
    }
    kernels!(many: self, args => device::forward(self, args).map(Vec::from));
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let (logits, factors) = (&inputs[0], &outputs[1]);
        let gradient = Gradient::new(&self.op, inputs.get(2));
        let mut all = vec![None; inputs.len()];
        if let (Some(grad), true) = (&grads[0], logits.track_op()) {
            all[0] = Some(match &self.given_up {
                Some(given_up) => {
                    let message = "got a second backward pass, expected one: the logits have been overwritten";
                    let first = !given_up.swap(true, Ordering::Relaxed);
                    check::ensure(first, self.name, message)?;
                    gradient.overwriting(logits, factors, grad)?
                }
                None => gradient.of(logits, factors, grad)?,
            });
        }
        Ok(all)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let loss = composed(self.name, &self.op, args)?;
        Ok(vec![match self.negated {
            true => loss.neg()?,
            false => loss,
        }])
    }
}
