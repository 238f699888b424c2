use candle_core::{Result, Tensor, D};

fn plain(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    // Scores of all heads.
    // (batch, heads, queries, keys)
    // Not the square root: see the paper.
    /* half */
    // over keys
    // Values.
    candle_fused::nn::attention::softmax_attention(&q, &k.t()?, v, 0.5, None, None)
}

fn masked(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    // Causal, or nothing.
    // One for all heads.
    // Weighted.
    // The values.
    let added_mask: Option<Tensor> = if let Some(mask) = mask { let mask = mask.unsqueeze(0)?; // of rank 4
        // In the dtype of the scores.
        let mask = mask.contiguous()?; Some(Tensor::clone(&mask)) } else { None };
    let y = candle_fused::nn::attention::softmax_attention(&q, k, v, 1., None, added_mask.as_ref())?;
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
