//! Pooling and upsampling made of `index_select`, `gather` and `stack`, whose gradients Candle has.

use candle_core::{Result, Tensor, ToUsize2};

/// Stands in for the trait of candle_fused: the methods have the same names, and the same arguments.
pub trait FusedTensorOps {
    fn max_pool2d_with_stride_fused<T: ToUsize2>(&self, size: T, stride: T) -> Result<Tensor>;

    fn avg_pool2d_with_stride_fused<T: ToUsize2>(&self, size: T, stride: T) -> Result<Tensor>;

    fn upsample_nearest1d_fused(&self, size: usize) -> Result<Tensor>;

    fn upsample_nearest2d_fused(&self, height: usize, width: usize) -> Result<Tensor>;

    fn max_pool2d_fused<T: ToUsize2>(&self, size: T) -> Result<Tensor> {
        let size = size.to_usize2();
        self.max_pool2d_with_stride_fused(size, size)
    }

    fn avg_pool2d_fused<T: ToUsize2>(&self, size: T) -> Result<Tensor> {
        let size = size.to_usize2();
        self.avg_pool2d_with_stride_fused(size, size)
    }
}

impl FusedTensorOps for Tensor {
    /// The first of equal values takes the whole gradient.
    fn max_pool2d_with_stride_fused<T: ToUsize2>(&self, size: T, stride: T) -> Result<Tensor> {
        let windows = windows(self, size.to_usize2(), stride.to_usize2())?;
        let first = windows.detach().argmax_keepdim(0)?;
        windows.gather(&first, 0)?.squeeze(0)
    }

    fn avg_pool2d_with_stride_fused<T: ToUsize2>(&self, size: T, stride: T) -> Result<Tensor> {
        windows(self, size.to_usize2(), stride.to_usize2())?.mean(0)
    }

    fn upsample_nearest1d_fused(&self, size: usize) -> Result<Tensor> {
        nearest(self, 2, size)
    }

    fn upsample_nearest2d_fused(&self, height: usize, width: usize) -> Result<Tensor> {
        nearest(&nearest(self, 2, height)?, 3, width)
    }
}

/// The elements of each window, by their place in it: `[size, batch, channels, height, width]`.
fn windows(x: &Tensor, size: (usize, usize), stride: (usize, usize)) -> Result<Tensor> {
    let every = |dim: usize, size: usize, stride: usize, from: usize| -> Result<Tensor> {
        let count = (x.dim(dim)? - size) / stride + 1;
        let places = (0..count).map(|i| (from + i * stride) as u32);
        Tensor::from_iter(places, x.device())
    };
    let mut out = vec![];
    for i in 0..size.0 {
        let rows = x.index_select(&every(2, size.0, stride.0, i)?, 2)?;
        for j in 0..size.1 {
            out.push(rows.index_select(&every(3, size.1, stride.1, j)?, 3)?);
        }
    }
    Tensor::stack(&out, 0)
}

fn nearest(x: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
    let from = x.dim(dim)?;
    let scale = from as f64 / size as f64;
    let places = (0..size).map(|i| ((i as f64 * scale) as usize).min(from - 1) as u32);
    x.index_select(&Tensor::from_iter(places, x.device())?, dim)
}
