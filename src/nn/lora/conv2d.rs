//! A convolution with adapters.

use super::adapters::{adapted_layer, Adapters, Run};
use super::frozen_base::{FrozenBase, Kind};
use super::LoraConfig;
use crate::nn::conv::Conv2d;
use crate::ops::lora::AdapterDropout;
use crate::ops::{self, Act};
use candle_core::{DType, ModuleT, Result, Tensor};
use candle_nn::{Conv2dConfig, VarBuilder};

/// A frozen convolution with a low-rank adapter: `y = conv(x, W) + scale · conv₁ₓ₁(conv(dropout(x), A), B) + bias`, where
/// A has the base's kernel size, stride, padding and dilation, and `rank` output channels.
///
/// With groups, as in PEFT, A reads all channels and only B is grouped; such a layer can't be merged and has no DoRA.
/// (PEFT's A leaves out the dilation, and fails on a dilated base.)
///
/// The adapter's share is computed in f32 also beside a 16-bit base, and added to the base's rounded output.
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
    /// Without an adapter: a frozen convolution. `name` is its path in a model.
    pub fn plain(base: impl Into<Conv2d>, name: impl Into<String>) -> Result<Self> {
        let base = base.into();
        let config = *base.config();
        let kind = Kind::Conv2d(config.groups);
        let frozen = FrozenBase::new(name.into(), kind, base.weight().clone())?;
        frozen.check_act(base.act())?;
        Ok(Self {
            bias: frozen.frozen_bias(base.bias())?,
            adapters: Adapters::new(frozen),
            config,
        })
    }

    /// The frozen bias.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The stride, padding, dilation and groups of the base.
    pub fn config(&self) -> &Conv2dConfig {
        &self.config
    }

    /// A stock layer with the active adapter merged into its kernel.
    pub fn to_stock(&self) -> Result<candle_nn::Conv2d> {
        let (weight, bias) = (self.adapters.merged_weight()?, self.bias.clone());
        Ok(candle_nn::Conv2d::new(weight, bias, self.config))
    }

    /// The layer in evaluation: without dropout.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_t(x, false)
    }

    fn convolved(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        ops::conv2d(x, weight, bias, self.config, Act::Identity)
    }

    /// `conv₁ₓ₁(conv(x, A), B)`
    fn low(&self, x: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let groups = self.config.groups;
        let all_channels = Conv2dConfig {
            groups: 1,
            ..self.config
        };
        let pointwise = Conv2dConfig {
            groups,
            ..Default::default()
        };
        let low = ops::conv2d(x, a, None, all_channels, Act::Identity)?;
        ops::conv2d(&low, b, None, pointwise, Act::Identity)
    }
}

adapted_layer!(LoraConv2d, of Conv2d);

impl ModuleT for LoraConv2d {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let (bias, weight) = (self.bias.as_ref(), self.adapters.base().dense()?);
        let adapter = match self.adapters.run() {
            Run::Base => return self.convolved(x, weight, bias),
            Run::Merged(weight) => return self.convolved(x, &weight, bias),
            Run::Adapter(adapter) => adapter,
        };
        // 16-bit sums over many channels may overflow before B brings them down again.
        let dtype = match x.dtype() {
            DType::F16 | DType::BF16 if x.elem_count() > 0 => DType::F32,
            dtype => dtype,
        };
        let wide = x.to_dtype(dtype)?;
        let dropped = match adapter.dropout(|| self.adapters.next_seed(), train) {
            Some(AdapterDropout { p, seed }) => ops::dropout(&wide, p, seed)?,
            None => wide,
        };
        let (a, b) = adapter.factors(dtype)?;
        let low = (self.low(&dropped, &a, &b)? * adapter.config().scale())?;
        let beside = |base: Tensor| (base.to_dtype(dtype)? + &low)?.to_dtype(x.dtype());
        match self.adapters.magnitude_factor(&adapter)? {
            None => beside(self.convolved(x, weight, bias)?),
            Some(factor) => magnified(&beside(self.convolved(x, weight, None)?)?, &factor, bias),
        }
    }
}

/// `y ⊙ factor + bias` of each channel.
fn magnified(y: &Tensor, factor: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let per_channel = |t: &Tensor| t.reshape((1, (), 1, 1));
    let factor = per_channel(&factor.to_dtype(y.dtype())?)?;
    match bias {
        Some(bias) => ops::affine_act(y, &factor, &per_channel(bias)?, Act::Identity),
        None => y.broadcast_mul(&factor),
    }
}
