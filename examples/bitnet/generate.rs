//! Text from a model, a character at a time.

use crate::draw::draw;
use crate::model::Model;
use crate::rng::Rng;
use candle_core::{Device, Result, Tensor};

/// The prompt, continued up to `count` characters. The same seed gives the same text.
pub fn generate(model: &Model, prompt: &[u32], count: usize, seed: u64) -> Result<Vec<u32>> {
    let mut rng = Rng::new(seed);
    let mut ids = prompt.to_vec();
    let mut cache = model.cache();
    while ids.len() < count {
        let new = Tensor::new(&ids[cache.len()..], &Device::Cpu)?.unsqueeze(0)?;
        let logits = model.forward(&new, Some(&mut cache))?.get(0)?;
        ids.push(draw(&logits.get(logits.dim(0)? - 1)?, &mut rng)?);
    }
    Ok(ids)
}
