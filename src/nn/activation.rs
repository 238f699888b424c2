//! [`candle_nn::activation`] on fused kernels.

use crate::ops::{self, Act};
use candle_core::{Module, Result, Tensor};

pub use candle_nn::activation::*;

/// [`candle_nn::Activation`], with the same serde names.
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
        use candle_nn::Activation as Stock;
        let act = match *self {
            Self::Gelu => Act::GeluErf,
            Self::NewGelu | Self::GeluPytorchTanh => Act::Gelu,
            Self::Relu => Act::Relu,
            Self::Relu2 => Act::Relu2,
            Self::Silu | Self::Swish => Act::Silu,
            Self::Sigmoid => Act::Sigmoid,
            Self::LeakyRelu(slope) => Act::LeakyRelu(slope as f32),
            Self::Swiglu => return ops::swiglu_packed(xs),
            Self::Relu6 => return Stock::Relu6.forward(xs),
            Self::HardSigmoid => return Stock::HardSigmoid.forward(xs),
            Self::HardSwish => return Stock::HardSwish.forward(xs),
            Self::Mish => return Stock::Mish.forward(xs),
            Self::Elu(alpha) => return Stock::Elu(alpha).forward(xs),
        };
        ops::activation(xs, act)
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
