//! Fused, trainable ops and drop-in layers for Candle.

mod check;
mod cpu;
pub mod ops;
