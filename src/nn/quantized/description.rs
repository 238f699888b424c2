//! The JSON text that describes a packed layer in a file.

use super::save_load::NAME;
use super::{PackedLinear, SubNorm};
use crate::check;
use crate::ops::FrozenWeight;
use crate::quant::{Levels, Packing, Rounding, ScaleScope, Scheme};
use candle_core::{DType, Device, Result, Tensor};
use serde::{Deserialize, Serialize};

const FORMAT: u32 = 1;

/// The text of `scheme`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    format: u32,
    pub layer: Layer,
    pub shape: [usize; 2],
    #[serde(with = "LevelsText")]
    grid: Levels,
    #[serde(with = "ScopeText")]
    per: ScaleScope,
    #[serde(with = "RoundingText")]
    rounding: Rounding,
    #[serde(with = "PackingText")]
    packing: Packing,
    #[serde(with = "float")]
    eps: f32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Float>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<Norm>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    BitLinear,
    QuantLinear,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    #[serde(with = "float")]
    pub eps: f32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Float>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Float {
    F32,
    F16,
    Bf16,
    F64,
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Levels", rename_all = "snake_case")]
enum LevelsText {
    Ternary,
    Sign { centred: bool },
    Int8,
    ZeroPoint { bits: u32 },
    Affine { bits: u32 },
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "ScaleScope", rename_all = "snake_case")]
enum ScopeText {
    Tensor,
    Row,
    Column,
    Group(usize),
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Rounding", rename_all = "snake_case")]
enum RoundingText {
    Nearest,
    Stochastic { seed: u64 },
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Packing", rename_all = "snake_case")]
enum PackingText {
    Bits,
    Base3,
}

/// A float as a decimal string that parses to the same bits.
mod float {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(x: &f32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{x:?}"))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<f32, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl Float {
    fn of(t: &Tensor) -> Result<Self> {
        match t.dtype() {
            DType::F32 => Ok(Float::F32),
            DType::F16 => Ok(Float::F16),
            DType::BF16 => Ok(Float::Bf16),
            DType::F64 => Ok(Float::F64),
            dtype => Err(check::unsupported_dtype(NAME, dtype)),
        }
    }

    pub fn dtype(self) -> DType {
        match self {
            Float::F32 => DType::F32,
            Float::F16 => DType::F16,
            Float::Bf16 => DType::BF16,
            Float::F64 => DType::F64,
        }
    }
}

impl Description {
    pub fn new(layer: &PackedLinear) -> Result<Self> {
        let (kind, weight) = match layer.weight() {
            FrozenWeight::BitNet(weight) => (Layer::BitLinear, weight),
            FrozenWeight::Packed(weight) => (Layer::QuantLinear, weight),
            _ => return Err(check::error(NAME, "got a weight that isn't packed")),
        };
        let (out, cols) = weight.shape().dims2()?;
        let Scheme {
            levels: grid,
            scope: per,
            rounding,
            packing,
            eps,
        } = *weight.scheme();
        let norm = |norm: &SubNorm| {
            Ok::<_, candle_core::Error>(Norm {
                eps: norm.eps(),
                weight: norm.weight().map(Float::of).transpose()?,
            })
        };
        Ok(Description {
            format: FORMAT,
            layer: kind,
            shape: [out, cols],
            grid,
            per,
            rounding,
            packing,
            eps,
            bias: layer.bias().map(Float::of).transpose()?,
            norm: layer.norm().map(norm).transpose()?,
        })
    }

    pub fn scheme(&self) -> Scheme {
        Scheme {
            levels: self.grid,
            scope: self.per,
            rounding: self.rounding,
            packing: self.packing,
            eps: self.eps,
        }
    }

    pub fn text(&self) -> Result<Tensor> {
        let text = serde_json::to_vec(self).map_err(|e| check::error(NAME, e))?;
        Tensor::from_slice(&text, text.len(), &Device::Cpu)
    }

    pub fn read(text: &Tensor, name: &str) -> Result<Self> {
        let bytes: Vec<u8> = text.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
        let problem = |e: serde_json::Error| check::error(NAME, format_args!("{name}: {e}"));
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(problem)?;
        // First, because a later format may have fields that the parser below would complain about instead.
        match value.get("format").and_then(|format| format.as_u64()) {
            Some(format) if format == u64::from(FORMAT) => {}
            _ => {
                let given = value.get("format");
                let message = format!("{name}: got format {given:?}, expected {FORMAT}");
                return Err(check::error(NAME, message));
            }
        }
        serde_json::from_value(value).map_err(problem)
    }
}
