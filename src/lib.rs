//! Fused, trainable ops and drop-in layers for Candle.

mod apply;
mod check;
mod cpu;
pub mod ext;
#[cfg(any(feature = "metal", test))]
pub mod metal;
pub mod nn;
pub mod ops;

pub use ext::FusedTensorOps;
