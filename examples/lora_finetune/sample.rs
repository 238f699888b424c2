//! Text from a model.

use crate::data::Vocabulary;
use crate::draw::draw;
use crate::layers::Pass;
use crate::model::Model;
use crate::rng::Rng;
use crate::train::Learner;
use candle_core::{Device, Result, Tensor};

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
        ids.push(draw(&logits.get(0)?.get(recent.len() - 1)?, &mut rng)?);
    }
    Ok(vocabulary.decode(&ids))
}
