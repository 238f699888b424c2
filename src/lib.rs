//! Fused, trainable ops and drop-in layers for Candle.
