//! The cross-entropy of the logits `x·Wᵀ`, which never exist as a whole.
//!
//! Rows are taken in chunks, whose logits are at most [`CHUNK`] f32 numbers:
//!
//! ```text
//!            W [V, H]                for each chunk of rows:
//!          ┌──────────┐                1  logits = cap(x·Wᵀ)           one product
//!          │          │                2  losses, and the factors of the gradient, of each row
//! x [N, H] │          │  loss          3  dlogits, over the logits     if x or W trains
//! ├ chunk ─┼─ logits ─┼─► chunk        4  dx = dlogits·W               one product, if x trains
//! ├ chunk  │          │                5  dW += dlogitsᵀ·x             one product, if W trains
//! └ …      └──────────┘
//! ```
//!
//! A mean or a sum has its gradients computed in the forward pass, up to the gradient of the loss, which multiplies them in the
//! backward pass: so each product is computed once. With `LossReduction::None` the rows' gradients come later, and the
//! backward pass computes the logits again.
//!
//! Logits are capped as `cap · tanh(x / cap)`. Logits, their gradients and all sums are f32, and so are the gradients of x and W
//! that wait for the backward pass: the loss and the gradients are rounded once.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::cross_entropy::{
    self, check_classes, check_frozen, loss_shape, only, CrossEntropy, CrossEntropyConfig,
    LossReduction,
};
use super::linear;
use super::row_norm::widened;
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use candle_core::{DType, Error, Result, Tensor};

const NAME: &str = "linear_cross_entropy";

/// Logits that are in memory at a time: 64 MB. Fewer would read and write the gradient of W more often, which each chunk adds
/// to. 2048 rows of 4096 columns and 32000 classes are four chunks: on two cores their loss takes 1.06 of the time of x·Wᵀ, loss
/// and gradients take 0.9 of the time of the three products one by one, and the memory beside the gradients is 80 MB, of
/// stock's 2.6 GB.
const CHUNK: usize = 16 << 20;

/// How [`linear_cross_entropy()`] is computed.
#[derive(Clone, Debug, Default)]
pub struct LinearCrossEntropyConfig {
    /// The loss of the logits.
    pub loss: CrossEntropyConfig,
    /// Logits become `cap · tanh(logits / cap)` first.
    pub softcap: Option<f32>,
    /// The rows whose logits are in memory at a time. By default as many as make 64 MB of f32, but 64 at least.
    pub chunk_rows: Option<usize>,
}

/// [`cross_entropy`](crate::ops::cross_entropy) of the logits `x·Wᵀ`, without ever holding them: for x `[.., in]`, W
/// `[classes, in]` and a target class for each row of x. Differentiable in x and W.
///
/// Where x or W tracks gradients and the losses are reduced, their gradients are computed with the loss: call it on
/// detached tensors where only the loss is wanted.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_fused::ops::linear_cross_entropy;
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let w = Var::new(&[[0f32, 0.], [0., 0.]], &Device::Cpu)?;
/// let target = Tensor::new(&[1u32], &Device::Cpu)?;
/// let loss = linear_cross_entropy(&x, &w, &target, &Default::default())?;
/// assert_eq!(loss.to_scalar::<f32>()?, 2f32.ln());
/// let grads = loss.backward()?;
/// assert_eq!(grads.get(&w).unwrap().to_vec2::<f32>()?, [[0.5, 1.], [-0.5, -1.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn linear_cross_entropy(
    x: &Tensor,
    w: &Tensor,
    target: &Tensor,
    config: &LinearCrossEntropyConfig,
) -> Result<Tensor> {
    let weight = config.loss.weight.as_ref();
    let args = [Some(x), Some(w), Some(target), weight];
    let args: Vec<&Tensor> = args.into_iter().flatten().collect();
    check_frozen(NAME, &args[3..])?;
    let op = Settings::from(config);
    let later = op.loss.reduction == LossReduction::None;
    let wanted = [x, w].map(|t| t.track_op() && !later);
    only(NAME, op::apply_multi(NAME, Loss { op, wanted }, &args)?)
}

/// All but the tensors.
#[derive(Clone, Copy)]
struct Settings {
    loss: CrossEntropy,
    softcap: Option<f32>,
    chunk_rows: Option<usize>,
}

impl From<&LinearCrossEntropyConfig> for Settings {
    fn from(config: &LinearCrossEntropyConfig) -> Self {
        Settings {
            loss: (&config.loss).into(),
            softcap: config.softcap,
            chunk_rows: config.chunk_rows,
        }
    }
}

impl Settings {
    /// The rows of a chunk. A product of few rows would be slow.
    fn chunk_rows(&self, rows: usize, classes: usize) -> usize {
        let most = self.chunk_rows.unwrap_or((CHUNK / classes.max(1)).max(64));
        most.clamp(1, rows.max(1))
    }

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (x, w) = (args[0], args[1]);
        check::is_float(name, x)?;
        check::has_dims(name, x.layout)?;
        check::same_dtype(name, x.dtype, "w", w.dtype)?;
        check::fits_in_memory(name, "w", w.dims())?;
        let (cols, got) = (x.dims()[x.rank() - 1], w.dims());
        let message = format_args!("got w of shape {got:?}, expected [classes, {cols}]");
        check::ensure(got.len() == 2 && got[1] == cols, name, message)?;
        check_classes(name, &[&args[..1], &args[2..]].concat(), got[0])?;
        let rows = x.dims()[..x.rank() - 1].iter().product();
        let chunk = [self.chunk_rows(rows, got[0]), got[0]];
        check::fits_in_memory(name, "the logits of a chunk", &chunk)?;
        self.loss.check_fields(name)?;
        let cap = self.softcap.unwrap_or(1.0);
        let message = format_args!("got softcap = {cap}, expected a positive number");
        check::ensure(cap > 0.0 && cap.is_finite(), name, message)
    }
}

