//! What must hold at the end.

use crate::data::Batch;
use crate::layers::Pass;
use crate::model::{self, Model, Weights};
use crate::same_bits::same_bits;
use crate::shape::Shape;
use candle_core::{Device, Result};
use candle_fused::nn::lora::LoraModel;
use std::path::Path;

/// The frozen weights are still those that were saved.
pub fn unchanged(weights: &Weights, saved: &Path) -> Result<()> {
    for (name, weight) in candle_core::safetensors::load(saved, &Device::Cpu)? {
        if !weights
            .get(&name)
            .map(|w| same_bits(w, &weight))
            .transpose()?
            .unwrap_or(false)
        {
            candle_core::bail!("{name} has changed")
        }
    }
    Ok(())
}

/// A new model with the saved adapter gives what the trained one does.
pub fn reloaded(
    (trained, weights, shape): (&Model, &Weights, Shape),
    batch: &Batch,
    adapter: &Path,
) -> Result<()> {
    let (reloaded, _) = model::reloaded(weights, shape, adapter)?;
    let logits = |model: &Model| model.forward(&batch.inputs, Pass::Eval);
    match same_bits(&logits(trained)?, &logits(&reloaded)?)? {
        true => Ok(()),
        false => candle_core::bail!("the reloaded adapter gives other logits"),
    }
}

/// How far the merged model's logits are from the others', and the text of both.
pub fn merged(
    model: &Model,
    lora: &LoraModel,
    batch: &Batch,
    write: impl Fn() -> Result<String>,
) -> Result<(f32, [String; 2])> {
    let run = || Ok::<_, candle_core::Error>((model.forward(&batch.inputs, Pass::Eval)?, write()?));
    let (apart, first) = run()?;
    lora.merge()?;
    let (merged, second) = run()?;
    lora.unmerge();
    let difference = (apart - merged)?.abs()?.max_all()?.to_scalar::<f32>()?;
    if difference > 1e-3 {
        candle_core::bail!("merging changes the logits by {difference}");
    }
    Ok((difference, [first, second]))
}
