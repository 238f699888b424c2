//! Linear layers with weights of 1 to 8 bits, and the files that hold them.
//!
//! | layer | weight | input | |
//! |---|---|---|---|
//! | [`BitLinear`] | floats, rounded to 1 or 1.58 bits at each call | rounded to 8 bits for each token | trains |
//! | [`PackedBitLinear`] | 1 or 2 bits | rounded to 8 bits for each token | by [`bitlinear`](crate::ops::bitlinear()) |
//! | [`QuantLinear`] | 1, 2, 4 or 8 bits | as it is, or rounded to 8 bits for each group | by [`mixed_matmul`](crate::ops::mixed_matmul()) |
//!
//! ```
//! use candle_core::{safetensors, DType, Device, Tensor};
//! use candle_fused::nn::{bit_linear, BitLinear, BitLinearConfig, Module, PackedBitLinear, VarBuilder, VarMap};
//! use candle_fused::nn::{AdamW, Optimizer};
//!
//! // Train: float weights, rounded to −1, 0 and 1 times a scale at each call.
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let up: BitLinear = bit_linear(64, 128, BitLinearConfig::TERNARY, vb.pp("up"))?;
//! let x = Tensor::randn(0f32, 1., (8, 64), &Device::Cpu)?;
//! let mut adam = AdamW::new_lr(vars.all_vars(), 1e-3)?;
//! adam.backward_step(&up.forward(&x)?.sqr()?.mean_all()?)?;
//!
//! // Run: 2 bits for each weight, products of integers. Save, and load again.
//! let packed: PackedBitLinear = up.freeze()?;
//! let y = packed.forward(&x)?;
//! # let path = std::env::temp_dir().join("candle-fused-doc-quantized.safetensors");
//! safetensors::save(&packed.tensors("up")?.into_iter().collect(), &path)?;
//! let tensors = safetensors::load(&path, &Device::Cpu)?;
//! let again = PackedBitLinear::from_tensors(&tensors, "up")?;
//! assert_eq!(again.forward(&x)?.to_vec2::<f32>()?, y.to_vec2::<f32>()?);
//! # std::fs::remove_file(&path)?;
//! # candle_core::Result::Ok(())
//! ```
//!
//! Files of other packages: [`hf_bit_linear`] reads BitNet checkpoints of transformers, [`mlx_linear`] models that MLX quantised,
//! and [`Gguf`] TQ1_0 and TQ2_0 tensors.
//!
//! # Files of our own
//!
//! [`PackedLinear::tensors`] returns the tensors of a layer, from which [`PackedLinear::load`] makes the same layer again, bit for
//! bit. They describe themselves, and the tensors of several layers may be in one safetensors file:
//!
//! | tensor | |
//! |---|---|
//! | `scheme` | u8: a JSON text, such as `{"format":1,"layer":"bit_linear","shape":[8,16],"grid":"ternary",..}` |
//! | `weight` | u8 `[out, bytes of a row]`: the codes, packed along a row as [`Packing`](crate::quant::Packing) says |
//! | `scales` | f32 `[1]`, `[out, 1]` or `[out, in / group]` |
//! | `offsets` | f32, as the scales: zero points or biases, of the schemes that have them |
//! | `bias` | `[out]`, of layers that have one |
//! | `rms_norm.weight` | `[in]`, of layers whose norm has one |
//!
//! The text names the layer, the weight's shape, the parts of its [`Scheme`](crate::quant::Scheme), the dtype of the
//! bias and of the norm's weight if there are any, and the norm's eps. (Floats are strings, so that every reader parses the
//! same bits.) It is a tensor instead of file metadata: it stays with its layer when files are merged or split, and a
//! `VarBuilder` finds it.

mod bit_linear;
mod description;
mod gguf;
mod gguf_header;
mod gguf_ternary;
mod hf;
mod mlx;
mod packed_bit_linear;
mod packed_linear;
mod quant_linear;
mod save_load;
mod sub_norm;

pub use bit_linear::{bit_linear, bit_linear_no_bias, BitLinear, BitLinearConfig, SubNormConfig};
pub use gguf::{Gguf, GgufTensor};
pub use hf::{hf_bit_linear, hf_bit_linear_no_bias, hf_weight, HfConfig, LinearClass};
pub use mlx::{mlx_linear, mlx_linear_no_bias, mlx_weight, MlxQuantization};
pub use packed_bit_linear::PackedBitLinear;
pub use packed_linear::PackedLinear;
pub use quant_linear::QuantLinear;
pub use sub_norm::SubNorm;

/// Tensors by name, as [`candle_core::safetensors::load`] returns them.
pub type Tensors = std::collections::HashMap<String, candle_core::Tensor>;
