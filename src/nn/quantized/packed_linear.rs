//! A frozen linear layer with a packed weight of either kind.

use super::sub_norm::{as_input, normed};
use super::{PackedBitLinear, QuantLinear, SubNorm};
use crate::check;
use crate::ops::FrozenWeight;
use candle_core::{Module, Result, Tensor};

/// A [`PackedBitLinear`] or a [`QuantLinear`] as a frozen layer: what files hold, and the base of a
/// [`LoraLinear`](crate::nn::lora::LoraLinear). Differentiable in x alone.
#[derive(Clone, Debug)]
pub struct PackedLinear {
    weight: FrozenWeight,
    bias: Option<Tensor>,
    norm: Option<SubNorm>,
}

impl PackedLinear {
    /// A [`FrozenWeight::BitNet`] or a [`FrozenWeight::Packed`].
    pub fn weight(&self) -> &FrozenWeight {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The norm of the input, which only a [`PackedBitLinear`] may have.
    pub fn norm(&self) -> Option<&SubNorm> {
        self.norm.as_ref()
    }

    /// The same layer outside any graph.
    pub fn detach(&self) -> Self {
        PackedLinear {
            weight: self.weight.detach(),
            bias: self.bias.as_ref().map(Tensor::detach),
            norm: self.norm.as_ref().map(SubNorm::detach),
        }
    }

    pub(super) fn into_bit_linear(self) -> Result<PackedBitLinear> {
        match self.weight {
            FrozenWeight::BitNet(weight) => PackedBitLinear::new(weight, self.bias, self.norm),
            _ => Err(check::error(
                "PackedBitLinear",
                "got the tensors of a QuantLinear, expected those of a PackedBitLinear",
            )),
        }
    }

    pub(super) fn into_quant_linear(self) -> Result<QuantLinear> {
        match self.weight {
            FrozenWeight::Packed(weight) => QuantLinear::new(weight, self.bias),
            _ => Err(check::error(
                "QuantLinear",
                "got the tensors of a PackedBitLinear, expected those of a QuantLinear",
            )),
        }
    }
}

impl From<PackedBitLinear> for PackedLinear {
    fn from(layer: PackedBitLinear) -> Self {
        PackedLinear {
            bias: layer.bias().cloned(),
            norm: layer.norm().cloned(),
            weight: FrozenWeight::BitNet(layer.weight().clone()),
        }
    }
}

impl From<QuantLinear> for PackedLinear {
    fn from(layer: QuantLinear) -> Self {
        PackedLinear {
            bias: layer.bias().cloned(),
            norm: None,
            weight: FrozenWeight::Packed(layer.weight().clone()),
        }
    }
}

impl Module for PackedLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let bias = as_input(self.bias.as_ref(), x)?;
        let x = normed(self.norm.as_ref(), x)?;
        self.weight.linear(&x, bias.as_ref())
    }
}
