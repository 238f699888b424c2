//! The functions of `candle_nn` that models build their layers with, for a [`LoraBuilder`].

use super::{LoraBuilder, LoraConv2d, LoraEmbedding, LoraLinear};
use candle_core::Result;
use candle_nn::Conv2dConfig;

/// Functions that call the builder's method of the same name.
macro_rules! functions {
    ($($function:ident($($arg:ident: $type:ty),*) -> $layer:ty;)*) => {$(
        #[doc = concat!("[`candle_nn::", stringify!($function), "()`] with an adapter if it is a target.")]
        pub fn $function($($arg: $type,)* vb: super::LoraBuilder) -> candle_core::Result<$layer> {
            vb.$function($($arg),*)
        }
    )*};
}

functions! {
    linear(in_dim: usize, out_dim: usize) -> LoraLinear;
    linear_no_bias(in_dim: usize, out_dim: usize) -> LoraLinear;
    embedding(in_size: usize, out_size: usize) -> LoraEmbedding;
    conv2d(in_channels: usize, out_channels: usize, kernel_size: usize, config: Conv2dConfig) -> LoraConv2d;
    conv2d_no_bias(in_channels: usize, out_channels: usize, kernel_size: usize, config: Conv2dConfig) -> LoraConv2d;
}

/// [`candle_nn::linear_b`] with an adapter if it is a target.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: LoraBuilder) -> Result<LoraLinear> {
    match bias {
        true => linear(in_dim, out_dim, vb),
        false => linear_no_bias(in_dim, out_dim, vb),
    }
}
