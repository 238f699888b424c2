// The models, by name. This file is compiled once for each variant of candle-transformers, in a module that has its `models`.

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;

/// One forward pass. Each call gives the same result.
pub type Run = Box<dyn FnMut() -> Result<Tensor>>;

/// A config as its file would be.
fn config<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> Result<T> {
    serde_json::from_value(json).map_err(candle_core::Error::wrap)
}

/// Token ids `[batch, tokens]` below `vocabulary`.
fn ids(batch: usize, tokens: usize, vocabulary: u32) -> Result<Tensor> {
    let id = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocabulary;
    let ids: Vec<u32> = (0..batch * tokens).map(id).collect();
    Tensor::from_vec(ids, (batch, tokens), &Device::Cpu)
}

/// An image, or anything else with values from −1 to 1.
fn wave(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let value = |i: usize| ((i % 100_003) as f32 * 0.37).sin();
    let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// A prompt of 128 tokens, or the token after it. Clones of the model start from the same cache.
macro_rules! language_model {
    ($name:expr, $model:expr, $vocabulary:expr, |$m:ident, $ids:ident, $at:ident| $forward:expr) => {{
        let mut model = $model;
        let ids = if $name.ends_with("decode") {
            let ($m, $ids, $at) = (&mut model, &ids(1, 128, $vocabulary)?, 0usize);
            let _ = $at;
            $forward?;
            ids(1, 1, $vocabulary)?
        } else {
            ids(1, 128, $vocabulary)?
        };
        let at = if $name.ends_with("decode") {
            128usize
        } else {
            0
        };
        Box::new(move || {
            let mut fresh = model.clone();
            let ($m, $ids, $at) = (&mut fresh, &ids, at);
            let _ = $at;
            $forward
        })
    }};
}

/// A model that is a `Module` of one image.
macro_rules! vision {
    ($model:expr, $dims:expr, $dtype:expr) => {{
        let (model, x) = ($model, wave(&$dims, $dtype)?);
        Box::new(move || model.forward(&x))
    }};
}

/// The model of this name, with the weights of `vb`, ready to run.
pub fn build(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    match name.split(' ').next().unwrap_or("") {
        "bert" | "bertenc" | "distilbert" | "modernbert" | "t5" | "flan-t5" | "clip"
        | "whisper" => encoder(name, vb),
        "mamba" | "rwkv5" => recurrent(name, vb),
        "quantized_llama" => quantized(name),
        "vit" | "dinov2" | "sam" | "sd" | "segformer" => image_model(name, vb),
        "llama" | "qwen2" | "qwen3" | "mistral" | "phi" | "phi3" | "gemma2" | "gemma3"
        | "falcon" | "stablelm" => decoder(name, vb),
        _ => convolutional(name, vb),
    }
}
