//! Building blocks of transformers: attention with its projections, MLPs, and the block that is made of both. Each is plain
//! Candle underneath: linear layers, norms and ops of this crate that can be used one by one as well.
//!
//! Weights have the names and shapes of Hugging Face's models or of PyTorch's own layers; constructors without a `VarBuilder`
//! take any layers.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_fused::nn::kv_cache::KvCache;
//! use candle_fused::nn::transformer::{llama_block, AttentionSizes, BlockConfig, RotaryTables};
//! use candle_fused::nn::{VarBuilder, VarMap};
//!
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let config = BlockConfig {
//!     attention: AttentionSizes::new(64, 4).with_kv_heads(2),
//!     intermediate: 128,
//!     eps: 1e-5,
//! };
//! let tables = RotaryTables::new(16, 32, 1e4, DType::F32, &Device::Cpu)?;
//! let block = llama_block(config, tables, vb.pp("model.layers.0"))?;
//!
//! // Training: whole sequences, with gradients to every variable.
//! let x = Tensor::randn(0f32, 1., (2, 5, 64), &Device::Cpu)?;
//! let grads = block.forward(&x, None, None)?.sqr()?.sum_all()?.backward()?;
//! assert!(vars.all_vars().iter().all(|v| grads.get(v).is_some()));
//!
//! // Generation: token by token, behind those of a cache.
//! let block = block.detached();
//! let mut cache = KvCache::new(2, 32);
//! let whole = block.forward(&x, None, None)?.narrow(1, 4, 1)?;
//! block.forward(&x.narrow(1, 0, 4)?, None, Some(&mut cache))?;
//! let last = block.forward(&x.narrow(1, 4, 1)?, None, Some(&mut cache))?;
//! let change = (last - whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
//! assert!(change < 1e-4);
//! # candle_core::Result::Ok(())
//! ```

mod attention;
mod block;
mod feed_forward;
mod rotary;

pub use attention::{attention, packed_attention, Attention, AttentionSizes, Projections};
pub use block::{llama_block, BlockConfig, TransformerBlock};
pub use feed_forward::{mlp, swiglu, FeedForward, Mlp, SwiGlu};
pub use rotary::RotaryTables;
