//! A linear layer with a weight of 1 to 8 bits.

use super::bit_linear::check_act;
use super::packed_bit_linear::dims;
use super::save_load::saved_layer;
use super::sub_norm::{as_input, check_vector};
use crate::check;
use crate::nn::linear::Linear;
use crate::ops::mixed_matmul::{check_weight, mixed_matmul_with, Activations};
use crate::ops::quantize::{quantize, Quantized, Scheme};
use candle_core::{Module, Result, Tensor};

const NAME: &str = "QuantLinear";

/// `y = x·Wᵀ + bias` with W of 1, 2, 4 or 8 bits, by [`ops::mixed_matmul_with()`](mixed_matmul_with), which does not round x unless
/// [`QuantLinear::with_activations`] asks for it. Differentiable in x and bias. It takes x in any float dtype; the bias is converted to it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::nn::{Linear, Module, QuantLinear};
/// use candle_fused::quant::Scheme;
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
    activations: Activations,
}

impl QuantLinear {
    /// With a weight `[out, in]` that has scales per tensor, per row or per group.
    pub fn new(weight: Quantized, bias: Option<Tensor>) -> Result<Self> {
        check_weight(NAME, &weight)?;
        let (out, _) = dims(NAME, &weight)?;
        if let Some(bias) = &bias {
            check_vector(NAME, "bias", bias, out, weight.device())?;
        }
        Ok(QuantLinear {
            weight,
            bias,
            activations: Activations::Exact,
        })
    }

    /// The same layer with activations that are taken as they are, or rounded to 8 bits. Files do not hold this choice.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_fused::nn::{Linear, QuantLinear};
    /// use candle_fused::ops::Activations;
    /// use candle_fused::quant::Scheme;
    ///
    /// let linear = Linear::new(Tensor::randn(0f32, 1., (8, 128), &Device::Cpu)?, None);
    /// let layer = QuantLinear::quantize(linear, Scheme::mlx(4, 64))?.with_activations(Activations::Int8);
    /// assert_eq!(layer.activations(), Activations::Int8);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn with_activations(self, activations: Activations) -> Self {
        QuantLinear {
            activations,
            ..self
        }
    }

    /// What the layer makes of its activations.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// Quantises the weight of a plain layer. The bias is kept as it is.
    pub fn quantize(linear: impl Into<Linear>, scheme: Scheme) -> Result<Self> {
        let linear = linear.into();
        check_act(NAME, linear.act())?;
        let bias = linear.bias().map(Tensor::detach);
        Self::new(quantize(linear.weight(), scheme)?, bias)
    }
}

saved_layer!(QuantLinear, into_quant_linear);

impl Module for QuantLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check::is_float(NAME, x)?;
        let bias = as_input(self.bias.as_ref(), x)?;
        mixed_matmul_with(x, &self.weight, bias.as_ref(), self.activations)
    }
}
