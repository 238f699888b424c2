//! The convolution of images. It keeps the transform of its weight, and a batch norm can be folded into it.

use crate::check;
use crate::nn::activation::IntoAct;
use crate::nn::batch_norm::BatchNorm;
use crate::ops::conv2d::{with_bias, Conv2d as Op};
use crate::ops::{Act, ConvAlgo};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Conv2dConfig;

/// A convolution of `[batch, channels, height, width]`.
///
/// On the CPU, a layer whose weight needs no gradient keeps the Winograd transform of the weight for the next call, for itself
/// and its clones. It takes five times the memory of the weight in f32, and is made for kernels of 3 by 3 on images large
/// enough. If the weight is overwritten (through a variable that it was detached from), the transform is made again. The
/// config's `cudnn_fwd_algo` isn't used.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::{batch_norm, conv2d_no_bias, Conv2dConfig, Module, VarBuilder};
/// use candle_fused::ops::Act;
///
/// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let conv = conv2d_no_bias(3, 8, 3, Conv2dConfig { padding: 1, ..Default::default() }, vb.pp("conv"))?;
/// let norm = batch_norm(8, 1e-5, vb.pp("norm"))?;
/// let layer = conv.fold_batch_norm(&norm)?.with_act(Act::Relu);
/// let x = Tensor::ones((1, 3, 16, 16), DType::F32, &Device::Cpu)?;
/// assert_eq!(layer.forward(&x)?.dims(), [1, 8, 16, 16]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    config: Conv2dConfig,
    op: Op,
}

impl Conv2d {
    pub fn new(weight: Tensor, bias: Option<Tensor>, config: Conv2dConfig) -> Self {
        let op = Op::new(config, Act::Identity, ConvAlgo::Auto);
        // A weight that is trained changes with every step: a cache would never be of use.
        let op = match weight.track_op() {
            true => op,
            false => op.with_weight_cache(),
        };
        Self {
            weight,
            bias,
            config,
            op,
        }
    }

    /// The same layer, followed by an activation: an [`Act`], or a stock `Activation`, for which it returns a `Result`.
    pub fn with_act<A: IntoAct>(mut self, act: A) -> A::Out<Self> {
        act.with(|act| {
            self.op.act = act;
            self
        })
    }

    /// The same layer, computed by the given algorithm.
    pub fn with_algo(mut self, algo: ConvAlgo) -> Self {
        self.op.algo = algo;
        self
    }

    pub fn act(&self) -> Act {
        self.op.act
    }

    pub fn algo(&self) -> ConvAlgo {
        self.op.algo
    }

    /// This layer and the batch norm that follows it, ours or the stock one, as one layer for inference. Its weight and bias get
    /// no gradients. If an activation follows the norm, add it to the result by [`Conv2d::with_act`].
    pub fn fold_batch_norm<N: Clone + Into<BatchNorm>>(&self, norm: &N) -> Result<Self> {
        let Self { weight, bias, .. } = self.absorb_bn(norm)?;
        let bias = bias.map(|bias| bias.detach());
        Ok(Self::new(weight.detach(), bias, self.config).with_algo(self.op.algo))
    }

    /// [`Conv2d::fold_batch_norm`] with gradients to the variables of both layers.
    ///
    /// In evaluation the norm is `(z − mean) · s + beta` for each channel, with `s = gamma / √(var + eps)`. The weight
    /// becomes `w · s`, the bias `(bias − mean) · s + beta`, computed in f32 and rounded once.
    pub fn absorb_bn<N: Clone + Into<BatchNorm>>(&self, bn: &N) -> Result<Self> {
        let bn: BatchNorm = bn.clone().into();
        self.check_norm(&bn)?;
        let dtype = self.weight.dtype();
        let wide = |t: &Tensor| match dtype {
            DType::F64 => t.to_dtype(DType::F64),
            _ => t.to_dtype(DType::F32),
        };
        let (mean, var) = (bn.running_mean().detach(), bn.running_var().detach());
        let mut scale = (wide(&var)? + bn.eps())?.sqrt()?.recip()?;
        let mut shift = wide(&mean)?.neg()?;
        if let Some(bias) = &self.bias {
            shift = (shift + wide(bias)?)?;
        }
        if let Some((gamma, _)) = bn.weight_and_bias() {
            scale = (scale * wide(gamma)?)?;
        }
        shift = (shift * &scale)?;
        if let Some((_, beta)) = bn.weight_and_bias() {
            shift = (shift + wide(beta)?)?;
        }
        let weight = wide(&self.weight)?.broadcast_mul(&scale.reshape(((), 1, 1, 1))?)?;
        let (weight, bias) = (weight.to_dtype(dtype)?, shift.to_dtype(dtype)?);
        Ok(Self::new(weight, Some(bias), self.config).with_algo(self.op.algo))
    }

    fn check_norm(&self, norm: &BatchNorm) -> Result<()> {
        let (outputs, channels) = (self.weight.dims4()?.0, norm.running_mean().elem_count());
        let message = match self.op.act {
            Act::Identity if outputs == channels => return Ok(()),
            Act::Identity => {
                format!(
                    "got a norm of {channels} channels, expected the {outputs} of the convolution"
                )
            }
            act => {
                format!("got a layer with {act:?} before the norm, expected with_act after folding")
            }
        };
        Err(check::error("Conv2d::fold_batch_norm", message))
    }
}

parameters!(Conv2d, Conv2dConfig);

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let op = self.op.clone();
        op.apply("conv2d", &with_bias(x, &self.weight, self.bias.as_ref()))
    }
}
