//! A linear layer with adapters.

use super::adapters::{adapted_layer, Adapters, Run};
use super::frozen_base::{FrozenBase, Kind};
use super::LoraConfig;
use crate::nn::linear::Linear;
use crate::nn::quantized::PackedLinear;
use crate::ops::{affine_act, frozen_linear, Act, Adapter};
use candle_core::quantized::QTensor;
use candle_core::{ModuleT, Result, Tensor};
use candle_nn::VarBuilder;
use std::sync::Arc;

/// A frozen linear layer with a low-rank adapter: `y = x·Wᵀ + bias + scale · (dropout(x)·Aᵀ)·Bᵀ`.
///
/// With a weight of floats this is one op. With a GGUF or packed weight it is three: the base, `dropout(x)·Aᵀ`, and the
/// sum; dropout, and conversions of 16-bit inputs to f32, come before them.
///
/// With DoRA, `y = m / ‖W + scale·B·A‖ ⊙ (x·Wᵀ + scale · (dropout(x)·Aᵀ)·Bᵀ) + bias`, one op more. The norm of each row is
/// treated as a constant in the backward, and is computed without the sum of the matrices. (In training with dropout,
/// PEFT drops the input of the base too; mlx-lm does it as here.)
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::lora::{LoraConfig, LoraLinear};
/// use candle_fused::nn::{Linear, Module, ModuleT, VarBuilder, VarMap};
///
/// let base = Linear::new(Tensor::randn(0f32, 1., (6, 4), &Device::Cpu)?, None);
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let config = LoraConfig { rank: 2, alpha: 4.0, dropout: 0.1, ..Default::default() };
/// let layer = LoraLinear::new(base.clone(), &config, vb)?;
///
/// // It starts as its base, and the gradient reaches the adapter alone.
/// let x = Tensor::randn(0f32, 1., (3, 4), &Device::Cpu)?;
/// let change = (layer.forward(&x)? - base.forward(&x)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(change < 1e-5);
/// let grads = layer.forward_t(&x, true)?.sqr()?.sum_all()?.backward()?;
/// assert!(layer.adapter_vars().iter().all(|var| grads.get(var).is_some()));
///
/// layer.merge()?;
/// let stock: candle_nn::Linear = layer.to_stock()?;
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LoraLinear {
    adapters: Adapters,
    bias: Option<Tensor>,
}

impl LoraLinear {
    /// With a weight in one of Candle's GGUF types, as in QLoRA. It can't be merged.
    pub fn from_quantized(
        weight: Arc<QTensor>,
        bias: Option<Tensor>,
        config: &LoraConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        Self::plain_quantized(weight, bias, vb.prefix())?.with_default(config, vb)
    }

    /// Without an adapter: a frozen layer. `name` is its path in a model.
    pub fn plain(base: impl Into<Linear>, name: impl Into<String>) -> Result<Self> {
        let base = base.into();
        let frozen = FrozenBase::new(name.into(), Kind::Linear, base.weight().clone())?;
        frozen.check_act(base.act())?;
        Self::from_base(frozen, base.bias())
    }

    /// Without an adapter, with a weight in one of Candle's GGUF types.
    pub fn plain_quantized(
        weight: Arc<QTensor>,
        bias: Option<Tensor>,
        name: impl Into<String>,
    ) -> Result<Self> {
        Self::from_base(FrozenBase::gguf(name.into(), weight)?, bias.as_ref())
    }

    /// With a packed weight: a [`PackedBitLinear`](crate::nn::PackedBitLinear) or a [`QuantLinear`](crate::nn::QuantLinear).
    /// It can't be merged. If the base norms its input, the adapter still reads the input before the norm.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_fused::nn::lora::{LoraConfig, LoraLinear};
    /// use candle_fused::nn::{Linear, QuantLinear, VarBuilder, VarMap};
    /// use candle_fused::quant::Scheme;
    ///
    /// let linear = Linear::new(Tensor::randn(0f32, 1., (8, 64), &Device::Cpu)?, None);
    /// let base = QuantLinear::quantize(linear, Scheme::mlx(4, 64))?;
    /// let vars = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    /// let layer = LoraLinear::from_packed(base, &LoraConfig { rank: 2, ..Default::default() }, vb)?;
    /// let x = Tensor::randn(0f32, 1., (2, 64), &Device::Cpu)?;
    /// let grads = layer.forward(&x)?.sqr()?.sum_all()?.backward()?;
    /// assert!(layer.adapter_vars().iter().all(|var| grads.get(var).is_some()));
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn from_packed(
        base: impl Into<PackedLinear>,
        config: &LoraConfig,
        vb: VarBuilder,
    ) -> Result<Self> {
        Self::plain_packed(base, vb.prefix())?.with_default(config, vb)
    }

    /// Without an adapter: a frozen layer with a packed weight.
    pub fn plain_packed(base: impl Into<PackedLinear>, name: impl Into<String>) -> Result<Self> {
        let base = base.into();
        Self::from_base(FrozenBase::packed(name.into(), &base)?, base.bias())
    }

    fn from_base(base: FrozenBase, bias: Option<&Tensor>) -> Result<Self> {
        Ok(Self {
            bias: base.frozen_bias(bias)?,
            adapters: Adapters::new(base),
        })
    }

    /// The frozen bias.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// A stock layer with the active adapter merged into its weight.
    pub fn to_stock(&self) -> Result<candle_nn::Linear> {
        let (weight, bias) = (self.adapters.merged_weight()?, self.bias.clone());
        Ok(candle_nn::Linear::new(weight, bias))
    }

    /// The layer in evaluation: without dropout.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }
}

adapted_layer!(LoraLinear, of Linear);

impl ModuleT for LoraLinear {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let (bias, base) = (self.bias.as_ref(), self.adapters.base());
        let adapter = match self.adapters.run() {
            Run::Base => return base.linear(x, bias, None),
            Run::Merged(w) => return frozen_linear(x, &w, bias),
            Run::Adapter(adapter) => adapter,
        };
        let (a, b) = adapter.factors(x.dtype())?;
        let low = Adapter {
            a: &a,
            b: &b,
            scale: adapter.config().scale() as f32,
            dropout: adapter.dropout(|| self.adapters.next_seed(), train),
        };
        match self.adapters.magnitude_factor(&adapter)? {
            None => base.linear(x, bias, Some(low)),
            Some(factor) => magnified(&base.linear(x, None, Some(low))?, &factor, bias),
        }
    }
}

/// `y ⊙ factor + bias` over the last dim.
pub(super) fn magnified(y: &Tensor, factor: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let factor = factor.to_dtype(y.dtype())?;
    match bias {
        Some(bias) => affine_act(y, &factor, &bias.to_dtype(y.dtype())?, Act::Identity),
        None => y.broadcast_mul(&factor),
    }
}
