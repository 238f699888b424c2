//! [`mod@candle_nn::layer_norm`] on fused kernels, with gradients to input, weight and bias.

use crate::ops::{self, row_norm, Act};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

pub use candle_nn::layer_norm::LayerNormConfig;

/// Layer norm over the last dim; without `remove_mean` it is an RMS norm.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    /// With a weight and a bias.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self {
            bias: Some(bias),
            ..Self::new_no_bias(weight, eps)
        }
    }

    /// Without a bias.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: true,
            eps,
        }
    }

    /// An RMS norm: without a bias, and the mean is not removed.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self {
            remove_mean: false,
            ..Self::new_no_bias(weight, eps)
        }
    }

    /// The same norm outside any graph: its weight and bias get no gradient.
    pub fn detached(&self) -> Self {
        Self {
            weight: self.weight.detach(),
            bias: self.bias.as_ref().map(Tensor::detach),
            ..*self
        }
    }

    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Whether the mean is removed; without it this is an RMS norm.
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(stock: candle_nn::LayerNorm) -> Self {
        Self {
            weight: stock.weight().clone(),
            bias: stock.bias().cloned(),
            remove_mean: stock.remove_mean(),
            eps: stock.eps(),
        }
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (weight, eps) = (Some(&self.weight), self.eps as f32);
        // The stock layers accept an eps of 0; the ops do not.
        let fused = eps > 0.0;
        if self.remove_mean {
            let bias = self.bias.as_ref();
            return match fused {
                true => ops::layer_norm(xs, weight, bias, eps),
                false => row_norm::reference_layer(xs, [weight, bias], eps),
            };
        }
        let normed = match fused {
            true => ops::rms_norm(xs, weight, eps)?,
            false => row_norm::reference_rms(xs, weight, eps)?,
        };
        match &self.bias {
            None => Ok(normed),
            Some(bias) => ops::bias_act(&normed, bias, Act::Identity),
        }
    }
}

/// A layer norm with the variables `weight` and `bias` (or `gamma` and `beta`) of `vb`.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(LayerNorm::from)
}

/// A layer norm with the variable `weight` of `vb`.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm_no_bias(size, eps, vb).map(LayerNorm::from)
}

/// RMS norm over the last dim.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same norm as a [`LayerNorm`].
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The same as `forward`, which is differentiable here.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward(xs)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(stock: candle_nn::RmsNorm) -> Self {
        Self(stock.into_inner().into())
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// An RMS norm with the variable `weight` of `vb`.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    candle_nn::rms_norm(size, eps, vb).map(RmsNorm::from)
}
