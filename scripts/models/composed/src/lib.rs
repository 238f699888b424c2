//! `candle_nn` with the layers and functions whose kernels have no gradient replaced by their composed forms: what a user of
//! stock Candle has to write to train a model, and what gradients are compared with.

mod resizing;

pub use resizing::FusedTensorOps;

pub mod nn {
    pub use candle_nn::*;
    pub use layer_norm::{layer_norm, layer_norm_no_bias, rms_norm, LayerNorm, RmsNorm};

    pub mod ops {
        use candle_core::{Result, Tensor, D};
        pub use candle_nn::ops::*;

        pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
            candle_nn::ops::softmax(xs, D::Minus1)
        }

        pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
            rms_norm_slow(xs, alpha, eps)
        }

        pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
            layer_norm_slow(xs, alpha, beta, eps)
        }
    }

    pub mod rotary_emb {
        pub use candle_nn::rotary_emb::{rope_i_slow as rope_i, rope_slow as rope, rope_thd};
    }

    pub mod layer_norm {
        use candle_core::{Module, Result, Tensor, D};
        pub use candle_nn::layer_norm::LayerNormConfig;
        use candle_nn::{Init, VarBuilder};

        fn ones(size: usize, vb: &VarBuilder) -> Result<Tensor> {
            vb.get_with_hints(size, "weight", Init::Const(1.))
        }

        #[derive(Clone, Debug)]
        pub struct LayerNorm {
            weight: Tensor,
            bias: Option<Tensor>,
            remove_mean: bool,
            eps: f64,
        }

        impl LayerNorm {
            pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
                Self {
                    weight,
                    bias: Some(bias),
                    remove_mean: true,
                    eps,
                }
            }

            pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
                Self {
                    weight,
                    bias: None,
                    remove_mean: true,
                    eps,
                }
            }

            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }

        impl Module for LayerNorm {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let x = match self.remove_mean {
                    true => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?,
                    false => x.clone(),
                };
                let variance = x.sqr()?.mean_keepdim(D::Minus1)?;
                let x = x
                    .broadcast_div(&(variance + self.eps)?.sqrt()?)?
                    .broadcast_mul(&self.weight)?;
                match &self.bias {
                    Some(bias) => x.broadcast_add(bias),
                    None => Ok(x),
                }
            }
        }

        pub fn layer_norm<C: Into<LayerNormConfig>>(
            size: usize,
            config: C,
            vb: VarBuilder,
        ) -> Result<LayerNorm> {
            let config = config.into();
            let bias = || vb.get_with_hints(size, "bias", Init::Const(0.));
            Ok(LayerNorm {
                weight: ones(size, &vb)?,
                bias: config.affine.then(bias).transpose()?,
                remove_mean: config.remove_mean,
                eps: config.eps,
            })
        }

        pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
            Ok(LayerNorm::new_no_bias(ones(size, &vb)?, eps))
        }

        #[derive(Clone, Debug)]
        pub struct RmsNorm(LayerNorm);

        impl RmsNorm {
            pub fn new(weight: Tensor, eps: f64) -> Self {
                Self(LayerNorm {
                    weight,
                    bias: None,
                    remove_mean: false,
                    eps,
                })
            }

            pub fn forward_diff(&self, x: &Tensor) -> Result<Tensor> {
                self.forward(x)
            }
        }

        impl Module for RmsNorm {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.0.forward(x)
            }
        }

        pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
            Ok(RmsNorm::new(ones(size, &vb)?, eps))
        }
    }
}
