//! [`candle_nn::activation`] on fused kernels.

use crate::check;
use crate::ops::{self, Act};
use candle_core::{Error, Module, Result, Tensor};

pub use candle_nn::activation::*;

/// [`candle_nn::Activation`] on fused kernels, with the same names in config files. `Gelu` is the exact function, by erf.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize, serde::Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    #[default]
    #[serde(alias = "gelu")]
    Gelu,
    #[serde(alias = "gelu_new")]
    NewGelu,
    Relu,
    Relu2,
    Relu6,
    Silu,
    Sigmoid,
    HardSigmoid,
    Swiglu,
    Swish,
    Mish,
    HardSwish,
    Elu(f64),
    LeakyRelu(f64),
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluPytorchTanh,
}

impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        // Stock's ReLU takes integers too.
        if *self == Self::Relu && xs.dtype().is_int() {
            return xs.relu();
        }
        match (Act::try_from(*self), self) {
            (Ok(act), _) => ops::activation(xs, act),
            (Err(_), Self::Swiglu) => ops::swiglu_packed(xs),
            (Err(_), _) => candle_nn::Activation::from(*self).forward(xs),
        }
    }
}

/// The fused activation that computes the same function. `Gelu` is the exact one, [`Act::GeluErf`]; `NewGelu` and
/// `GeluPytorchTanh` are [`Act::GeluTanh`]. The others without a fused form are an error.
///
/// ```
/// use candle_fused::nn::Activation;
/// use candle_fused::ops::Act;
/// assert_eq!(Act::try_from(Activation::Gelu)?, Act::GeluErf);
/// assert_eq!(Activation::try_from(Act::GeluTanh)?, Activation::GeluPytorchTanh);
/// assert!(Act::try_from(Activation::Mish).is_err());
/// # candle_core::Result::Ok(())
/// ```
impl TryFrom<Activation> for Act {
    type Error = Error;
    fn try_from(activation: Activation) -> Result<Self> {
        Ok(match activation {
            Activation::Gelu => Act::GeluErf,
            Activation::NewGelu | Activation::GeluPytorchTanh => Act::GeluTanh,
            Activation::Relu => Act::Relu,
            Activation::Relu2 => Act::Relu2,
            Activation::Silu | Activation::Swish => Act::Silu,
            Activation::Sigmoid => Act::Sigmoid,
            Activation::LeakyRelu(slope) => Act::LeakyRelu(slope),
            other => {
                let message = format!("got {other:?}, expected an activation that ops can fuse");
                return Err(check::error("Act::try_from", message));
            }
        })
    }
}

/// The stock activation that computes the same function. `Identity`, `Tanh` and `Softplus` have none: an error.
impl TryFrom<Act> for Activation {
    type Error = Error;
    fn try_from(act: Act) -> Result<Self> {
        Ok(match act {
            Act::GeluErf => Activation::Gelu,
            Act::GeluTanh => Activation::GeluPytorchTanh,
            Act::Relu => Activation::Relu,
            Act::Relu2 => Activation::Relu2,
            Act::Silu => Activation::Silu,
            Act::Sigmoid => Activation::Sigmoid,
            Act::LeakyRelu(slope) => Activation::LeakyRelu(slope),
            Act::Identity | Act::Tanh | Act::Softplus => {
                let message = format!("got {act:?}, expected one of the stock activations");
                return Err(check::error("Activation::try_from", message));
            }
        })
    }
}

/// An [`Act`], or a stock activation that a model's config names, for the `with_act` of layers.
///
/// `with_act(Act::Silu)` returns the layer; `with_act(config.hidden_act)` returns a `Result`, an error where there is no
/// fused form.
pub trait IntoAct {
    /// A layer, or a `Result` of one.
    type Out<L>;
    /// Calls `layer` with the fused activation.
    fn with<L>(self, layer: impl FnOnce(Act) -> L) -> Self::Out<L>;
}

impl IntoAct for Act {
    type Out<L> = L;
    fn with<L>(self, layer: impl FnOnce(Act) -> L) -> L {
        layer(self)
    }
}

impl IntoAct for Activation {
    type Out<L> = Result<L>;
    fn with<L>(self, layer: impl FnOnce(Act) -> L) -> Result<L> {
        self.try_into().map(layer)
    }
}

impl IntoAct for candle_nn::Activation {
    type Out<L> = Result<L>;
    fn with<L>(self, layer: impl FnOnce(Act) -> L) -> Result<L> {
        Activation::from(self).with(layer)
    }
}

/// Converts in both directions, variant by variant.
macro_rules! same_variants {
    ($($plain:ident),*; $($with:ident),*) => {
        impl From<candle_nn::Activation> for Activation {
            fn from(stock: candle_nn::Activation) -> Self {
                match stock {
                    $(candle_nn::Activation::$plain => Self::$plain,)*
                    $(candle_nn::Activation::$with(x) => Self::$with(x),)*
                }
            }
        }
        impl From<Activation> for candle_nn::Activation {
            fn from(ours: Activation) -> Self {
                match ours {
                    $(Activation::$plain => Self::$plain,)*
                    $(Activation::$with(x) => Self::$with(x),)*
                }
            }
        }
    };
}
same_variants!(
    Gelu, NewGelu, Relu, Relu2, Relu6, Silu, Sigmoid, HardSigmoid, Swiglu, Swish, Mish, HardSwish,
    GeluPytorchTanh; Elu, LeakyRelu
);
