use candle_core::{Module, Result, Tensor, D};

struct Attention {
    dropout: Random,
    scale: Tensor,
}

impl Module for Random {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.affine(0.5, 0.)
    }
}

impl Attention {
    fn scale_may_be_a_tensor(&self, q: &Tensor, k: &Tensor, v: &Tensor, s: &Tensor) -> Result<Tensor> {
        let x = (q.matmul(k)? * self.scale)?;
        let x = candle_nn::ops::softmax_last_dim(&x)?;
        let y = x.matmul(v)?;
        let x = (q.matmul(k)? * s)?;
        let x = candle_nn::ops::softmax_last_dim(&x)?;
        y + x.matmul(v)?
    }

    fn softmax_is_used_again(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = q.matmul(k)?;
        let p = candle_nn::ops::softmax_last_dim(&x)?;
        let y = p.matmul(v)?;
        Ok((y, p))
    }

    fn scores_are_used_again(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = q.matmul(k)?;
        let p = candle_nn::ops::softmax_last_dim(&x)?;
        let y = p.matmul(v)?;
        Ok((y, x))
    }

    fn not_the_last_dim(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let p = candle_nn::ops::softmax(&x, 1)?;
        p.matmul(v)
    }

    fn dropout_drops(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let x = candle_nn::ops::softmax_last_dim(&x)?;
        let x = self.dropout.forward(&x)?;
        x.matmul(v)
    }

    fn mask_before_the_scale(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?.broadcast_add(mask)?;
        let x = (x * 0.5)?;
        let x = candle_nn::ops::softmax_last_dim(&x)?;
        x.matmul(v)
    }

    fn something_in_between(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let q = mask.clone();
        let x = candle_nn::ops::softmax_last_dim(&x)?;
        x.matmul(&q)
    }

    fn the_mask_is_used_again(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let mask = mask.broadcast_as(x.shape())?;
        let x = masked_fill(&x, &mask, f32::NEG_INFINITY)?;
        let x = candle_nn::ops::softmax_last_dim(&x)?;
        x.matmul(v)? + mask
    }
}

fn masked_fill(on_false: &Tensor, mask: &Tensor, on_true: f32) -> Result<Tensor> {
    let shape = mask.shape();
    let on_true = Tensor::new(on_true, on_false.device())?.broadcast_as(shape.dims())?;
    let m = mask.where_cond(&on_true, on_false)?;
    Ok(m)
}
