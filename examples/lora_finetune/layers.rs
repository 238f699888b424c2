//! The model's layers, with the same names whether they are trained or stand frozen beside an adapter.

use candle_core::{Result, Tensor};
use candle_fused::nn::lora::{self, LoraBuilder, LoraEmbedding, LoraLinear};
use candle_fused::nn::{self, Module, ModuleT, RmsNorm, VarBuilder};
use candle_fused::ops::{self, Act, Adapter, Mask};

const EPS: f64 = 1e-5;

/// Which ops a pass runs on.
#[derive(Clone, Copy, PartialEq)]
pub enum Pass {
    /// Ours, with dropout.
    Train,
    /// Ours.
    Eval,
    /// Stock Candle's differentiable ones, to compare with.
    Stock,
}

/// Where the layers come from.
pub enum Source<'a> {
    Trained(VarBuilder<'a>),
    Adapted(LoraBuilder<'a>),
}

impl Source<'_> {
    pub fn pp(&self, name: impl ToString) -> Self {
        match self {
            Source::Trained(vb) => Source::Trained(vb.pp(name)),
            Source::Adapted(lb) => Source::Adapted(lb.pp(name)),
        }
    }

    pub fn linear(&self, from: usize, to: usize) -> Result<Linear> {
        Ok(match self {
            Source::Trained(vb) => Linear::Trained(nn::linear_no_bias(from, to, vb.clone())?),
            Source::Adapted(lb) => Linear::Adapted(lora::linear_no_bias(from, to, lb.clone())?),
        })
    }

    pub fn embedding(&self, entries: usize, dim: usize) -> Result<Embedding> {
        Ok(match self {
            Source::Trained(vb) => Embedding::Trained(nn::embedding(entries, dim, vb.clone())?),
            Source::Adapted(lb) => Embedding::Adapted(lora::embedding(entries, dim, lb.clone())?),
        })
    }

    pub fn norm(&self, dim: usize) -> Result<RmsNorm> {
        let vb = match self {
            Source::Trained(vb) => vb.clone(),
            Source::Adapted(lb) => lb.vb(),
        };
        nn::rms_norm(dim, EPS, vb)
    }
}

pub enum Linear {
    Trained(nn::Linear),
    Adapted(LoraLinear),
}

impl Linear {
    pub fn forward(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        match (self, pass) {
            (Linear::Trained(layer), Pass::Stock) => {
                candle_nn::Linear::new(layer.weight().clone(), None).forward(x)
            }
            (Linear::Trained(layer), _) => layer.forward(x),
            (Linear::Adapted(layer), Pass::Stock) => stock_lora(layer, x),
            (Linear::Adapted(layer), _) => layer.forward_t(x, pass == Pass::Train),
        }
    }
}

/// What one writes without this crate: frozen weights as plain tensors, and a product for each matrix.
fn stock_lora(layer: &LoraLinear, x: &Tensor) -> Result<Tensor> {
    let adapters = layer.adapters();
    let Some(weight) = adapters.weight() else {
        candle_core::bail!("{} is quantised", adapters.name())
    };
    let active = adapters.active_adapter();
    match active.and_then(|name| adapters.adapter(&name)) {
        Some(adapter) => {
            let scale = adapter.config().scale() as f32;
            candle_fused::reference::lora::reference(
                x,
                weight,
                None,
                Adapter::new(adapter.a(), adapter.b(), scale),
            )
        }
        None => candle_fused::reference::linear::reference(x, weight, None),
    }
}

pub enum Embedding {
    Trained(nn::Embedding),
    Adapted(LoraEmbedding),
}

impl Embedding {
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Embedding::Trained(layer) => layer.forward(ids),
            Embedding::Adapted(layer) => layer.forward(ids),
        }
    }
}

pub fn norm(layer: &RmsNorm, x: &Tensor, pass: Pass) -> Result<Tensor> {
    match pass {
        // Stock's `forward` loses the gradient.
        Pass::Stock => candle_nn::RmsNorm::new(layer.weight().clone(), layer.eps()).forward_diff(x),
        _ => layer.forward(x),
    }
}

/// `x + y`, where y may have fewer dims.
pub fn add(x: &Tensor, y: &Tensor, pass: Pass) -> Result<Tensor> {
    match pass {
        Pass::Stock => x.broadcast_add(y),
        // Unlike `+`, it makes no gradient for a frozen argument.
        _ => ops::add_act(x, y, Act::Identity),
    }
}

pub fn swiglu(gate: &Tensor, up: &Tensor, pass: Pass) -> Result<Tensor> {
    match pass {
        Pass::Stock => gate.silu()? * up,
        _ => ops::swiglu(gate, up),
    }
}

/// The weights of causal attention, from scores `[.., context, context]`.
pub fn attention(scores: &Tensor, scale: f32, pass: Pass) -> Result<Tensor> {
    if pass != Pass::Stock {
        return ops::masked_softmax(scores, scale, Mask::Causal);
    }
    let n = scores.dim(candle_core::D::Minus1)?;
    let hidden = |i: usize| {
        if i % n > i / n {
            f32::NEG_INFINITY
        } else {
            0.0
        }
    };
    let mask: Vec<f32> = (0..n * n).map(hidden).collect();
    let mask = Tensor::from_vec(mask, (n, n), scores.device())?;
    let scores = (scores * f64::from(scale))?.broadcast_add(&mask)?;
    candle_nn::ops::softmax(&scores, candle_core::D::Minus1)
}

/// The mean loss of logits `[rows, vocabulary]`.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, pass: Pass) -> Result<Tensor> {
    match pass {
        Pass::Stock => candle_nn::loss::cross_entropy(logits, targets),
        _ => nn::loss::nll(&ops::log_softmax(logits, 1)?, targets),
    }
}
