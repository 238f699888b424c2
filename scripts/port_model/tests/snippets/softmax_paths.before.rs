use candle_core::{Result, Tensor, D};
use candle_nn as nn;
use candle_nn::{linear, ops, ops::softmax_last_dim as softmax_of_rows};

fn by_module(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let p = ops::softmax(&q.matmul(k)?, D::Minus1)?;
    p.matmul(v)
}

fn by_alias(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let p = nn::ops::softmax_last_dim(&q.matmul(k)?)?;
    p.matmul(v)
}

fn from_the_root(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let p = ::candle_nn::ops::softmax_last_dim(&q.matmul(k)?)?;
    p.matmul(v)
}

fn ported_by_hand(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
    p.matmul(v)
}

fn inside(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    use nn::ops::softmax_last_dim;
    let p = softmax_last_dim(&q.matmul(k)?)?;
    p.matmul(v)
}
