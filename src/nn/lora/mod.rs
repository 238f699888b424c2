//! Low-rank adapters on frozen layers, with the files of PEFT and of mlx-lm.
//!
//! - [`LoraLinear`], [`LoraEmbedding`] and [`LoraConv2d`] wrap a stock layer. Each has any number of named [`Adapters`],
//!   which are trained, switched, merged and unmerged. The base of a [`LoraLinear`] may also be a weight in one of Candle's
//!   GGUF types, a [`PackedBitLinear`](super::PackedBitLinear) or a [`QuantLinear`](super::QuantLinear).
//! - [`LoraBuilder`] replaces a model's `VarBuilder` and puts adapters on the modules that [`Targets`] name. It ends in a
//!   [`LoraModel`], which holds the adapters of all layers, and loads and saves them.
//!
//! The base never gets a gradient. In training, call `layer.forward_t(x, true)`, which applies the adapter's dropout; in
//! evaluation, `layer.forward(x)`. The layers implement Candle's `ModuleT` and not `Module`: Candle implements `ModuleT` for
//! every `Module` by ignoring `train`, so no type can implement both.

mod adapter;
mod adapters;
mod builder;
mod config;
mod conv2d;
mod embedding;
mod file_pair;
mod files;
mod frozen_base;
mod functions;
mod linear;
mod mlx;
mod model;
mod peft;
mod save_load;
mod target;

pub use adapter::LoraAdapter;
pub use adapters::Adapters;
pub use builder::LoraBuilder;
pub use config::LoraConfig;
pub use conv2d::LoraConv2d;
pub use embedding::LoraEmbedding;
pub use frozen_base::Kind;
pub use functions::{conv2d, conv2d_no_bias, embedding, linear, linear_b, linear_no_bias};
pub use linear::LoraLinear;
pub use mlx::{MlxConfig, MlxParameters};
pub use model::LoraModel;
pub use peft::{Patterns, PeftConfig};
pub use target::Targets;

/// The name of the adapter that a layer or a model is built with, as in PEFT.
pub const DEFAULT_ADAPTER: &str = "default";
