//! A character by its probability.

use crate::rng::Rng;
use candle_core::{Result, Tensor};
use candle_fused::ops;

/// Below 1: likelier characters get likelier still.
const TEMPERATURE: f64 = 0.5;

/// An index of the logits `[vocabulary]`.
pub fn draw(logits: &Tensor, rng: &mut Rng) -> Result<u32> {
    let weights = ops::softmax_last_dim(&(logits / TEMPERATURE)?)?.to_vec1::<f32>()?;
    Ok(pick(&weights, rng.unit() as f32))
}

/// The first index at which the weights have added up to more than `at`.
fn pick(weights: &[f32], at: f32) -> u32 {
    let mut sum = 0.0;
    let passed = |weight: &f32| {
        sum += weight;
        sum > at
    };
    let index = weights.iter().position(passed);
    index.unwrap_or(weights.len().saturating_sub(1)) as u32
}
