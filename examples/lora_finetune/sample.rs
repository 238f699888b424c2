//! Text from a model.

use crate::data::Vocabulary;
use crate::layers::Pass;
use crate::model::Model;
use crate::rng::Rng;
use candle_core::{Device, Result, Tensor};
use candle_fused::ops;

/// Below 1: likelier characters get likelier still.
const TEMPERATURE: f64 = 0.5;

/// Continues a prompt by so many characters. The same seed gives the same text.
pub fn sample(
    model: &Model,
    vocabulary: &Vocabulary,
    prompt: &str,
    count: usize,
    seed: u64,
) -> Result<String> {
    let mut rng = Rng::new(seed);
    let mut ids = vocabulary.encode(prompt)?;
    for _ in 0..count {
        let recent = &ids[ids.len().saturating_sub(model.context())..];
        let input = Tensor::new(recent, &Device::Cpu)?.unsqueeze(0)?;
        let logits = model.forward(&input, Pass::Eval)?.detach();
        let last = (logits.get(0)?.get(recent.len() - 1)? / TEMPERATURE)?;
        let weights = ops::softmax_last_dim(&last)?.to_vec1::<f32>()?;
        ids.push(draw(&weights, rng.unit() as f32));
    }
    Ok(vocabulary.decode(&ids))
}

/// The first index at which the weights have added up to more than `at`.
fn draw(weights: &[f32], at: f32) -> u32 {
    let mut sum = 0.0;
    let passed = |weight: &f32| {
        sum += weight;
        sum > at
    };
    let index = weights.iter().position(passed);
    index.unwrap_or(weights.len().saturating_sub(1)) as u32
}
