use candle_core::{DType, Module, Result, Tensor, D};

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
        let x = candle_fused::nn::ops::softmax_last_dim(&x)?;
        let y = x.matmul(v)?;
        let x = (q.matmul(k)? * s)?;
        let x = candle_fused::nn::ops::softmax_last_dim(&x)?;
        y + x.matmul(v)?
    }

    fn softmax_is_used_again(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = q.matmul(k)?;
        let p = candle_fused::nn::ops::softmax_last_dim(&x)?;
        let y = p.matmul(v)?;
        Ok((y, p))
    }

    fn scores_are_used_again(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = q.matmul(k)?;
        let p = candle_fused::nn::ops::softmax_last_dim(&x)?;
        let y = p.matmul(v)?;
        Ok((y, x))
    }

    fn not_the_last_dim(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let p = candle_fused::nn::ops::softmax(&x, 1)?;
        p.matmul(v)
    }

    fn dropout_drops(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let x = candle_fused::nn::ops::softmax_last_dim(&x)?;
        let x = self.dropout.forward(&x)?;
        x.matmul(v)
    }

    fn mask_before_the_scale(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?.broadcast_add(mask)?;
        let x = (x * 0.5)?;
        let x = candle_fused::nn::ops::softmax_last_dim(&x)?;
        x.matmul(v)
    }

    fn something_in_between(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let q = mask.clone();
        let x = candle_fused::nn::ops::softmax_last_dim(&x)?;
        x.matmul(&q)
    }

    fn the_mask_is_used_again(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let mask = mask.broadcast_as(x.shape())?;
        let x = masked_fill(&x, &mask, f32::NEG_INFINITY)?;
        let x = candle_fused::nn::ops::softmax_last_dim(&x)?;
        x.matmul(v)? + mask
    }

    fn in_a_loop(&self, q: &Tensor, k: &Tensor, x: &Tensor, steps: usize) -> Result<Tensor> {
        let mut x = x.clone();
        let attn = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        for _ in 0..steps {
            x = attn.matmul(&x)?;
        }
        Ok(x)
    }

    fn while_it_lasts(&self, q: &Tensor, k: &Tensor, x: &Tensor) -> Result<()> {
        let attn = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        while self.goes_on(&attn.matmul(x)?) {}
    }

    fn in_a_block(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        let y = {
            let q = v.clone();
            p.matmul(&q)?
        };
        Ok(y)
    }

    fn in_a_block_at_the_end(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        {
            let q = v.clone();
            p.matmul(&q)
        }
    }

    fn for_each(&self, q: &Tensor, k: &Tensor, vs: &[Tensor]) -> Result<Vec<Tensor>> {
        let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        vs.iter().map(|k| p.matmul(k)).collect()
    }

    fn under_a_pattern(&self, q: &Tensor, k: &Tensor, c: usize) -> Result<Tensor> {
        let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        if let Some(k) = self.get(c) {
            p.matmul(&k)
        } else {
            self.get(0)
        }
    }

    fn in_a_closure(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        let f = |q: &Tensor| p.matmul(q);
        f(v)
    }

    fn assigned(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let mut q = q.clone();
        let p = candle_fused::nn::ops::softmax_last_dim(&q.matmul(k)?)?;
        let y = self.both(&mut q, p.matmul(v)?)?;
        y.matmul(&q)
    }

    fn the_scale_is_of_the_scores(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let x = (&x / (x.elem_count() as f64).sqrt())?;
        let p = candle_fused::nn::ops::softmax_last_dim(&x)?;
        p.matmul(v)
    }

    fn the_mask_is_of_the_scores(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let x = x.broadcast_add(&x)?;
        let p = candle_fused::nn::ops::softmax_last_dim(&x)?;
        p.matmul(v)
    }

    fn the_mask_takes_their_shape(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let s = q.matmul(k)?;
        let mut x = (&s * 0.5)?;
        if let Some(mask) = mask {
            let mask = mask.broadcast_as(s.shape())?;
            x = x.broadcast_add(&mask)?;
        }
        let p = candle_fused::nn::ops::softmax_last_dim(&x)?;
        p.matmul(v)
    }

    fn filled_by_their_size(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let x = q.matmul(k)?;
        let x = if x.dim(2)? == 1 {
            x
        } else {
            let mask = self.mask(8)?.broadcast_as(x.shape())?;
            masked_fill(&x, &mask, f32::NEG_INFINITY)?
        };
        let p = candle_fused::nn::ops::softmax_last_dim(&x)?;
        p.matmul(v)
    }
}

fn masked_fill(on_false: &Tensor, mask: &Tensor, on_true: f32) -> Result<Tensor> {
    let shape = mask.shape();
    let on_true = Tensor::new(on_true, on_false.device())?.broadcast_as(shape.dims())?;
    let m = mask.where_cond(&on_true, on_false)?;
    Ok(m)
}
