//! A convolution with adapters.

use super::adapters::{Adapters, Run};
use super::convolve::conv2d;
use super::site::{Kind, Site, Weight};
use super::{LoraConfig, DEFAULT_ADAPTER};
use crate::ops;
use crate::ops::lora::Dropout;
use candle_core::{ModuleT, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, VarBuilder};
use std::ops::Deref;

/// A frozen convolution with a low-rank adapter: `y = conv(x, W) + scale · conv₁ₓ₁(conv(dropout(x), A), B) + bias`, where
/// A has the base's kernel size, stride, padding and dilation, and `rank` output channels.
///
/// As in PEFT, of a base in groups A sees all channels and B alone is grouped, so that such a layer can't be merged and has
/// no DoRA. (PEFT's A leaves out the dilation, and fails on a dilated base.)
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::lora::{LoraConfig, LoraConv2d};
/// use candle_fused::nn::{Conv2d, Conv2dConfig, VarBuilder, VarMap};
///
/// let weight = Tensor::randn(0f32, 1., (6, 4, 3, 3), &Device::Cpu)?;
/// let base = Conv2d::new(weight, None, Conv2dConfig { padding: 1, ..Default::default() });
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let layer = LoraConv2d::new(base, &LoraConfig { rank: 2, ..Default::default() }, vb)?;
/// let x = Tensor::randn(0f32, 1., (1, 4, 8, 8), &Device::Cpu)?;
/// assert_eq!(layer.forward(&x)?.dims(), [1, 6, 8, 8]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LoraConv2d {
    adapters: Adapters,
    bias: Option<Tensor>,
    config: Conv2dConfig,
}

impl LoraConv2d {
    /// With one adapter, "default", whose variables come from `vb`.
    pub fn new(base: Conv2d, config: &LoraConfig, vb: VarBuilder) -> Result<Self> {
        let layer = Self::plain(base, vb.prefix())?;
        layer.add_adapter(DEFAULT_ADAPTER, config, vb)?;
        Ok(layer)
    }

    /// Without an adapter: a frozen convolution. `name` is its path in a model.
    pub fn plain(base: Conv2d, name: impl Into<String>) -> Result<Self> {
        let config = *base.config();
        let kind = Kind::Conv2d(config.groups);
        let site = Site::new(name.into(), kind, base.weight().clone())?;
        Ok(Self {
            bias: site.frozen_bias(base.bias())?,
            adapters: Adapters::new(site),
            config,
        })
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    pub fn config(&self) -> &Conv2dConfig {
        &self.config
    }

    /// A stock layer with the active adapter merged into its kernel.
    pub fn to_stock(&self) -> Result<Conv2d> {
        let weight = self.merged_weight()?;
        Ok(Conv2d::new(weight, self.bias.clone(), self.config))
    }

    /// The layer in evaluation: without dropout.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }

    /// Without the bias.
    fn convolved(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let Weight::Plain(weight) = &self.adapters.site().weight else {
            return Err(self
                .adapters
                .site()
                .error("a quantised kernel given, a plain one accepted"));
        };
        let adapter = match self.adapters.run() {
            Run::Base => return conv2d(x, weight, self.config),
            Run::Merged(weight) => return conv2d(x, &weight, self.config),
            Run::Adapter(adapter) => adapter,
        };
        let base = conv2d(x, weight, self.config)?;
        let x = match adapter.dropout(|| self.adapters.next_seed(), train) {
            Some(Dropout { p, seed }) => ops::dropout(x, p, seed)?,
            None => x.clone(),
        };
        let (a, b) = adapter.factors(x.dtype())?;
        let low = conv2d(
            &x,
            &a,
            Conv2dConfig {
                groups: 1,
                ..self.config
            },
        )?;
        let pointwise = Conv2dConfig {
            groups: self.config.groups,
            ..Default::default()
        };
        let low = conv2d(&low, &b, pointwise)?;
        let y = (base + (low * adapter.config().scale())?)?;
        match self.adapters.magnitude_factor(&adapter)? {
            None => Ok(y),
            Some(factor) => y.broadcast_mul(&per_channel(&factor.to_dtype(y.dtype())?)?),
        }
    }
}

fn per_channel(v: &Tensor) -> Result<Tensor> {
    v.reshape((1, (), 1, 1))
}

impl ModuleT for LoraConv2d {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let y = self.convolved(x, train)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(&per_channel(bias)?),
            None => Ok(y),
        }
    }
}

impl Deref for LoraConv2d {
    type Target = Adapters;
    fn deref(&self) -> &Adapters {
        &self.adapters
    }
}
