use candle_core::{Result, Tensor, D};

fn plain(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    // Scores of all heads.
    let scores = q.matmul(&k.t()?)?; // (batch, heads, queries, keys)
    // Not the square root: see the paper.
    let scores = (scores * /* half */ 0.5)?;
    let probs = candle_nn::ops::softmax_last_dim(&scores)?; // over keys
    // Values.
    probs.matmul(v)
}

fn masked(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let mut scores = q.matmul(k)?;
    // Causal, or nothing.
    if let Some(mask) = mask {
        // One for all heads.
        let mask = mask.unsqueeze(0)?; // of rank 4
        // In the dtype of the scores.
        let mask = mask.contiguous()?;
        scores = scores.broadcast_add(&mask)?;
    }
    let probs = candle_nn::ops::softmax_last_dim(&scores)?;
    let y = probs
        // Weighted.
        .matmul(
            // The values.
            v,
        )?;
    Ok(y)
}

struct Linear {
    weight: Tensor,
}

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let w = match *x.dims() {
            // One for each head.
            [b1, b2, _, _] => self.weight.broadcast_left((b1, b2))?.t()?,
            [bsize, _, _] => self.weight.broadcast_left(bsize)?.t()?,
            _ => self.weight.t()?,
        };
        x.matmul(&w)
    }
}
