//! [`candle_nn::conv`] on fused kernels: the bias and an optional activation are applied before a result is written, and
//! input, weight and bias get gradients at every stride, dilation and number of groups.

/// What users can read of a layer with a weight, a bias and a config, and what makes one of a stock layer.
macro_rules! parameters {
    ($layer:ident, $config:ident) => {
        weight_and_bias!($layer);

        impl $layer {
            pub fn config(&self) -> &$config {
                &self.config
            }
        }

        impl From<candle_nn::$layer> for $layer {
            fn from(stock: candle_nn::$layer) -> Self {
                let (weight, bias) = (stock.weight().clone(), stock.bias().cloned());
                Self::new(weight, bias, *stock.config())
            }
        }
    };
}

mod conv2d;

pub use candle_nn::conv::{
    Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
};
pub use conv2d::Conv2d;

use crate::nn::activation::IntoAct;
use crate::ops::{self, Act};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// A layer with a weight, a bias and a config, whose forward is the function `$op`.
macro_rules! layer {
    ($(#[$doc:meta])* $layer:ident, $config:ident, $op:path) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            weight: Tensor,
            bias: Option<Tensor>,
            config: $config,
            act: Act,
        }

        impl $layer {
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> Self {
                Self {
                    weight,
                    bias,
                    config,
                    act: Act::Identity,
                }
            }

            /// The same layer, followed by an activation: an [`Act`], or a stock `Activation`, for which it returns a
            /// `Result`.
            pub fn with_act<A: IntoAct>(self, act: A) -> A::Out<Self> {
                act.with(|act| Self { act, ..self })
            }

            pub fn act(&self) -> Act {
                self.act
            }
        }

        parameters!($layer, $config);

        impl Module for $layer {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                $op(x, &self.weight, self.bias.as_ref(), self.config, self.act)
            }
        }
    };
}

layer!(
    /// A convolution of `[batch, channels, length]`.
    Conv1d,
    Conv1dConfig,
    ops::conv1d
);
layer!(
    /// A transposed convolution of `[batch, channels, length]`.
    ConvTranspose1d,
    ConvTranspose1dConfig,
    ops::conv_transpose1d
);
layer!(
    /// A transposed convolution of `[batch, channels, height, width]`.
    ConvTranspose2d,
    ConvTranspose2dConfig,
    ops::conv_transpose2d
);

/// Constructors with `candle_nn`'s names, variables and initial values.
macro_rules! functions {
    ($($function:ident($config:ident) -> $layer:ident, $variables:literal;)*) => {$(
        #[doc = concat!("A [`", stringify!($layer), "`] with the ", $variables, " of `vb`.")]
        pub fn $function(
            in_channels: usize,
            out_channels: usize,
            kernel_size: usize,
            cfg: $config,
            vb: VarBuilder,
        ) -> Result<$layer> {
            candle_nn::$function(in_channels, out_channels, kernel_size, cfg, vb).map(Into::into)
        }
    )*};
}

functions! {
    conv1d(Conv1dConfig) -> Conv1d, "variables `weight` and `bias`";
    conv1d_no_bias(Conv1dConfig) -> Conv1d, "variable `weight`";
    conv2d(Conv2dConfig) -> Conv2d, "variables `weight` and `bias`";
    conv2d_no_bias(Conv2dConfig) -> Conv2d, "variable `weight`";
    conv_transpose1d(ConvTranspose1dConfig) -> ConvTranspose1d, "variables `weight` and `bias`";
    conv_transpose1d_no_bias(ConvTranspose1dConfig) -> ConvTranspose1d, "variable `weight`";
    conv_transpose2d(ConvTranspose2dConfig) -> ConvTranspose2d, "variables `weight` and `bias`";
    conv_transpose2d_no_bias(ConvTranspose2dConfig) -> ConvTranspose2d, "variable `weight`";
}
