//! The functions of `candle_nn` that models build their layers with, for a [`LoraBuilder`].

use super::{LoraBuilder, LoraConv2d, LoraEmbedding, LoraLinear};
use candle_core::Result;
use candle_nn::Conv2dConfig;

/// [`candle_nn::linear()`] with an adapter if it is a target.
pub fn linear(in_dim: usize, out_dim: usize, vb: LoraBuilder) -> Result<LoraLinear> {
    vb.linear(in_dim, out_dim)
}

/// [`candle_nn::linear_no_bias`] with an adapter if it is a target.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: LoraBuilder) -> Result<LoraLinear> {
    vb.linear_no_bias(in_dim, out_dim)
}

/// [`candle_nn::linear_b`] with an adapter if it is a target.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: LoraBuilder) -> Result<LoraLinear> {
    match bias {
        true => vb.linear(in_dim, out_dim),
        false => vb.linear_no_bias(in_dim, out_dim),
    }
}

/// [`candle_nn::embedding()`] with an adapter if it is a target.
pub fn embedding(in_size: usize, out_size: usize, vb: LoraBuilder) -> Result<LoraEmbedding> {
    vb.embedding(in_size, out_size)
}

/// [`candle_nn::conv2d`] with an adapter if it is a target.
pub fn conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: LoraBuilder,
) -> Result<LoraConv2d> {
    vb.conv2d(in_channels, out_channels, kernel_size, config)
}

/// [`candle_nn::conv2d_no_bias`] with an adapter if it is a target.
pub fn conv2d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    config: Conv2dConfig,
    vb: LoraBuilder,
) -> Result<LoraConv2d> {
    vb.conv2d_no_bias(in_channels, out_channels, kernel_size, config)
}
