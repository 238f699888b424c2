use crate::ops::softmax;
use candle_core::{Result, Tensor, D};

mod inner {
    use super::other;
    use candle_core::{Result, Tensor, D};

    pub fn through_super(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let p = super::ops::softmax(&q.matmul(k)?, D::Minus1)?;
        p.matmul(v)
    }

    pub fn in_another_crate(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let p = other::ops::softmax(&q.matmul(k)?, D::Minus1)?;
        p.matmul(v)
    }
}

fn imported(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let p = softmax(&q.matmul(k)?, D::Minus1)?;
    p.matmul(v)
}

fn with_a_path(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let p = crate::ops::softmax_last_dim(&q.matmul(k)?)?;
    p.matmul(v)
}

fn given(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let softmax = |x: &Tensor, dim: D| candle_fused::nn::ops::softmax(&x.neg()?, dim);
    let p = softmax(&q.matmul(k)?, D::Minus1)?;
    p.matmul(v)
}

fn not_the_own(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, None)
}
