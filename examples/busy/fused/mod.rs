//! The same model with this crate's layers.

pub use candle_fused::nn;

#[allow(clippy::duplicate_mod, reason = "the same file with other layers")]
#[path = "../model.rs"]
pub mod model;
