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
        let w = match *xs.dims() {
            [b1, b2, _, _] => weight.broadcast_left((b1, b2))?.t()?,
            [bsize, _, _] => weight.broadcast_left(bsize)?.t()?,
            _ => weight.t()?,
        };
        xs.matmul(&w)
    }
}

impl Module for Other {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let w = match *x.dims() {
            [b1, b2, _, _] => self.weight.broadcast_left((b1, b2))?.t()?,
            [bsize, _, _] => self.weight.broadcast_left(bsize)?.t()?,
            _ => self.weight.t()?,
        };
        x.matmul(&w)
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
    let w = match *x.dims() {
        [b1, b2, _, _] => weight.broadcast_left((b1, b2))?.t()?,
        [bsize, _, _] => weight.broadcast_left(bsize)?.t()?,
        _ => weight.t()?,
    };
    x.matmul(&w)
}

fn rebound(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let w = match *x.dims() {
        [b1, b2, _, _] => weight.broadcast_left((b1, b2))?.t()?,
        [bsize, _, _] => weight.broadcast_left(bsize)?.t()?,
        _ => weight.t()?,
    };
    x.matmul(&w)
}

fn in_a_closure(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let product = |x: Tensor| {
        let w = match *x.dims() {
            [b1, b2, _, _] => weight.broadcast_left((b1, b2))?.t()?,
            [bsize, _, _] => weight.broadcast_left(bsize)?.t()?,
            _ => weight.t()?,
        };
        x.matmul(&w)
    };
    product(x.sqr()?)
}
