//! BitNet's linear layer for training: float weights, rounded at each call.

use super::sub_norm::{as_input, check_vector, normed};
use super::{PackedBitLinear, SubNorm};
use crate::nn::linear::Linear;
use crate::ops::bitlinear::{check_scheme, INPUT_SCHEME};
use crate::ops::{self, fake_quantize, Act};
use crate::quant::{ScaleScope, Scheme};
use crate::{check, nn};
use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

const NAME: &str = "BitLinear";

/// How a [`BitLinear`] rounds its weight, and whether it norms its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BitLinearConfig {
    /// The scheme of the weight: `Levels::Ternary` or `Levels::Sign`, per tensor or per row.
    pub scheme: Scheme,
    /// The norm of the input, if there is one.
    pub norm: Option<SubNormConfig>,
}

/// An RMS norm of the layer's input before it is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubNormConfig {
    pub eps: f32,
    /// Whether it has a weight, the variable `rms_norm.weight`.
    pub weight: bool,
}

impl BitLinearConfig {
    /// BitNet b1.58: −1, 0 and 1 times the mean of |W|.
    pub const TERNARY: Self = BitLinearConfig {
        scheme: Scheme::ternary(ScaleScope::Tensor),
        norm: None,
    };

    /// The original BitNet: the sign of W less its mean, times the mean of |W|.
    pub const SIGN: Self = BitLinearConfig {
        scheme: Scheme::sign(ScaleScope::Tensor),
        norm: None,
    };

    /// The same scheme with an RMS norm of the input.
    pub const fn with_norm(self, norm: SubNormConfig) -> Self {
        BitLinearConfig {
            norm: Some(norm),
            ..self
        }
    }
}

impl Default for BitLinearConfig {
    fn default() -> Self {
        Self::TERNARY
    }
}

/// A linear layer whose float weights are rounded to 1 or 1.58 bits at each call, and its input to 8 bits for each token:
/// `y = q(norm(x))·q(W)ᵀ + bias`. Gradients pass straight through both roundings to x, W and bias.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::{bit_linear, BitLinearConfig, Module, VarBuilder, VarMap};
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let layer = bit_linear(16, 8, BitLinearConfig::TERNARY, vb)?;
/// let x = Tensor::randn(0f32, 1., (4, 16), &Device::Cpu)?;
/// let y = layer.forward(&x)?;
/// let grads = y.sqr()?.sum_all()?.backward()?;
/// assert!(vars.all_vars().iter().all(|var| grads.get(var).is_some()));
///
/// // For inference: 2 bits for each weight, and products of integers.
/// let packed = layer.freeze()?;
/// assert_eq!(packed.weight().codes().dims(), [8, 4]);
/// let change = (packed.forward(&x)? - y)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(change < 1e-4);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct BitLinear {
    weight: Tensor,
    bias: Option<Tensor>,
    norm: Option<SubNorm>,
    scheme: Scheme,
}

impl BitLinear {
    /// With a weight `[out, in]`, which `scheme` rounds to 1 or 2 bits, and a bias `[out]`.
    pub fn new(
        weight: Tensor,
        bias: Option<Tensor>,
        norm: Option<SubNorm>,
        scheme: Scheme,
    ) -> Result<Self> {
        check::is_float(NAME, &weight)?;
        check_scheme(NAME, &scheme)?;
        let [out, cols] = *weight.dims() else {
            let message = format!(
                "got weight of shape {:?}, expected [out, in]",
                weight.shape()
            );
            return Err(check::error(NAME, message));
        };
        if let Some(bias) = &bias {
            check_vector(NAME, "bias", bias, out, weight.device())?;
        }
        if let Some(norm) = &norm {
            norm.check(NAME, cols, weight.device())?;
        }
        Ok(BitLinear {
            weight,
            bias,
            norm,
            scheme,
        })
    }

    /// With the weight and the bias of a plain layer.
    pub fn from_linear(
        linear: impl Into<Linear>,
        norm: Option<SubNorm>,
        scheme: Scheme,
    ) -> Result<Self> {
        let linear = linear.into();
        check_act(NAME, linear.act())?;
        let (weight, bias) = (linear.weight().clone(), linear.bias().cloned());
        Self::new(weight, bias, norm, scheme)
    }

    /// The weight before it is rounded.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The norm of the input.
    pub fn norm(&self) -> Option<&SubNorm> {
        self.norm.as_ref()
    }

    /// How the weight is rounded.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The layer for inference, with a packed copy of the weight: training goes on without changing it.
    pub fn freeze(&self) -> Result<PackedBitLinear> {
        let weight = ops::quantize(&self.weight, self.scheme)?;
        let bias = self.bias.as_ref().map(Tensor::detach);
        let norm = self.norm.as_ref().map(SubNorm::detach);
        PackedBitLinear::new(weight, bias, norm)
    }
}

impl Module for BitLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check::is_float(NAME, x)?;
        let x = normed(self.norm.as_ref(), x)?;
        let weight = fake_quantize(&self.weight, self.scheme)?;
        let bias = as_input(self.bias.as_ref(), &x)?;
        ops::linear(&fake_quantize(&x, INPUT_SCHEME)?, &weight, bias.as_ref())
    }
}

/// These layers end with the product: one that is followed by an activation can't be converted.
pub(super) fn check_act(layer: &str, act: Act) -> Result<()> {
    match act {
        Act::Identity => Ok(()),
        act => Err(check::error(
            layer,
            format_args!("got a layer with {act:?}, expected one without activation"),
        )),
    }
}

/// A layer with the variables `weight`, `bias` and, if its norm has a weight, `rms_norm.weight` of `vb`.
pub fn bit_linear(
    in_dim: usize,
    out_dim: usize,
    config: BitLinearConfig,
    vb: VarBuilder,
) -> Result<BitLinear> {
    build(nn::linear(in_dim, out_dim, vb.clone())?, config, vb)
}

/// [`bit_linear`] without a bias.
pub fn bit_linear_no_bias(
    in_dim: usize,
    out_dim: usize,
    config: BitLinearConfig,
    vb: VarBuilder,
) -> Result<BitLinear> {
    build(nn::linear_no_bias(in_dim, out_dim, vb.clone())?, config, vb)
}

fn build(linear: Linear, config: BitLinearConfig, vb: VarBuilder) -> Result<BitLinear> {
    let norm = match config.norm {
        Some(SubNormConfig { eps, weight: true }) => {
            let cols = linear.weight().dim(1)?;
            let weight = vb.get_with_hints(cols, "rms_norm.weight", Init::Const(1.))?;
            Some(SubNorm::with_weight(weight, eps))
        }
        Some(SubNormConfig { eps, .. }) => Some(SubNorm::new(eps)),
        None => None,
    };
    BitLinear::from_linear(linear, norm, config.scheme)
}
