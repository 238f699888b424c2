//! The model with stock Candle's layers.

pub use candle_nn as nn;

#[path = "../model.rs"]
pub mod model;
