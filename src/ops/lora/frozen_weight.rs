//! The weight of a linear layer that isn't trained, in each of the forms that there are kernels for.

use super::gguf;
use crate::ops;
use crate::ops::bitlinear::bitlinear;
use crate::ops::linear::{self, frozen_linear};
use crate::ops::mixed_matmul::mixed_matmul;
use crate::quant::Quantized;
use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Result, Tensor};
use std::borrow::Cow;
use std::sync::Arc;

/// A weight `[out, in]` that gets no gradient: the base of an adapter.
#[derive(Clone, Debug)]
pub enum FrozenWeight {
    /// Floats.
    Dense(Tensor),
    /// One of Candle's GGUF types.
    Gguf(Arc<QTensor>),
    /// Codes of 1 to 8 bits, multiplied by [`mixed_matmul()`].
    Packed(Quantized),
    /// Codes of 1 or 2 bits, multiplied by [`bitlinear()`], which rounds the rows of x to 8 bits.
    BitNet(Quantized),
}

impl From<Tensor> for FrozenWeight {
    fn from(weight: Tensor) -> Self {
        FrozenWeight::Dense(weight)
    }
}

impl From<Arc<QTensor>> for FrozenWeight {
    fn from(weight: Arc<QTensor>) -> Self {
        FrozenWeight::Gguf(weight)
    }
}

impl FrozenWeight {
    /// `(out, in)`
    pub fn dims(&self) -> Result<(usize, usize)> {
        match self {
            FrozenWeight::Dense(w) => w.dims2(),
            FrozenWeight::Gguf(w) => w.shape().dims2(),
            FrozenWeight::Packed(w) | FrozenWeight::BitNet(w) => w.shape().dims2(),
        }
    }

    pub fn device(&self) -> Device {
        match self {
            FrozenWeight::Dense(w) => w.device().clone(),
            FrozenWeight::Gguf(w) => w.device(),
            FrozenWeight::Packed(w) | FrozenWeight::BitNet(w) => w.device().clone(),
        }
    }

    /// The codes of a packed weight.
    pub fn quantized(&self) -> Option<&Quantized> {
        match self {
            FrozenWeight::Packed(w) | FrozenWeight::BitNet(w) => Some(w),
            FrozenWeight::Dense(_) | FrozenWeight::Gguf(_) => None,
        }
    }

    /// The same weight outside any graph.
    pub fn detach(&self) -> Self {
        match self {
            FrozenWeight::Dense(w) => FrozenWeight::Dense(w.detach()),
            FrozenWeight::Gguf(w) => FrozenWeight::Gguf(w.clone()),
            FrozenWeight::Packed(w) => FrozenWeight::Packed(w.detach()),
            FrozenWeight::BitNet(w) => FrozenWeight::BitNet(w.detach()),
        }
    }

    /// `x·Wᵀ + bias`, differentiable in x alone.
    pub fn linear(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let bias = bias.map(Tensor::detach);
        match self.detach() {
            FrozenWeight::Dense(w) => frozen_linear(x, &w, bias.as_ref()),
            FrozenWeight::Gguf(w) => gguf::linear(x, &w, bias.as_ref()),
            FrozenWeight::Packed(w) => mixed_matmul(x, &w, bias.as_ref()),
            FrozenWeight::BitNet(w) => bitlinear(x, &w, bias.as_ref()),
        }
    }

    /// `f` of the weight's rows as f32 (of an f64 weight as f64), some at a time, one result behind the other: nothing of
    /// the weight's size is allocated.
    pub(crate) fn by_rows(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let (out, cols) = self.dims()?;
        let count = gguf::rows_at_once(out, cols);
        let gguf_data = match self {
            FrozenWeight::Gguf(w) => w.data()?,
            _ => Cow::Borrowed(&[][..]),
        };
        let rows = |start: usize, count: usize| match self {
            FrozenWeight::Dense(w) => {
                let dtype = match w.dtype() {
                    DType::F64 => DType::F64,
                    _ => DType::F32,
                };
                w.narrow(0, start, count)?.to_dtype(dtype)?.contiguous()
            }
            FrozenWeight::Gguf(w) => gguf::rows(w, &gguf_data, start, count),
            FrozenWeight::Packed(w) | FrozenWeight::BitNet(w) => {
                w.rows(start, count)?.dequantize(DType::F32)
            }
        };
        let parts = (0..out)
            .step_by(count)
            .map(|start| f(&rows(start, count.min(out - start))?))
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 0)
    }

    /// The number of outputs, where x and bias fit.
    pub(super) fn check(
        &self,
        name: &'static str,
        x: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<usize> {
        match self {
            FrozenWeight::Dense(w) => {
                linear::check_args(name, x, w, bias)?;
                w.dim(0)
            }
            FrozenWeight::Gguf(w) => gguf::check_args(name, x, w, bias),
            FrozenWeight::Packed(w) | FrozenWeight::BitNet(w) => {
                ops::packed::check_tensors(name, x, w, bias)?;
                w.shape().dims2().map(|(out, _)| out)
            }
        }
    }
}
