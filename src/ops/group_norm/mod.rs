//! Group norm over `[batch, channels, ..spatial]`: the channels of a group are normalised together, as in
//! `layer_norm`, then `y = x̂ · weight[c] + bias[c]`.
//!
//! Backward, with `h = g · weight[c]` and means over a group: `dx = (h − mean(h) − x̂ · mean(h · x̂)) / √(var(x) + eps)`;
//! `dweight[c] = Σ g · x̂` and `dbias[c] = Σ g` over the batch and all positions. Everything is computed in f32 and
//! rounded once; the variance takes two passes.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::affine_norm::{
    self, affine_bwd, affine_by_channel, channels, weight_and_bias, AffineBwd, WeightAndBias,
};
use super::row_norm::reference_layer;
use super::widen::widened;
use crate::check;
use crate::op::{custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{Layout, Result, Tensor};

const NAME: &str = "group_norm";

/// [`group_norm`] as a CustomOp of x, of x and a weight, or of x, a weight and a bias; in place too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// The number of groups that the channels are split into.
    pub num_groups: usize,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// `(x − mean) / √(var + eps) · weight[c] + bias[c]`, mean and variance over each of `num_groups` groups of channels, for
/// f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::group_norm;
/// let x = Tensor::new(&[[[1f32, 3.], [5., 5.]]], &Device::Cpu)?;
/// let y = group_norm(&x, 2, None, None, 1e-9)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[-1., 1.], [0., 0.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn group_norm(
    x: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let norm = GroupNorm { num_groups, eps };
    affine_norm::apply(NAME, norm, x, channels(x), [weight, bias])
}

/// [`group_norm`] in x's own memory, for inference.
pub fn group_norm_inplace(
    x: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<()> {
    let norm = GroupNorm { num_groups, eps };
    affine_norm::apply_inplace("group_norm_inplace", norm, x, channels(x), [weight, bias])
}

impl GroupNorm {
    /// How x lies in groups.
    fn extent(&self, l: &Layout) -> Extent {
        let dims = l.dims();
        Extent {
            batch: dims[0],
            channels: dims[1],
            spatial: dims[2..].iter().product(),
            groups: self.num_groups,
        }
    }
}

/// The sizes of a contiguous `[batch, groups, channels / groups, spatial]`.
#[derive(Clone, Copy, Debug)]
struct Extent {
    batch: usize,
    channels: usize,
    spatial: usize,
    groups: usize,
}

impl Extent {
    fn rows(&self) -> usize {
        self.batch * self.groups
    }
    fn channels_per_group(&self) -> usize {
        self.channels / self.groups
    }
    /// The first channel of a row.
    fn first_channel(&self, row: usize) -> usize {
        row % self.groups * self.channels_per_group()
    }
    /// Elements of a group.
    fn cols(&self) -> usize {
        self.channels_per_group() * self.spatial
    }
    fn count(&self) -> usize {
        self.batch * self.channels * self.spatial
    }
}

custom_op!(GroupNorm: CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3);

impl Op for GroupNorm {
    signature!(NAME(x, weight, bias));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::eps(name, self.eps.into())?;
        let (groups, shape) = (self.num_groups, args[0].shape());
        let &[_, channels, ..] = shape.dims() else {
            let message = format!("got x of shape {shape:?}, expected [batch, channels, ..]");
            return Err(check::error(name, message));
        };
        if groups == 0 || groups > channels.max(1) || !channels.is_multiple_of(groups) {
            let message =
                format!("got {groups} groups, expected a divisor of x's {channels} channels");
            return Err(check::error(name, message));
        }
        affine_norm::check_vectors(name, &args[1..], channels, "channels")
    }
    kernels!(self, args => device::forward(*self, args));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        affine_norm::gradients(*self, inputs, g)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let vectors = weight_and_bias(&args[1..]);
        reference(args[0], self.num_groups, vectors, self.eps)
    }
}

impl InplaceOp for GroupNorm {
    kernels!(in place: self, x, rest => device::inplace(*self, x, rest));
}

affine_bwd!(GroupNorm, "group_norm_bwd");

/// The composition of stock ops that [`group_norm`] replaces.
pub fn reference(
    x: &Tensor,
    num_groups: usize,
    vectors: WeightAndBias,
    eps: f32,
) -> Result<Tensor> {
    let wide = widened(x)?;
    let (batch, channels) = (x.dims()[0], x.dims()[1]);
    let cols = x.dims()[2..].iter().product::<usize>() * channels / num_groups;
    let groups = wide.reshape((batch, num_groups, cols))?;
    let y = reference_layer(&groups, [None; 2], eps)?.reshape(x.shape())?;
    affine_by_channel(y, vectors)?.to_dtype(x.dtype())
}
