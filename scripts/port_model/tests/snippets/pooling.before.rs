//! A stem, and what follows.
#![allow(dead_code)]

#[cfg(test)]
use std::fmt;

use candle_core::{Result, Tensor, D};

fn stem(x: &Tensor) -> Result<Tensor> {
    x.pad_with_same(D::Minus1, 1, 1)?
        .pad_with_same(D::Minus2, 1, 1)?
        .max_pool2d_with_stride(3, 2)?
        .avg_pool2d((1, 2))
}

fn up(x: &Tensor, skip: &Tensor) -> Result<Tensor> {
    let x = x.interpolate2d(skip.dim(D::Minus2)?, skip.dim(D::Minus1)?)?;
    x.upsample_bilinear2d(8, 8, false)?.flatten_from(2)?.upsample_nearest1d(7)
}

mod empty {
    fn nothing(kernel: usize) -> usize {
        // x.max_pool2d(2)
        max_pool2d(kernel)
    }
    fn max_pool2d(kernel: usize) -> usize {
        kernel
    }
}

mod inner {
    use super::*;

    pub fn last(x: &Tensor) -> Result<Tensor> {
        x.avg_pool2d_with_stride(7, 1)
    }

    mod ready {
        use candle_fused::FusedTensorOps;

        pub fn up(x: &super::Tensor) -> candle_core::Result<super::Tensor> {
            x.upsample_nearest2d(4, 4)?.max_pool2d_fused(2)
        }
    }
}
