//! The cross-entropy of the logits `x·Wᵀ`, which never exist as a whole.
//!
//! Rows are taken in chunks, whose logits are the only ones in memory:
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
//! A chunk is as many rows as make 64 MB of logits in f32 ([`CHUNK`]), or 128 MB where x is trained and W is not
//! ([`CHUNK_FOR_X`]). Of a large vocabulary that would be few rows, and each chunk reads W and adds to dW: there a chunk may take as
//! much memory as a sixteenth of W in f32.
//!
//! A mean or a sum has its gradients computed in the forward pass, up to the gradient of the loss, which multiplies them in the
//! backward pass: so each product is computed once. The first backward pass takes them, scales them where they lie and gives
//! their memory away; one that comes later computes them again. With `LossReduction::None` the rows' gradients come later,
//! and the backward pass computes the logits again. Candle's backward then adds each gradient to zeros, in new memory: while
//! it does, there are two of each. [`linear_cross_entropy_grads`] returns the gradients instead, and there is one.
//!
//! Logits are capped as `cap · tanh(x / cap)`. Logits, their gradients and all sums are f32, and so are the gradients of x and W
//! that wait for the backward pass: the loss and the gradients are rounded once.

mod backward;
mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::cross_entropy::{
    self, check_classes, check_frozen, loss_shape, only, CrossEntropy, CrossEntropyConfig,
    LossReduction,
};
use super::linear;
use super::widen::widened;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, MultiOp, Op, Spec};
use backward::Made;
use candle_core::{Result, Tensor};
use std::sync::{Mutex, PoisonError};

const NAME: &str = "linear_cross_entropy";

/// Logits that are in memory at a time: 64 MB. Fewer would read and write the gradient of W more often, which each chunk adds
/// to. 2048 rows of 4096 columns and 32000 classes are four chunks.
const CHUNK: usize = 16 << 20;

/// The same where the gradient of x is made, but not that of W: 128 MB. Measured at 2048 rows of 4096 columns and 32000 classes
/// on two cores of Zen 4: forward and backward take 1.00 of the time of their two products, with [`CHUNK`] 1.17.
const CHUNK_FOR_X: usize = 2 * CHUNK;

/// Rows that a chunk has even if they have more logits than [`CHUNK`], as long as they take a sixteenth of W at most.
const FEW_ROWS: usize = 64;

/// How [`linear_cross_entropy()`] is computed.
#[derive(Clone, Debug, Default)]
pub struct LinearCrossEntropyConfig {
    /// The loss of the logits.
    pub loss: CrossEntropyConfig,
    /// Logits become `cap · tanh(logits / cap)` first.
    pub softcap: Option<f32>,
    /// The rows whose logits are in memory at a time. By default as many as make 64 MB of f32 (128 MB where x is trained
    /// and W is not), or up to 64 rows that take no more than a sixteenth of W in f32.
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
    let made = Mutex::new(None);
    only(
        NAME,
        op::apply_multi(NAME, Loss { op, wanted, made }, &args)?,
    )
}

/// [`linear_cross_entropy()`] and its gradients, outside of Candle's graph: `(loss, dx, dw)`, each of the gradients only if its
/// tensor tracks gradients. The losses must be reduced to one.
///
/// Candle's backward adds every gradient to zeros, in memory of its own. The gradient of W is by far the largest tensor here,
/// and this way it exists once. It goes into the `GradStore` of the layers below x:
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_fused::ops::linear_cross_entropy_grads;
/// let v = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let w = Var::new(&[[0f32, 0.], [0., 0.]], &Device::Cpu)?;
/// let target = Tensor::new(&[1u32], &Device::Cpu)?;
/// let x = (v.as_tensor() * 3.0)?;
/// let (loss, dx, dw) = linear_cross_entropy_grads(&x, &w, &target, &Default::default())?;
/// assert_eq!(loss.to_scalar::<f32>()?, 2f32.ln());
/// let mut grads = (x * dx.unwrap())?.sum_all()?.backward()?;
/// grads.insert(&w, dw.unwrap());
/// assert_eq!(grads.get(&v).unwrap().to_vec2::<f32>()?, [[0., 0.]]);
/// assert_eq!(grads.get(&w).unwrap().to_vec2::<f32>()?, [[1.5, 3.], [-1.5, -3.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn linear_cross_entropy_grads(
    x: &Tensor,
    w: &Tensor,
    target: &Tensor,
    config: &LinearCrossEntropyConfig,
) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
    let name = "linear_cross_entropy_grads";
    let weight = config.loss.weight.as_ref();
    let args = [Some(x), Some(w), Some(target), weight];
    let args: Vec<&Tensor> = args.into_iter().flatten().collect();
    check_frozen(name, &args[3..])?;
    let op = Settings::from(config);
    let message = "got LossReduction::None, expected a mean or a sum: there would be a gradient for each loss";
    check::ensure(op.loss.reduction != LossReduction::None, name, message)?;
    let wanted = [x, w].map(|t| t.track_op());
    backward::with_loss(name, &op, &args, wanted)
}

