use candle_core::{Module, Result, Tensor, D};
use candle_nn::ops::softmax;

struct Dropout;

impl Module for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

struct Attention {
    dropout: Dropout,
    scale: f64,
    cap: Option<f64>,
    head_dim: usize,
}

impl Attention {
    fn plain(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let scores = (q.matmul(&k.t()?)? / (self.head_dim as f64).sqrt())?;
        let probs = candle_nn::ops::softmax_last_dim(&scores)?;
        probs.matmul(v)
    }

    fn inline(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let attn = softmax(&q.matmul(&k.t()?)?, D::Minus1)?;
        let attn = attn.matmul(v)?.transpose(1, 2)?;
        Ok(attn)
    }

    fn all(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let scale = 1f64 / f64::sqrt(self.head_dim as f64);
        let att = {
            let _enter = self.span.enter();
            (q.silu()?.matmul(&k.transpose(2, 3)?)? * scale)?
        };
        let att = match self.cap {
            None => att,
            Some(c) => ((att / c)?.tanh()? * c)?,
        };
        let att = match mask {
            None => att,
            Some(mask) => att.broadcast_add(mask)?,
        };
        let att = {
            let _enter = self.span.enter();
            softmax(&att, candle_core::D::Minus1)?
        };
        let att = self.dropout.forward(&att)?;
        att.matmul(&v.contiguous()?)
    }

    fn in_steps(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let mut scores = q.matmul(k)?;
        if let Some(mask) = mask {
            let mask = mask.unsqueeze(0)?;
            scores = scores.broadcast_add(&mask)?;
        }
        let probs = candle_nn::ops::softmax_last_dim(&scores)?;
        let y = probs.matmul(v)?;
        Ok(y)
    }
}
