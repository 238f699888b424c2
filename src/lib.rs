//! Fused, trainable ops and drop-in layers for Candle.

mod apply;
mod check;
mod cpu;
#[cfg(any(feature = "metal", test))]
pub mod metal;
pub mod ops;
