//! Low-rank adapters on frozen layers, with the files of PEFT and of mlx-lm.
//!
//! - [`LoraLinear`], [`LoraEmbedding`] and [`LoraConv2d`] take a stock layer and a [`LoraConfig`], and have any number of
//!   named [`Adapters`] that are trained, switched, merged and unmerged. A weight in one of Candle's GGUF types, or
//!   packed ([`PackedBitLinear`](super::PackedBitLinear), [`QuantLinear`](super::QuantLinear)), serves as the base of a
//!   [`LoraLinear`] too.
//! - [`LoraBuilder`] stands in for a model's `VarBuilder` and puts adapters on the modules that [`Targets`] name.
//!   [`LoraModel`], which it ends with, has all of them together, and loads and saves them.
//!
//! The base never gets a gradient. The layers are `ModuleT`, so that training's dropout is asked for; their own `forward`
//! is that of evaluation. (Candle makes a `ModuleT` of every `Module`, one that knows no training, so that no type can
//! be both.)

mod adapter;
mod adapters;
mod builder;
mod config;
mod conv2d;
mod embedding;
mod files;
mod functions;
mod linear;
mod mlx;
mod model;
mod peft;
mod save_load;
mod site;
mod target;

pub use adapter::LoraAdapter;
pub use adapters::Adapters;
pub use builder::LoraBuilder;
pub use config::LoraConfig;
pub use conv2d::LoraConv2d;
pub use embedding::LoraEmbedding;
pub use functions::{conv2d, conv2d_no_bias, embedding, linear, linear_b, linear_no_bias};
pub use linear::LoraLinear;
pub use mlx::{MlxConfig, MlxParameters};
pub use model::LoraModel;
pub use peft::{Patterns, PeftConfig};
pub use site::Kind;
pub use target::Targets;

/// The name of the adapter that a layer or a model is built with, as in PEFT.
pub const DEFAULT_ADAPTER: &str = "default";
