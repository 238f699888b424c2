//! A linear layer with a weight of 1 to 8 bits.

use super::bit_linear::check_act;
use super::norm::{as_input, check_vector};
use super::packed::dims;
use super::Tensors;
use crate::check;
use crate::nn::linear::Linear;
use crate::ops::mixed_matmul::{check_weight, mixed_matmul};
use crate::ops::quantize::{quantize, Quantized, Scheme};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

const NAME: &str = "QuantLinear";

/// `y = x·Wᵀ + bias` with W of 1, 2, 4 or 8 bits, by [`ops::mixed_matmul()`](mixed_matmul): x stays what it is. Differentiable
/// in x and bias. It takes x in any float dtype; the bias is converted to it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::nn::{Linear, Module, QuantLinear};
/// use candle_fused::ops::quantize::Scheme;
///
/// let linear = Linear::new(Tensor::randn(0f32, 1., (8, 128), &Device::Cpu)?, None);
/// // 4 bits in MLX's layout, with a scale and a bias for each 64.
/// let layer = QuantLinear::quantize(linear.clone(), Scheme::mlx(4, 64))?;
/// let x = Tensor::randn(0f32, 1., (2, 128), &Device::Cpu)?;
/// let error = (layer.forward(&x)? - linear.forward(&x)?)?.sqr()?.mean_all()?.to_scalar::<f32>()?;
/// assert!(error < 2.);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct QuantLinear {
    weight: Quantized,
    bias: Option<Tensor>,
}

impl QuantLinear {
    /// Of a weight `[out, in]` with scales per tensor, per row or by groups.
    pub fn new(weight: Quantized, bias: Option<Tensor>) -> Result<Self> {
        check_weight(NAME, &weight)?;
        let (out, _) = dims(NAME, &weight)?;
        if let Some(bias) = &bias {
            check_vector(NAME, "bias", bias, out, weight.device())?;
        }
        Ok(QuantLinear { weight, bias })
    }

    /// A plain layer, quantised. Its bias is kept as it is.
    pub fn quantize(linear: impl Into<Linear>, scheme: Scheme) -> Result<Self> {
        let linear = linear.into();
        check_act(NAME, linear.act())?;
        let bias = linear.bias().map(Tensor::detach);
        Self::new(quantize(linear.weight(), scheme)?, bias)
    }

    /// What [`tensors`](Self::tensors) made, at the path of `vb`.
    pub fn load(vb: VarBuilder) -> Result<Self> {
        super::PackedLinear::load(vb)?.into_quant_linear()
    }

    /// What [`tensors`](Self::tensors) made for this prefix.
    pub fn from_tensors(tensors: &Tensors, prefix: &str) -> Result<Self> {
        super::PackedLinear::from_tensors(tensors, prefix)?.into_quant_linear()
    }

    /// All there is to save, by names that begin with `prefix` and a dot, or with nothing if it is empty: see
    /// [`quantized`](super).
    pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, Tensor)>> {
        super::PackedLinear::from(self.clone()).tensors(prefix)
    }

    pub fn weight(&self) -> &Quantized {
        &self.weight
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// With another bias.
    pub(super) fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        check::float(NAME, x)?;
        mixed_matmul(x, &self.weight, as_input(bias, x)?.as_ref())
    }

    pub(super) fn detach(self) -> Self {
        QuantLinear {
            weight: self.weight.detach(),
            bias: self.bias.map(|bias| bias.detach()),
        }
    }
}

impl Module for QuantLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, self.bias.as_ref())
    }
}
