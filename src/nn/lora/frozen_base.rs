//! The frozen layer that adapters are added to: its weight, and how that reads as a matrix.

use super::{LoraAdapter, LoraConfig};
use crate::check;
use crate::nn::quantized::{PackedLinear, SubNorm};
use crate::ops::lora::lora_beside;
use crate::ops::{self, frozen_linear, Act, Adapter, FrozenWeight};
use candle_core::quantized::QTensor;
use candle_core::{DType, Module, Result, Tensor};
use std::sync::Arc;

/// The kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Linear,
    Embedding,
    /// With this number of groups.
    Conv2d(usize),
}

/// A frozen layer, and its place in a model.
#[derive(Clone, Debug)]
pub(super) struct FrozenBase {
    /// The layer's path in the model.
    pub name: String,
    pub kind: Kind,
    /// In its own shape: a convolution's has four dims.
    pub weight: FrozenWeight,
    /// A packed layer may norm its input. The adapter reads the input before the norm.
    norm: Option<SubNorm>,
    /// `(out, in)` of the weight as a matrix, to which an adapter adds B·A.
    pub dims: (usize, usize),
}

impl FrozenBase {
    pub fn new(name: String, kind: Kind, weight: Tensor) -> Result<Self> {
        let dims = match (kind, weight.dims()) {
            (Kind::Linear, &[out, cols]) => (out, cols),
            // A lookup is the product of a one-hot row with the transpose.
            (Kind::Embedding, &[rows, width]) => (width, rows),
            (Kind::Conv2d(groups), &[out, channels, height, width]) => {
                (out, channels * groups * height * width)
            }
            _ => {
                let expected = match kind {
                    Kind::Linear => "[out, in]",
                    Kind::Embedding => "[entries, width]",
                    Kind::Conv2d(_) => "[out, in / groups, height, width]",
                };
                let message = format!(
                    "got weight of shape {:?}, expected {expected}",
                    weight.shape()
                );
                return Err(error(kind, &name, message));
            }
        };
        // Contiguous once, because every forward pass reads it.
        let weight = weight.detach().contiguous()?.into();
        Ok(FrozenBase {
            name,
            kind,
            weight,
            norm: None,
            dims,
        })
    }

    pub fn gguf(name: String, weight: Arc<QTensor>) -> Result<Self> {
        let kind = Kind::Linear;
        match *weight.shape().dims() {
            [out, cols] => Ok(FrozenBase {
                name,
                kind,
                weight: weight.into(),
                norm: None,
                dims: (out, cols),
            }),
            _ => {
                let message = format!(
                    "got weight of shape {:?}, expected [out, in]",
                    weight.shape()
                );
                Err(error(kind, &name, message))
            }
        }
    }

    pub fn packed(name: String, base: &PackedLinear) -> Result<Self> {
        let base = base.detach();
        Ok(FrozenBase {
            name,
            kind: Kind::Linear,
            weight: base.weight().clone(),
            norm: base.norm().cloned(),
            dims: base.weight().dims()?,
        })
    }

    /// A linear layer's output, with an adapter if there is one. A packed or GGUF weight takes x in any float dtype, and
    /// the bias is converted to it.
    pub fn linear(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        adapter: Option<Adapter>,
    ) -> Result<Tensor> {
        let bias = match self.weight {
            FrozenWeight::Dense(_) => bias.cloned(),
            _ => bias.map(|bias| bias.to_dtype(x.dtype())).transpose()?,
        };
        let normed = self.norm.as_ref().map(|norm| norm.forward(x)).transpose()?;
        match adapter {
            Some(adapter) => lora_beside(x, normed.as_ref(), &self.weight, bias.as_ref(), adapter),
            None => self
                .weight
                .linear(normed.as_ref().unwrap_or(x), bias.as_ref()),
        }
    }

    /// The weight of a kind of layer that is never quantised.
    pub fn dense(&self) -> Result<&Tensor> {
        match &self.weight {
            FrozenWeight::Dense(weight) => Ok(weight),
            _ => Err(self.error("got a quantised weight, expected floats")),
        }
    }

    pub fn error(&self, message: impl std::fmt::Display) -> candle_core::Error {
        error(self.kind, &self.name, message)
    }

    fn layer(&self) -> String {
        layer(self.kind, &self.name)
    }

    pub fn check(&self, config: &LoraConfig) -> Result<()> {
        if let Some(problem) = config.problem() {
            return Err(self.error(problem));
        }
        // ‖W‖ says nothing about a product whose input has been normed before.
        if config.use_dora && self.norm.is_some() {
            return Err(self.error("got use_dora for a base with a norm, expected one without"));
        }
        let (layer, [a, b, _]) = (self.layer(), self.adapter_dims(config.rank));
        check::fits_in_memory(&layer, "A", &a)?;
        check::fits_in_memory(&layer, "B", &b)?;
        let Kind::Conv2d(groups) = self.kind else {
            return Ok(());
        };
        let rank = config.rank;
        if !rank.is_multiple_of(groups) {
            let message = format!("got rank {rank}, expected a multiple of the {groups} groups");
            return Err(self.error(message));
        }
        if config.use_dora && groups > 1 {
            let message = format!("got use_dora for {groups} groups, expected 1 group");
            return Err(self.error(message));
        }
        Ok(())
    }