/// `(x, w, target[, weight])` → the loss, and the gradients of x and w that are kept: without elements where not wanted.
struct Loss {
    op: Settings,
    wanted: [bool; 2],
}

impl MultiOp for Loss {
    const ARGS: &'static [&'static str] = &["x", "w", "target", "weight"];
    const SAVED: usize = 2;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check(name, args)
    }
    kernels!(many: self, args => {
        let shape = loss_shape(self.op.loss.reduction, args[0].1.dims());
        let (loss, grads) = device::run(&self.op, args, None, self.wanted)?;
        let grads = grads.into_iter().zip([args[0].1, args[1].1]).zip(self.wanted);
        let grads = grads.map(|((grad, layout), wanted)| match wanted {
            true => (grad, layout.shape().clone()),
            false => (grad, 0.into()),
        });
        Ok([(loss, shape)].into_iter().chain(grads).collect())
    });
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let mut all = vec![None; inputs.len()];
        let Some(grad) = &grads[0] else {
            return Ok(all);
        };
        if self.op.loss.reduction == LossReduction::None {
            return self.again(inputs, grad);
        }
        for i in [0, 1] {
            if self.wanted[i] {
                all[i] = Some(scaled(&outputs[1 + i], grad, inputs[i].dtype())?);
            }
        }
        Ok(all)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![composed(&self.op, args)?])
    }
}

impl Loss {
    /// The gradients of losses that were not reduced.
    fn again(&self, inputs: &[Tensor], grad: &Tensor) -> Grads {
        let wanted = [0, 1].map(|i| inputs[i].track_op());
        let gradient = Gradient {
            op: self.op,
            wanted,
        };
        let grad = grad.flatten_all()?;
        let args: Vec<&Tensor> = [&grad].into_iter().chain(inputs).collect();
        let mut made = op::apply_multi(NAME, gradient, &args)?.into_iter();
        let wanted = wanted.map(|wanted| if wanted { made.next() } else { None });
        let mut all = wanted.to_vec();
        all.resize(inputs.len(), None);
        Ok(all)
    }
}

/// The gradient from one that was computed, in f32, for a loss whose own gradient is 1.
fn scaled(made: &Tensor, grad: &Tensor, dtype: DType) -> Result<Tensor> {
    let grad = grad.detach().to_dtype(DType::F32)?;
    // On the CPU it costs nothing to look, and nearly always it is 1.
    if grad.device().is_cpu() && grad.to_scalar::<f32>()? == 1.0 {
        return made.to_dtype(dtype);
    }
    made.broadcast_mul(&grad)?.to_dtype(dtype)
}

/// `(grad_out, x, w, target[, weight])` → the gradients of x and w that are wanted, for losses of rows.
struct Gradient {
    op: Settings,
    wanted: [bool; 2],
}

impl MultiOp for Gradient {
    const ARGS: &'static [&'static str] = &["grad_out", "x", "w", "target", "weight"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check(name, &args[1..])?;
        let (x, grad) = (args[1], args[0]);
        check::same_dtype(name, x.dtype, "grad_out", grad.dtype)?;
        let rows = x.dims()[..x.rank() - 1].iter().product();
        check::has_shape(name, "grad_out", grad.layout, &[rows])
    }
    kernels!(many: self, args => {
        let (_, grads) = device::run(&self.op, &args[1..], Some(args[0]), self.wanted)?;
        let grads = grads.into_iter().zip([args[1].1, args[2].1]).zip(self.wanted);
        let grads = grads.filter(|(_, wanted)| *wanted);
        Ok(grads.map(|((grad, layout), _)| (grad, layout.shape().clone())).collect())
    });
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
        Err(check::error(NAME, "no kernel for this device or dtype"))
    }
}

fn capped(logits: &Tensor, cap: f32) -> Result<Tensor> {
    let cap = f64::from(cap);
    (logits / cap)?.tanh()? * cap
}

/// The composition of stock ops that [`linear_cross_entropy()`] replaces.
pub fn reference(
    x: &Tensor,
    w: &Tensor,
    target: &Tensor,
    config: &LinearCrossEntropyConfig,
) -> Result<Tensor> {
    let args = [Some(x), Some(w), Some(target), config.loss.weight.as_ref()];
    let args: Vec<&Tensor> = args.into_iter().flatten().collect();
    composed(&config.into(), &args)
}

/// f16 and bf16 are computed in f32 and rounded once.
fn composed(op: &Settings, args: &[&Tensor]) -> Result<Tensor> {
    let mut logits = linear::reference(&widened(args[0])?, &widened(args[1])?, None)?;
    if let Some(cap) = op.softcap {
        logits = capped(&logits, cap)?;
    }
    let loss = cross_entropy::composed(NAME, &op.loss, &[&[&logits], &args[2..]].concat())?;
    loss.to_dtype(args[0].dtype())
}
