//! What adapters stand beside: a frozen weight, and how it reads as a matrix.

use super::{LoraAdapter, LoraConfig};
use crate::nn::quantized::PackedLinear;
use crate::ops::lora::quantized;
use crate::ops::{frozen_linear, Act};
use crate::{check, ops};
use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Result, Tensor};
use std::sync::Arc;

/// The kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Linear,
    Embedding,
    /// With so many groups.
    Conv2d(usize),
}

#[derive(Clone, Debug)]
pub(super) enum Weight {
    Plain(Tensor),
    Quantized(Arc<QTensor>),
    Packed(PackedLinear),
}

/// A layer's place in a model, and its frozen weight.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub name: String,
    pub kind: Kind,
    pub weight: Weight,
    /// `[out, in]` of the weight as a matrix, which an adapter adds B·A to.
    pub dims: (usize, usize),
}

impl Site {
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
                let message = format!("weight has shape {:?}, {expected} accepted", weight.shape());
                return Err(error(kind, &name, message));
            }
        };
        // Every forward reads it.
        let weight = Weight::Plain(weight.detach().contiguous()?);
        Ok(Site {
            name,
            kind,
            weight,
            dims,
        })
    }

    pub fn quantized(name: String, weight: Arc<QTensor>) -> Result<Self> {
        let kind = Kind::Linear;
        match *weight.shape().dims() {
            [out, cols] => Ok(Site {
                name,
                kind,
                weight: Weight::Quantized(weight),
                dims: (out, cols),
            }),
            _ => {
                let message = format!("weight has shape {:?}, [out, in] accepted", weight.shape());
                Err(error(kind, &name, message))
            }
        }
    }

    pub fn packed(name: String, base: PackedLinear) -> Result<Self> {
        let dims = base.weight().shape().dims2()?;
        Ok(Site {
            name,
            kind: Kind::Linear,
            weight: Weight::Packed(base.detach()),
            dims,
        })
    }

    pub fn error(&self, message: impl std::fmt::Display) -> candle_core::Error {
        error(self.kind, &self.name, message)
    }

    pub fn check(&self, config: &LoraConfig) -> Result<()> {
        let (out, cols) = self.dims;
        if let Some(problem) = config.problem(out.min(cols)) {
            return Err(self.error(problem));
        }
        if let (Weight::Packed(base), true) = (&self.weight, config.use_dora) {
            // ‖W‖ says nothing about a product whose input has been normed before.
            if base.norm().is_some() {
                let message = "use_dora given for a base with a norm, one without accepted";
                return Err(self.error(message));
            }
        }
        let Kind::Conv2d(groups) = self.kind else {
            return Ok(());
        };
        let rank = config.rank;
        if !rank.is_multiple_of(groups) {
            let message = format!("rank {rank} given, a multiple of the {groups} groups accepted");
            return Err(self.error(message));
        }
        if config.use_dora && groups > 1 {
            let message = format!("use_dora given for {groups} groups, 1 group accepted");
            return Err(self.error(message));
        }
        Ok(())
    }

    /// An adapter adds to what goes into an activation, which a base therefore leaves to others.
    pub fn check_act(&self, act: Act) -> Result<()> {
        match act {
            Act::Identity => Ok(()),
            act => Err(self.error(format_args!(
                "a base with {act:?} given, one without activation accepted"
            ))),
        }
    }

    /// The base's bias, checked.
    pub fn frozen_bias(&self, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
        let out = self.dims.0;
        match bias {
            Some(bias) if bias.dims() != [out] => {
                let message = format!("bias has shape {:?}, [{out}] accepted", bias.shape());
                Err(self.error(message))
            }
            bias => Ok(bias.map(Tensor::detach)),
        }
    }

    pub fn device(&self) -> Device {
        match &self.weight {
            Weight::Plain(w) => w.device().clone(),
            Weight::Quantized(w) => w.device(),
            Weight::Packed(base) => base.weight().device().clone(),
        }
    }

    /// The shapes of A, B and the magnitude, as PEFT stores them.
    pub fn adapter_dims(&self, rank: usize) -> [Vec<usize>; 3] {
        let (out, cols) = self.dims;
        match (self.kind, &self.weight) {
            (Kind::Conv2d(groups), Weight::Plain(w)) => {
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
        let (out, cols) = self.dims;
        let count = (quantized::PANEL / cols.max(1)).clamp(1, out.max(1));
        let rows: Box<dyn Fn(usize, usize) -> Result<Tensor>> = match &self.weight {
            Weight::Plain(w) => {
                let (w, dtype) = (self.matrix(w)?, precise(w.dtype()));
                Box::new(move |start, n| w.narrow(0, start, n)?.to_dtype(dtype)?.contiguous())
            }
            Weight::Quantized(w) => {
                let data = w.data()?;
                Box::new(move |start, n| quantized::rows(w, &data, start, n))
            }
            Weight::Packed(base) => {
                let w = base.weight();
                Box::new(move |start, n| w.rows(start, n)?.dequantize(DType::F32))
            }
        };
        let parts = (0..out)
            .step_by(count)
            .map(|start| f(&rows(start, count.min(out - start))?))
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 0)
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
        let Weight::Plain(w) = &self.weight else {
            let message = "a quantised weight can't be merged into; dequantise it first";
            return Err(self.error(message));
        };
        if let Kind::Conv2d(groups @ 2..) = self.kind {
            let message = format!("{groups} groups given, 1 accepted: A sees the channels of all");
            return Err(self.error(format_args!("merge: {message}")));
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
    let layer = match kind {
        Kind::Linear => "LoraLinear",
        Kind::Embedding => "LoraEmbedding",
        Kind::Conv2d(_) => "LoraConv2d",
    };
    match name {
        "" => check::error(layer, message),
        name => check::error(&format!("{layer} {name}"), message),
    }
}

/// What 16-bit weights are computed in.
fn precise(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