    /// A base has no activation: the adapter's share must be added before one.
    pub fn check_act(&self, act: Act) -> Result<()> {
        match act {
            Act::Identity => Ok(()),
            act => Err(self.error(format_args!(
                "got a base with {act:?}, expected one without activation"
            ))),
        }
    }

    /// The base's bias, checked.
    pub fn frozen_bias(&self, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
        let out = self.dims.0;
        match bias {
            Some(bias) if bias.dims() != [out] => {
                let message = format!("got bias of shape {:?}, expected [{out}]", bias.shape());
                Err(self.error(message))
            }
            bias => Ok(bias.map(Tensor::detach)),
        }
    }

    /// The shapes of A, B and the magnitude, as PEFT stores them.
    pub fn adapter_dims(&self, rank: usize) -> [Vec<usize>; 3] {
        let (out, cols) = self.dims;
        match (self.kind, &self.weight) {
            (Kind::Conv2d(groups), FrozenWeight::Dense(w)) => {
                let [_, channels, height, width] = *w.dims() else {
                    return [vec![], vec![], vec![]];
                };
                // PEFT's A sees all channels; only its B is grouped.
                let a = vec![rank, channels * groups, height, width];
                [a, vec![out, rank / groups, 1, 1], vec![1, out, 1, 1]]
            }
            _ => [vec![rank, cols], vec![out, rank], vec![out]],
        }
    }

    /// W `[out, in]`.
    fn matrix(&self, weight: &Tensor) -> Result<Tensor> {
        match self.kind {
            Kind::Linear => Ok(weight.clone()),
            Kind::Embedding => weight.t(),
            Kind::Conv2d(_) => weight.flatten_from(1),
        }
    }

    /// A `[rank, in]` and B `[out, rank]`, outside any graph.
    fn factors(&self, adapter: &LoraAdapter, dtype: DType) -> Result<(Tensor, Tensor)> {
        let flat = |t: &Tensor| t.detach().flatten_from(1)?.to_dtype(dtype);
        Ok((flat(adapter.a())?, flat(adapter.b())?))
    }

    /// `f` of W's rows as f32, some at a time: nothing of W's size is allocated.
    fn by_rows(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match &self.weight {
            FrozenWeight::Dense(w) => FrozenWeight::Dense(self.matrix(w)?).by_rows(f),
            weight => weight.by_rows(f),
        }
    }

    /// ‖W_o‖² of each output o.
    pub fn squares(&self) -> Result<Tensor> {
        self.by_rows(|w| ops::sum_last_dim(&w.sqr()?))
    }

    /// `‖W_o + s·B_o·A‖² = ‖W_o‖² + 2s·B_o·(A·W_oᵀ) + s²·B_o·(A·Aᵀ)·B_oᵀ`, rooted.
    pub fn norms(&self, squares: &Tensor, adapter: &LoraAdapter) -> Result<Tensor> {
        let s = adapter.config().scale();
        let (a, b) = self.factors(adapter, squares.dtype())?;
        let cross = (self.by_rows(|w| frozen_linear(w, &a, None))? * (2.0 * s))?;
        let own = (frozen_linear(&b, &frozen_linear(&a, &a, None)?, None)? * (s * s))?;
        let moved = ops::sum_last_dim(&((cross + own)? * b)?)?;
        (squares + moved)?.relu()?.sqrt()
    }

    /// `f ⊙ (W + s·B·A)` in the weight's own shape and dtype, with a factor f for each output if there is one.
    pub fn merged(&self, adapter: &LoraAdapter, factor: Option<&Tensor>) -> Result<Tensor> {
        let FrozenWeight::Dense(w) = &self.weight else {
            let message = "merge: got a quantised weight, expected floats; dequantise it first";
            return Err(self.error(message));
        };
        if let Kind::Conv2d(groups @ 2..) = self.kind {
            let message = format!(
                "merge: got {groups} groups, expected 1: A reads the channels of all groups"
            );
            return Err(self.error(message));
        }
        let dtype = precise(w.dtype());
        let (a, b) = self.factors(adapter, dtype)?;
        let delta = (frozen_linear(&b, &a.t()?, None)? * adapter.config().scale())?;
        let mut merged = (self.matrix(w)?.to_dtype(dtype)? + delta)?;
        if let Some(factor) = factor {
            merged = merged.broadcast_mul(&factor.unsqueeze(1)?)?;
        }
        let merged = match self.kind {
            Kind::Embedding => merged.t()?.contiguous()?,
            _ => merged.reshape(w.shape())?,
        };
        merged.to_dtype(w.dtype())
    }
}

fn error(kind: Kind, name: &str, message: impl std::fmt::Display) -> candle_core::Error {
    check::error(&layer(kind, name), message)
}

/// The name of a layer in errors: its type and its path.
fn layer(kind: Kind, name: &str) -> String {
    let layer = match kind {
        Kind::Linear => "LoraLinear",
        Kind::Embedding => "LoraEmbedding",
        Kind::Conv2d(_) => "LoraConv2d",
    };
    match name {
        "" => layer.to_string(),
        name => format!("{layer} {name}"),
    }
}

/// The dtype in which 16-bit weights are merged.
fn precise(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