/// [`linear_cross_entropy()`] as a CustomOp of x, W and target. The class weights of the config get no gradient; its backward
/// computes the logits a second time, because a CustomOp cannot keep what the function keeps.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{LinearCrossEntropy, LinearCrossEntropyConfig};
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let w = Tensor::new(&[[0f32, 0.], [0., 0.]], &Device::Cpu)?;
/// let target = Tensor::new(&[1u32], &Device::Cpu)?;
/// let config = LinearCrossEntropyConfig::default();
/// let loss = x.apply_op3(&w, &target, LinearCrossEntropy { config })?;
/// assert_eq!(loss.to_scalar::<f32>()?, 2f32.ln());
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LinearCrossEntropy {
    pub config: LinearCrossEntropyConfig,
}

custom_op!(LinearCrossEntropy: CustomOp3);

impl Op for LinearCrossEntropy {
    signature!(NAME(x, w, target));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let held: Vec<Spec> = self.held().into_iter().map(Spec::from).collect();
        Settings::from(&self.config).check(name, &[args, &held].concat())
    }
    fn held(&self) -> Vec<&Tensor> {
        self.config.loss.weight.iter().collect()
    }
    kernels!(self, args => {
        let op = Settings::from(&self.config);
        let shape = loss_shape(op.loss.reduction, args[0].1.dims());
        let (loss, _) = op::with_storages(NAME, &self.held(), |held| {
            device::run(&op, &[args, held].concat(), None, [false; 2])
        })?;
        Ok((loss, shape))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        let op = Settings::from(&self.config);
        let args: Vec<Tensor> = [inputs, &self.held()]
            .concat()
            .into_iter()
            .cloned()
            .collect();
        let mut grads = backward::gradients(&op, None, &args, grad)?;
        grads.truncate(inputs.len());
        Ok(grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        composed(&(&self.config).into(), &[args, &self.held()].concat())
    }
}

/// What the kernels return: the loss, and the gradients of x and w that are wanted. These are in f32 for a gradient of 1 of the
/// reduced loss, or in x's dtype for given gradients of the rows' losses.
type Outputs<S> = Result<(S, [S; 2])>;

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
    /// The rows of a chunk: neither their logits nor the rows themselves, which may be widened, are more than [`CHUNK`] or
    /// [`CHUNK_FOR_X`]. `wanted` are the gradients of x and W.
    fn chunk_rows(&self, rows: usize, [classes, cols]: [usize; 2], wanted: [bool; 2]) -> usize {
        let chunk = match wanted {
            [true, false] => CHUNK_FOR_X,
            _ => CHUNK,
        };
        let most = self.chunk_rows.unwrap_or_else(|| {
            let few = FEW_ROWS.min(cols / 16);
            (chunk / classes.max(cols).max(1)).max(few)
        });
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
        let most = self.chunk_rows(rows, [got[0], cols], [true, false]);
        let chunk = [most, got[0]];
        check::fits_in_memory(name, "the logits of a chunk", &chunk)?;
        self.loss.check_fields(name)?;
        let cap = self.softcap.unwrap_or(1.0);
        let message = format_args!("got softcap = {cap}, expected a positive number");
        check::ensure(cap > 0.0 && cap.is_finite(), name, message)
    }
}

/// `(x, w, target[, weight])` → the loss. The gradients of x and w are made with it, as far as they are wanted.
struct Loss {
    op: Settings,
    wanted: [bool; 2],
    /// For the first backward pass.
    made: Mutex<Option<Made>>,
}

impl MultiOp for Loss {
    const ARGS: &'static [&'static str] = &["x", "w", "target", "weight"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check(name, args)
    }
    kernels!(many: self, args => {
        let shape = loss_shape(self.op.loss.reduction, args[0].1.dims());
        let (loss, made) = device::run(&self.op, args, None, self.wanted)?;
        if self.wanted.contains(&true) {
            let mut slot = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            *slot = Some(made.map(device::storage));
        }
        Ok(vec![(loss, shape)])
    });
    fn bwd(&self, inputs: &[Tensor], _: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let Some(grad) = &grads[0] else {
            return Ok(vec![None; inputs.len()]);
        };
        let mut slot = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = slot.take();
        drop(slot);
        backward::gradients(&self.op, made, inputs, grad)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![composed(&self.op, args)?])
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
