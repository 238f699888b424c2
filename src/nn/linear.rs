//! [`mod@candle_nn::linear`] on fused kernels: the bias and the activation are applied to the product's sums before they are
//! written. Inputs may have any layout and any rank from 1.

use super::activation::IntoAct;
use crate::ops::{self, Act};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// `act(x·Wᵀ + bias)` over the last dim.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::nn::{Linear, Module};
/// use candle_fused::ops::Act;
///
/// let w = Tensor::new(&[[1f32, 2.], [3., -4.], [5., 6.]], &Device::Cpu)?;
/// let layer = Linear::new(w, None).with_act(Act::Relu);
/// let x = Tensor::new(&[[10f32, 100.]], &Device::Cpu)?;
/// assert_eq!(layer.forward(&x)?.to_vec2::<f32>()?, [[210., 0., 650.]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    act: Act,
}

impl Linear {
    /// With a weight `[out, in]` and a bias `[out]`.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self {
            weight,
            bias,
            act: Act::Identity,
        }
    }

    /// The same layer, followed by an activation: an [`Act`], or a stock `Activation`, for which it returns a `Result`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_fused::nn::{Activation, Linear};
    /// # use candle_fused::ops::Act;
    /// # let w = Tensor::new(&[[1f32]], &Device::Cpu)?;
    /// let layer = Linear::new(w, None).with_act(Activation::Gelu)?;
    /// assert_eq!(layer.act(), Act::GeluErf);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn with_act<A: IntoAct>(self, act: A) -> A::Out<Self> {
        act.with(|act| Self { act, ..self })
    }

    /// The same layer outside any graph: its weight and bias get no gradient.
    pub fn detached(&self) -> Self {
        Self {
            weight: self.weight.detach(),
            bias: self.bias.as_ref().map(Tensor::detach),
            act: self.act,
        }
    }

    /// The activation; `Act::Identity` if there is none.
    pub fn act(&self) -> Act {
        self.act
    }
}

weight_and_bias!(Linear);

impl From<candle_nn::Linear> for Linear {
    fn from(stock: candle_nn::Linear) -> Self {
        Self::new(stock.weight().clone(), stock.bias().cloned())
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.act {
            Act::Identity => ops::linear(x, &self.weight, self.bias.as_ref()),
            act => ops::linear_act(x, &self.weight, self.bias.as_ref(), act),
        }
    }
}

/// A linear layer with the variables `weight` and `bias` of `vb`.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear(in_dim, out_dim, vb).map(Linear::from)
}

/// A linear layer with the variable `weight` of `vb`.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_no_bias(in_dim, out_dim, vb).map(Linear::from)
}

/// [`linear`] or [`linear_no_bias`].
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear::from)
}
