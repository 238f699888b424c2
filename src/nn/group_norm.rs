//! [`mod@candle_nn::group_norm`] on fused kernels, with gradients to input, weight and bias.

use crate::{check, ops};
use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// Group norm of `[batch, channels, ..]`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// With a weight and a bias `[channels]`.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        eps: f64,
    ) -> Result<Self> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            let message = format!(
                "got num_groups {num_groups}, expected a divisor of num_channels {num_channels}"
            );
            return Err(check::error("GroupNorm", message));
        }
        Ok(Self {
            weight,
            bias,
            eps,
            num_channels,
            num_groups,
        })
    }
}

impl Module for GroupNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dims = xs.dims();
        if dims.len() <= 2 || dims[1] != self.num_channels {
            let channels = self.num_channels;
            let message = format!("got x of shape {dims:?}, expected [batch, {channels}, ..]");
            return Err(check::error("GroupNorm", message));
        }
        let (weight, bias) = (Some(&self.weight), Some(&self.bias));
        match self.eps as f32 {
            eps if eps > 0.0 => ops::group_norm(xs, self.num_groups, weight, bias, eps),
            // The stock layer accepts an eps of 0; the op does not.
            eps => ops::group_norm::reference(xs, self.num_groups, [weight, bias], eps),
        }
    }
}

/// A group norm with the variables `weight` and `bias` of `vb`.
pub fn group_norm(
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    vb: VarBuilder,
) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", Init::Const(1.))?;
    let bias = vb.get_with_hints(num_channels, "bias", Init::Const(0.))?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
