//! Either of the layers with a packed weight.

use super::{PackedBitLinear, QuantLinear, SubNorm};
use crate::check;
use crate::ops::quantize::Quantized;
use candle_core::{Module, Result, Tensor};

/// A [`PackedBitLinear`] or a [`QuantLinear`], such as a [`LoraLinear`](crate::nn::lora::LoraLinear) has for its base.
#[derive(Clone, Debug)]
pub enum PackedLinear {
    Bit(PackedBitLinear),
    Quant(QuantLinear),
}

impl PackedLinear {
    pub fn weight(&self) -> &Quantized {
        match self {
            PackedLinear::Bit(layer) => layer.weight(),
            PackedLinear::Quant(layer) => layer.weight(),
        }
    }

    pub fn bias(&self) -> Option<&Tensor> {
        match self {
            PackedLinear::Bit(layer) => layer.bias(),
            PackedLinear::Quant(layer) => layer.bias(),
        }
    }

    pub fn norm(&self) -> Option<&SubNorm> {
        match self {
            PackedLinear::Bit(layer) => layer.norm(),
            PackedLinear::Quant(_) => None,
        }
    }

    /// The same outside any graph.
    pub fn detach(self) -> Self {
        match self {
            PackedLinear::Bit(layer) => PackedLinear::Bit(layer.detach()),
            PackedLinear::Quant(layer) => PackedLinear::Quant(layer.detach()),
        }
    }

    /// The layer's output with another bias.
    pub(crate) fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self {
            PackedLinear::Bit(layer) => layer.product(x, bias),
            PackedLinear::Quant(layer) => layer.product(x, bias),
        }
    }

    pub(super) fn into_bit_linear(self) -> Result<PackedBitLinear> {
        match self {
            PackedLinear::Bit(layer) => Ok(layer),
            PackedLinear::Quant(_) => Err(check::error(
                "PackedBitLinear",
                "the tensors of a QuantLinear given, those of a PackedBitLinear accepted",
            )),
        }
    }

    pub(super) fn into_quant_linear(self) -> Result<QuantLinear> {
        match self {
            PackedLinear::Quant(layer) => Ok(layer),
            PackedLinear::Bit(_) => Err(check::error(
                "QuantLinear",
                "the tensors of a PackedBitLinear given, those of a QuantLinear accepted",
            )),
        }
    }
}

impl From<PackedBitLinear> for PackedLinear {
    fn from(layer: PackedBitLinear) -> Self {
        PackedLinear::Bit(layer)
    }
}

impl From<QuantLinear> for PackedLinear {
    fn from(layer: QuantLinear) -> Self {
        PackedLinear::Quant(layer)
    }
}

impl Module for PackedLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, self.bias())
    }
}
