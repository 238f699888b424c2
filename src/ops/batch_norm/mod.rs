//! Batch norm over `[batch, channels, ..spatial]`: each channel is normalised by a mean and a variance of its own, then
//! `y = x̂ · weight[c] + bias[c]` with `x̂ = (x − mean[c]) / √(var[c] + eps)`.
//!
//! For inference mean and variance are given. In training they are those of the batch: over all elements of a channel,
//! the variance biased (divided by their number n) and in two passes.
//!
//! Backward, with `h = g · weight[c]`, `s = 1 / √(var[c] + eps)`, and sums and means over all elements of a channel:
//! `dweight = Σ g · x̂`, `dbias = Σ g`, and
//!
//! | | inference | training |
//! |---|---|---|
//! | dx | `s · h` | `s · (h − mean(h) − x̂ · mean(h · x̂)) + (dmean + 2 · (x − mean) · dvar) / n` |
//! | dmean, dvar | `−s · Σh`, `−½ · s² · Σ h · x̂` | come in, where the statistics are used |
//!
//! Everything is computed in f32 and rounded once; mean and variance are f32 whatever x's dtype.

mod backward;
mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod train;

pub use train::{batch_norm_train, reference_train};

use super::affine_norm::{
    self, affine_by_channel, by_channel, channels, weight_and_bias, with_args, WeightAndBias,
};
use super::widen::widened;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, MultiOp, Op, Spec};
use candle_core::{Layout, Result, Tensor};

const NAME: &str = "batch_norm";

/// `(x − mean[c]) / √(var[c] + eps) · weight[c] + bias[c]` for x of `[batch, channels, ..]`, with a mean and a variance that are
/// given: the norm of inference. For f32, f16 and bf16 of any layout; mean and variance may be of x's dtype or f32. All of them
/// get gradients.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::batch_norm;
/// let x = Tensor::new(&[[[1f32, 3.], [5., 9.]]], &Device::Cpu)?;
/// let (mean, var) = (Tensor::new(&[2f32, 5.], &Device::Cpu)?, Tensor::new(&[1f32, 4.], &Device::Cpu)?);
/// let y = batch_norm(&x, &mean, &var, None, None, 1e-9)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[-1., 1.], [0., 2.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn batch_norm(
    x: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let (mean, var) = (statistic(x, "mean", mean)?, statistic(x, "var", var)?);
    with_args(x, channels(x), [weight, bias], |args| {
        let all = [&[x, &mean, &var], &args[1..]].concat();
        apply(Given { eps }, &all)
    })
}

fn apply(op: Given, args: &[&Tensor]) -> Result<Tensor> {
    let mut outputs = op::apply_multi(NAME, op, args)?;
    outputs
        .pop()
        .ok_or_else(|| check::error(NAME, "got no output, expected one"))
}

/// A mean or variance in the dtype that it is computed in.
fn statistic(x: &Tensor, called: &str, statistic: &Tensor) -> Result<Tensor> {
    check::is_float(NAME, x)?;
    let (got, of_x) = (statistic.dtype(), x.dtype());
    let wide = check::accumulator_dtype(of_x);
    let message = format_args!("got {called} of dtype {got:?}, expected {of_x:?} or {wide:?}");
    check::ensure(got == of_x || got == wide, NAME, message)?;
    // Candle's cast of no elements panics on Metal.
    if statistic.elem_count() == 0 && statistic.device().is_metal() {
        return Ok(statistic.clone());
    }
    statistic.to_dtype(wide)
}

/// [`batch_norm`] as a CustomOp of x, of x and a weight, or of x, a weight and a bias. Mean and variance are f32, and get no
/// gradient.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::BatchNorm;
/// let x = Tensor::new(&[[1f32, 3.]], &Device::Cpu)?;
/// let (mean, var) = (Tensor::new(&[2f32, 2.], &Device::Cpu)?, Tensor::new(&[1f32, 1.], &Device::Cpu)?);
/// let y = x.apply_op1(BatchNorm { mean, var, eps: 1e-9 })?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., 1.]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The mean of each channel.
    pub mean: Tensor,
    /// The variance of each channel.
    pub var: Tensor,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

custom_op!(BatchNorm: CustomOp1, CustomOp2, CustomOp3);

impl BatchNorm {
    fn op(&self) -> Given {
        Given { eps: self.eps }
    }

    /// The arguments of [`Given`] from those of this op.
    fn with_held<T: Copy>(&self, args: &[T], held: &[T]) -> Vec<T> {
        [&args[..1], held, &args[1..]].concat()
    }
}

