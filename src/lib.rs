//! Fused, trainable ops and drop-in layers for Candle.

#[cfg(any(feature = "metal", test))]
pub mod metal;
