//! A small transformer that predicts the next character.

use crate::data::Batch;
use crate::init;
use crate::layers::{add, attention, cross_entropy, norm, swiglu, Embedding, Linear, Pass, Source};
use crate::rng::Rng;
use crate::shape::Shape;
use crate::train::Learner;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::lora::{LoraBuilder, LoraConfig, LoraModel, DEFAULT_ADAPTER};
use candle_fused::nn::{RmsNorm, VarBuilder, VarMap};
use std::collections::HashMap;
use std::path::Path;

/// All linear layers.
const TARGETS: [&str; 8] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "lm_head",
];

pub struct Model {
    shape: Shape,
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

struct Layer {
    attention_norm: RmsNorm,
    /// Queries, keys and values.
    inputs: [Linear; 3],
    output: Linear,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(source: Source, shape: Shape) -> Result<Self> {
        let (dim, hidden) = (shape.dim, shape.hidden);
        let (attention, mlp) = (source.pp("self_attn"), source.pp("mlp"));
        Ok(Layer {
            attention_norm: source.pp("input_layernorm").norm(dim)?,
            inputs: [
                attention.pp("q_proj").linear(dim, dim)?,
                attention.pp("k_proj").linear(dim, dim)?,
                attention.pp("v_proj").linear(dim, dim)?,
            ],
            output: attention.pp("o_proj").linear(dim, dim)?,
            mlp_norm: source.pp("post_attention_layernorm").norm(dim)?,
            gate: mlp.pp("gate_proj").linear(dim, hidden)?,
            up: mlp.pp("up_proj").linear(dim, hidden)?,
            down: mlp.pp("down_proj").linear(hidden, dim)?,
        })
    }

    fn forward(&self, x: &Tensor, shape: Shape, pass: Pass) -> Result<Tensor> {
        let normed = norm(&self.attention_norm, x, pass)?;
        let x = add(x, &self.attend(&normed, shape, pass)?, pass)?;
        let normed = norm(&self.mlp_norm, &x, pass)?;
        let gate = self.gate.forward(&normed, pass)?;
        let up = self.up.forward(&normed, pass)?;
        let mlp = self.down.forward(&swiglu(&gate, &up, pass)?, pass)?;
        add(&x, &mlp, pass)
    }

    fn attend(&self, x: &Tensor, shape: Shape, pass: Pass) -> Result<Tensor> {
        let (batch, context, dim) = x.dims3()?;
        let width = dim / shape.heads;
        let heads = |layer: &Linear| {
            let y = layer.forward(x, pass)?;
            let y = y.reshape((batch, context, shape.heads, width))?;
            y.transpose(1, 2)?.contiguous()
        };
        let [q, k, v] = &self.inputs;
        let scores = heads(q)?.matmul(&heads(k)?.t()?)?;
        let weights = attention(&scores, (width as f32).powf(-0.5), pass)?;
        let y = weights.matmul(&heads(v)?)?.transpose(1, 2)?;
        self.output
            .forward(&y.reshape((batch, context, dim))?, pass)
    }
}

impl Model {
    pub fn new(source: Source, shape: Shape) -> Result<Self> {
        let model = source.pp("model");
        let layer = |i: usize| Layer::new(model.pp("layers").pp(i), shape);
        Ok(Model {
            shape,
            tokens: model
                .pp("embed_tokens")
                .embedding(shape.vocabulary, shape.dim)?,
            positions: model
                .pp("embed_positions")
                .embedding(shape.context, shape.dim)?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: model.pp("norm").norm(shape.dim)?,
            head: source.pp("lm_head").linear(shape.dim, shape.vocabulary)?,
        })
    }

    /// `[batch, context]` to `[batch, context, vocabulary]`.
    pub fn forward(&self, ids: &Tensor, pass: Pass) -> Result<Tensor> {
        let positions = Tensor::arange(0, ids.dim(1)? as u32, ids.device())?;
        let positions = self.positions.forward(&positions)?;
        let mut x = add(&self.tokens.forward(ids)?, &positions, pass)?;
        for layer in &self.layers {
            x = layer.forward(&x, self.shape, pass)?;
        }
        self.head.forward(&norm(&self.norm, &x, pass)?, pass)
    }

    pub fn loss(&self, batch: &Batch, pass: Pass) -> Result<Tensor> {
        let logits = self.forward(&batch.inputs, pass)?.flatten_to(1)?;
        cross_entropy(&logits, &batch.targets, pass)
    }
}

impl Learner for Model {
    fn context(&self) -> usize {
        self.shape.context
    }
    fn training_loss(&self, batch: &Batch) -> Result<Tensor> {
        self.loss(batch, Pass::Train)
    }
    fn test_loss(&self, batch: &Batch) -> Result<Tensor> {
        self.loss(batch, Pass::Eval)
    }
}

/// A model with all of its weights to be trained.
pub fn untrained(shape: Shape, rng: &mut Rng) -> Result<(Model, VarMap)> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let model = Model::new(Source::Trained(vb), shape)?;
    init::fill(&vars, shape.layers, rng)?;
    Ok((model, vars))
}

/// Weights as plain tensors, by name.
pub type Weights = HashMap<String, Tensor>;

/// A frozen model with new adapters beside its linear layers.
pub fn adapted(
    weights: &Weights,
    shape: Shape,
    config: &LoraConfig,
    rng: &mut Rng,
) -> Result<(Model, LoraModel)> {
    let builder = LoraBuilder::new(frozen(weights), config, TARGETS)?;
    let model = Model::new(Source::Adapted(builder.clone()), shape)?;
    let lora = builder.finish()?;
    for layer in lora.layers() {
        // As it was drawn, Kaiming-uniform, but from our seed. B stays at zero.
        if let Some(adapter) = layer.adapter(DEFAULT_ADAPTER) {
            let a = adapter.a();
            a.set(&rng.uniform(a.shape(), (a.dim(1)? as f64).powf(-0.5))?)?;
        }
    }
    lora.set_seed(rng.next());
    Ok((model, lora))
}

/// The same with an adapter from PEFT's files.
pub fn reloaded(weights: &Weights, shape: Shape, adapter: &Path) -> Result<(Model, LoraModel)> {
    let builder = LoraBuilder::from_peft(frozen(weights), adapter)?;
    let model = Model::new(Source::Adapted(builder.clone()), shape)?;
    Ok((model, builder.finish()?))
}

fn frozen(weights: &Weights) -> VarBuilder<'static> {
    VarBuilder::from_tensors(weights.clone(), DType::F32, &Device::Cpu)
}
