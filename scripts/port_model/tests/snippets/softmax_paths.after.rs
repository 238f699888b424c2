use candle_core::{Result, Tensor, D};
use candle_fused::nn as nn;
use candle_fused::nn::{linear, ops, ops::softmax_last_dim as softmax_of_rows};

fn by_module(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, None)
}

fn by_alias(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, None)
}

fn from_the_root(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, None)
}

fn ported_by_hand(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, None)
}

fn inside(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    use nn::ops::softmax_last_dim;
    candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, None)
}
