//! candle_nn with faster layers, all of them differentiable.
//!
//! All items of [`candle_nn`] are here under their own names and paths. The layers and functions of
//! this crate replace the originals, with the same constructors, `VarBuilder` paths and trait impls.
//! A model changes only its `use` line:
//!
//! ```diff
//! -use candle_nn::{conv2d, linear, rms_norm, Activation, Conv2d, Linear, Module, RmsNorm, VarBuilder};
//! +use candle_fused::nn::{conv2d, linear, rms_norm, Activation, Conv2d, Linear, Module, RmsNorm, VarBuilder};
//! ```
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_fused::nn::{rms_norm, Module, VarBuilder, VarMap};
//!
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let norm = rms_norm(3, 1e-5, vb.pp("norm"))?;
//! let x = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
//! let grads = norm.forward(&x)?.sum_all()?.backward()?;
//! assert!(vars.all_vars().iter().all(|v| grads.get(v).is_some()));
//! # candle_core::Result::Ok(())
//! ```

/// What a layer with a weight and a bias lets users read.
macro_rules! weight_and_bias {
    ($layer:ident) => {
        impl $layer {
            /// The weight.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// The bias, if there is one.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }
    };
}

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod checkpoint;
pub mod conv;
pub mod cpu_flash_attention;
pub mod embedding;
pub mod group_norm;
pub mod kv_cache;
pub mod layer_norm;
pub mod linear;
pub mod lora;
pub mod loss;
pub mod moe;
pub mod ops;
pub mod optim;
pub mod quantized;
mod replace_file;
pub mod rotary_emb;
pub mod transformer;

/// [`attention::varlen`] under its older name.
pub mod varlen_attention {
    pub use super::attention::varlen::*;
}

pub use activation::{Activation, IntoAct};
pub use batch_norm::{batch_norm, BatchNorm, BatchNormConfig};
pub use candle_nn::*;
pub use checkpoint::{checkpoint, checkpoint_many};
pub use conv::{
    conv1d, conv1d_no_bias, conv2d, conv2d_no_bias, conv_transpose1d, conv_transpose1d_no_bias,
    conv_transpose2d, conv_transpose2d_no_bias, Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d,
};
pub use embedding::{embedding, Embedding};
pub use group_norm::{group_norm, GroupNorm};
pub use layer_norm::{layer_norm, layer_norm_no_bias, rms_norm, LayerNorm, RmsNorm};
pub use linear::{linear, linear_b, linear_no_bias, Linear};
pub use ops::Dropout;
pub use optim::{
    clip_grad_norm, clip_grad_value, AdamW, AdamWOptions, GradAccumulator, Moments, Optimizer,
    ParamsAdamW, Rounding, SGD,
};
pub use quantized::{
    bit_linear, bit_linear_no_bias, BitLinear, BitLinearConfig, PackedBitLinear, QuantLinear,
};
pub use transformer::{Attention, Mlp, SwiGlu, TransformerBlock};
