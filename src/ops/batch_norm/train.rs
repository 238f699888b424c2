//! The norm of training, by the statistics of the batch.

#[cfg(feature = "metal")]
use super::metal;
use super::{backward, check_affine, cpu};
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use crate::ops::affine_norm::{
    affine_by_channel, channels, weight_and_bias, with_args, WeightAndBias,
};
use crate::ops::widen::widened;
use candle_core::{Result, Tensor};

const TRAIN: &str = "batch_norm_train";

/// `(x − mean[c]) / √(var[c] + eps) · weight[c] + bias[c]` for x of `[batch, channels, ..]`, and the mean and the biased variance
/// of each channel in this batch, by which it normalises: the norm of training. For f32, f16 and bf16 of any layout; mean and
/// variance are f32.
///
/// Mean and variance have gradients to x, as y has. [`Tensor::detach`] those that go into running statistics: they would keep
/// the graph of this step alive.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::batch_norm_train;
/// let x = Tensor::new(&[[1f32, 2.], [3., 8.]], &Device::Cpu)?;
/// let (y, mean, var) = batch_norm_train(&x, None, None, 1e-9)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., -1.], [1., 1.]]);
/// assert_eq!(mean.to_vec1::<f32>()?, [2., 5.]);
/// assert_eq!(var.to_vec1::<f32>()?, [1., 9.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn batch_norm_train(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<(Tensor, Tensor, Tensor)> {
    let outputs = with_args(x, channels(x), [weight, bias], |args| {
        op::apply_multi(TRAIN, Measured { eps }, args)
    })?;
    let outputs: [Tensor; 3] = outputs
        .try_into()
        .map_err(|_| check::error(TRAIN, "got other outputs, expected three"))?;
    let [y, mean, var] = outputs;
    Ok((y, mean, var))
}

/// `(x[, weight[, bias]])` → `(y, mean, var)`, and, to be saved, `[3, channels]` with the mean, the scale and the shift of
/// `x̂ = (x − mean) · scale + shift`: there the mean has been rounded, and the shift makes up for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub eps: f32,
}

impl MultiOp for Measured {
    const ARGS: &'static [&'static str] = &["x", "weight", "bias"];
    const SAVED: usize = 1;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_affine(name, self.eps, args[0], &args[1..])
    }
    kernels!(many: self, args => device::train(*self, args));
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        backward::of_measured(inputs, outputs, grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let vectors = weight_and_bias(&args[1..]);
        let (y, mean, var) = reference_train(args[0], vectors, self.eps)?;
        Ok(vec![y, mean, var])
    }
}

/// The composition of stock ops that [`batch_norm_train`] replaces.
pub fn reference_train(
    x: &Tensor,
    vectors: WeightAndBias,
    eps: f32,
) -> Result<(Tensor, Tensor, Tensor)> {
    let turned = widened(x)?.transpose(0, 1)?;
    let rows = turned.flatten_from(1)?;
    let mean = rows.mean_keepdim(1)?;
    let centred = rows.broadcast_sub(&mean)?;
    let var = centred.sqr()?.mean_keepdim(1)?;
    let y = centred.broadcast_div(&(&var + f64::from(eps))?.sqrt()?)?;
    let y = y.reshape(turned.shape())?.transpose(0, 1)?;
    let y = affine_by_channel(y, vectors)?.to_dtype(x.dtype())?;
    Ok((y, mean.squeeze(1)?, var.squeeze(1)?))
}