impl Op for BatchNorm {
    signature!(NAME(x, weight, bias));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let held = [Spec::from(&self.mean), Spec::from(&self.var)];
        self.op().check(name, &self.with_held(args, &held))
    }
    fn held(&self) -> Vec<&Tensor> {
        vec![&self.mean, &self.var]
    }
    kernels!(self, args => op::with_storages(NAME, &self.held(), |held| {
        device::forward(self.op(), &self.with_held(args, held))
    }));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let inputs = self.with_held(inputs, &self.held());
        let mut grads = backward::of_given(self.op(), &inputs, g)?;
        grads.drain(1..3);
        Ok(grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let vectors = weight_and_bias(&args[1..]);
        reference(args[0], &self.mean, &self.var, vectors, self.eps)
    }
}

/// `(x, mean, var[, weight[, bias]])` → y
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    eps: f32,
}

impl MultiOp for Given {
    const ARGS: &'static [&'static str] = &["x", "mean", "var", "weight", "bias"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_affine(name, self.eps, args[0], &args[3..])?;
        for (called, &statistic) in ["mean", "var"].iter().zip(&args[1..3]) {
            check_statistic(name, args[0], called, statistic, 1)?;
        }
        Ok(())
    }
    kernels!(many: self, args => Ok(vec![device::forward(*self, args)?]));
    fn bwd(&self, inputs: &[Tensor], _: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        match &grads[0] {
            Some(g) => backward::of_given(*self, &inputs, g),
            None => Ok(vec![None; inputs.len()]),
        }
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let vectors = weight_and_bias(&args[3..]);
        let y = reference(args[0], args[1], args[2], vectors, self.eps)?;
        Ok(vec![y])
    }
}

/// x, and a weight and a bias as far as there are any.
fn check_affine(name: &'static str, eps: f32, x: Spec<'_>, vectors: &[Spec<'_>]) -> Result<()> {
    check::eps(name, eps.into())?;
    check::is_float(name, x)?;
    for (called, vector) in ["weight", "bias"].iter().zip(vectors) {
        check::same_dtype(name, x.dtype, called, vector.dtype)?;
    }
    let &[_, channels, ..] = x.dims() else {
        let message = format!(
            "got x of shape {:?}, expected [batch, channels, ..]",
            x.shape()
        );
        return Err(check::error(name, message));
    };
    affine_norm::check_vectors(name, vectors, channels, "channels")
}

/// `rows` numbers for each of x's channels, in the dtype that statistics are computed in (or in any, if there are none).
fn check_statistic(
    name: &'static str,
    x: Spec<'_>,
    called: &str,
    statistic: Spec<'_>,
    rows: usize,
) -> Result<()> {
    let (got, expected) = (statistic.dtype, check::accumulator_dtype(x.dtype));
    let message = format_args!("got {called} of dtype {got:?}, expected {expected:?}");
    let channels = x.dims()[1];
    check::ensure(got == expected || channels == 0, name, message)?;
    match rows {
        1 => check::vector(name, called, statistic, channels, "channels"),
        _ => check::has_shape(name, called, statistic.layout, &[rows, channels]),
    }
}

/// The sizes of x as a contiguous `[batch, channels, spatial]`.
#[derive(Clone, Copy, Debug)]
struct Extent {
    batch: usize,
    channels: usize,
    spatial: usize,
}

impl Extent {
    fn of(l: &Layout) -> Self {
        let dims = l.dims();
        Extent {
            batch: dims[0],
            channels: dims[1],
            spatial: dims[2..].iter().product(),
        }
    }
    /// Elements of a channel.
    fn of_channel(&self) -> usize {
        self.batch * self.spatial
    }
    /// Elements of a batch item.
    fn of_item(&self) -> usize {
        self.channels * self.spatial
    }
    fn count(&self) -> usize {
        self.batch * self.channels * self.spatial
    }
}

/// The composition of stock ops that [`batch_norm`] replaces.
pub fn reference(
    x: &Tensor,
    mean: &Tensor,
    var: &Tensor,
    vectors: WeightAndBias,
    eps: f32,
) -> Result<Tensor> {
    let wide = widened(x)?;
    let by_channel = |t: &Tensor| by_channel(&t.to_dtype(wide.dtype())?, x.rank());
    let std = (by_channel(var)? + f64::from(eps))?.sqrt()?;
    let y = wide
        .broadcast_sub(&by_channel(mean)?)?
        .broadcast_div(&std)?;
    affine_by_channel(y, vectors)?.to_dtype(x.dtype())
}
