//! The signatures of candle-fused that ported snippets use.

use candle_core::{Result, Tensor, ToUsize2};

pub mod nn {
    pub use candle_nn::{linear, Module};

    pub enum Activation {
        Relu,
    }

    impl Module for Activation {
        fn forward(&self, x: &super::Tensor) -> super::Result<super::Tensor> {
            Ok(x.clone())
        }
    }

    pub mod attention {
        use candle_core::{Result, Tensor};

        pub fn softmax_attention(
            q: &Tensor,
            kt: &Tensor,
            v: &Tensor,
            scale: f64,
            softcap: Option<f64>,
            mask: Option<&Tensor>,
        ) -> Result<Tensor> {
            let _ = (kt, v, scale, softcap, mask);
            Ok(q.clone())
        }
    }

    pub mod ops {
        use candle_core::{Result, Tensor};
        pub use candle_nn::ops::*;

        macro_rules! functions {
            ($($name:ident),*) => {
                $(pub fn $name(x: &Tensor) -> Result<Tensor> {
                    Ok(x.clone())
                })*
            };
        }
        functions!(gelu, gelu_erf, silu, tanh);
    }
}

pub mod ops {
    use candle_core::{Result, Tensor};

    pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let _ = (weight, bias);
        Ok(x.clone())
    }
}

macro_rules! methods {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        pub trait FusedTensorOps {
            $(fn $name(&self, $($arg: $ty),*) -> Result<Tensor>;)*
        }
        impl FusedTensorOps for Tensor {
            $(fn $name(&self, $($arg: $ty),*) -> Result<Tensor> {
                $(let _ = $arg;)*
                Ok(self.clone())
            })*
        }
    };
}

methods! {
    avg_pool2d_fused(size: impl ToUsize2);
    avg_pool2d_with_stride_fused(size: impl ToUsize2, stride: impl ToUsize2);
    max_pool2d_fused(size: impl ToUsize2);
    max_pool2d_with_stride_fused(size: impl ToUsize2, stride: impl ToUsize2);
    upsample_bilinear2d_fused(height: usize, width: usize, align_corners: bool);
    upsample_nearest1d_fused(size: usize);
    upsample_nearest2d_fused(height: usize, width: usize);
}
