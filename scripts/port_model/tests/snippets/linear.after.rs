use candle_core::{Module, Result, Tensor};

struct Linear {
    weight: Tensor,
}

struct Other {
    weight: Tensor,
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let weight = self.weight.to_dtype(xs.dtype())?;
        candle_fused::ops::linear(xs, &weight, None)
    }
}

impl Module for Other {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_fused::ops::linear(x, &self.weight, None)
    }
}

impl Other {
    fn not_transposed(&self, x: &Tensor) -> Result<Tensor> {
        let w = match *x.dims() {
            [b1, b2, _, _] => self.weight.broadcast_left((b1, b2))?,
            [bsize, _, _] => self.weight.broadcast_left(bsize)?,
            _ => self.weight.clone(),
        };
        x.matmul(&w)
    }
}

fn owned(weight: &Tensor, x: Tensor) -> Result<Tensor> {
    candle_fused::ops::linear(&x, &weight, None)
}

fn rebound(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    candle_fused::ops::linear(&x, &weight, None)
}

fn in_a_closure(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let product = |x: Tensor| {
        candle_fused::ops::linear(&x, &weight, None)
    };
    product(x.sqr()?)
}
