//! Packed layers as the tensors of our own file format, and back.

use super::description::{Description, Float, Layer, Norm};
use super::{PackedBitLinear, PackedLinear, QuantLinear, SubNorm, Tensors};
use crate::check;
use crate::quant::{Levels, Packing, Quantized, Scheme};
use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::VarBuilder;

pub(super) const NAME: &str = "PackedLinear";

/// A place that tensors are loaded from.
trait Source {
    /// The full name of a tensor, for errors.
    fn path(&self, name: &str) -> String;
    /// A tensor of this dtype and, if it is known, this shape.
    fn get(&self, name: &str, dtype: DType, shape: Option<Shape>) -> Result<Tensor>;
}

struct InMap<'a> {
    tensors: &'a Tensors,
    prefix: &'a str,
}

impl Source for InMap<'_> {
    fn path(&self, name: &str) -> String {
        key(self.prefix, name)
    }

    fn get(&self, name: &str, dtype: DType, shape: Option<Shape>) -> Result<Tensor> {
        let key = self.path(name);
        let Some(t) = self.tensors.get(&key) else {
            return Err(check::error(NAME, format_args!("{key} is missing")));
        };
        let fits = shape.as_ref().is_none_or(|shape| t.shape() == shape);
        if t.dtype() != dtype || !fits {
            let (shape_got, dtype_got) = (t.shape(), t.dtype());
            let expected = shape.map_or("any shape".to_string(), |shape| format!("{shape:?}"));
            let message = format!(
                "got {key} {shape_got:?} of {dtype_got:?}, expected {expected} of {dtype:?}"
            );
            return Err(check::error(NAME, message));
        }
        Ok(t.clone())
    }
}

struct InBuilder<'a>(VarBuilder<'a>);

impl Source for InBuilder<'_> {
    fn path(&self, name: &str) -> String {
        key(&self.0.prefix(), name)
    }

    fn get(&self, name: &str, dtype: DType, shape: Option<Shape>) -> Result<Tensor> {
        if !self.0.contains_tensor(name) {
            let message = format!("{} is missing", self.path(name));
            return Err(check::error(NAME, message));
        }
        match shape {
            Some(shape) => self
                .0
                .get_with_hints_dtype(shape, name, Default::default(), dtype),
            None => self.0.get_unchecked_dtype(name, dtype),
        }
    }
}

fn key(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_string(),
        prefix => format!("{prefix}.{name}"),
    }
}

impl PackedLinear {
    /// The tensors to save, with names that begin with `prefix` and a dot (or with nothing if it is empty). To replace a
    /// file with them safely, write a new file in the same directory and rename it.
    pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, Tensor)>> {
        let description = Description::new(self)?;
        let text = description.text()?;
        let weight = self.weight().quantized();
        let parts = [
            ("scheme", Some(&text)),
            ("weight", weight.map(Quantized::codes)),
            ("scales", weight.map(Quantized::scales)),
            ("offsets", weight.and_then(Quantized::offsets)),
            ("bias", self.bias()),
            ("rms_norm.weight", self.norm().and_then(SubNorm::weight)),
        ];
        let stored = |(name, t): (&str, Option<&Tensor>)| {
            let t = t?.detach().to_device(&Device::Cpu);
            Some(
                t.and_then(|t| t.contiguous())
                    .map(|t| (key(prefix, name), t)),
            )
        };
        parts.into_iter().filter_map(stored).collect()
    }

    /// Loads the layer that [`tensors`](Self::tensors) made with this prefix.
    pub fn from_tensors(tensors: &Tensors, prefix: &str) -> Result<Self> {
        read(&InMap { tensors, prefix })
    }

    /// Loads the layer that [`tensors`](Self::tensors) made, at the path of `vb`. Each tensor keeps the dtype that it was
    /// saved with, whatever the dtype of `vb`.
    pub fn load(vb: VarBuilder) -> Result<Self> {
        read(&InBuilder(vb))
    }
}

/// The methods of [`PackedBitLinear`] and [`QuantLinear`] that are those of a [`PackedLinear`].
macro_rules! saved_layer {
    ($layer:ty, $from:ident) => {
        impl $layer {
            /// Loads the layer that [`tensors`](Self::tensors) made, at the path of `vb`.
            pub fn load(vb: candle_nn::VarBuilder) -> Result<Self> {
                super::PackedLinear::load(vb)?.$from()
            }

            /// Loads the layer that [`tensors`](Self::tensors) made with this prefix.
            pub fn from_tensors(tensors: &super::Tensors, prefix: &str) -> Result<Self> {
                super::PackedLinear::from_tensors(tensors, prefix)?.$from()
            }

            /// The tensors to save, with names that begin with `prefix` and a dot (or with nothing if it is empty). The
            /// module [`quantized`](super) describes them.
            pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, Tensor)>> {
                super::PackedLinear::from(self.clone()).tensors(prefix)
            }

            /// The codes and their scales.
            pub fn weight(&self) -> &Quantized {
                &self.weight
            }

            /// The bias, `[out]`.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }
    };
}
pub(super) use saved_layer;

fn read(source: &dyn Source) -> Result<PackedLinear> {
    let text = source.get("scheme", DType::U8, None)?;
    let description = Description::read(&text, &source.path("scheme"))?;
    let shape = Shape::from(description.shape.to_vec());
    let scheme = description.scheme();
    scheme.check(&source.path("scheme"), &shape)?;
    let [out, cols] = description.shape;
    let units = || scheme.scales_shape(&shape).map(Some);
    let codes = source.get("weight", DType::U8, Some(scheme.codes_shape(&shape)?))?;
    let bytes: Vec<u8> = codes.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    check_codes(&source.path("weight"), &scheme, &bytes)?;
    let scales = source.get("scales", DType::F32, units()?)?;
    let offsets = match scheme.has_offsets() {
        true => Some(source.get("offsets", DType::F32, units()?)?),
        false => None,
    };
    let weight = Quantized::new(codes, scales, offsets, shape.clone(), scheme)?;
    let vector = |name, float: Option<Float>, len: usize| {
        let get = |float: Float| source.get(name, float.dtype(), Some(len.into()));
        float.map(get).transpose()
    };
    let bias = vector("bias", description.bias, out)?;
    let norm = match description.norm {
        Some(Norm { eps, weight }) => Some(match vector("rms_norm.weight", weight, cols)? {
            Some(weight) => SubNorm::with_weight(weight, eps),
            None => SubNorm::new(eps),
        }),
        None => None,
    };
    match (description.layer, norm) {
        (Layer::BitLinear, norm) => PackedBitLinear::new(weight, bias, norm).map(Into::into),
        (Layer::QuantLinear, None) => QuantLinear::new(weight, bias).map(Into::into),
        (Layer::QuantLinear, Some(_)) => {
            let name = source.path("scheme");
            let message = format!("{name}: got a norm, expected none for a quant_linear");
            Err(check::error(NAME, message))
        }
    }
}

/// A ternary code has two bits, which could also hold a fourth code. Kernels rely on there being none.
pub(super) fn check_codes(op: &str, scheme: &Scheme, bytes: &[u8]) -> Result<()> {
    let two_bits = scheme.levels == Levels::Ternary && scheme.packing == Packing::Bits;
    let fourth = |byte: &u8| byte & (byte >> 1) & 0b0101_0101 != 0;
    match two_bits && bytes.iter().any(fourth) {
        true => Err(check::error(op, "got the code 3, expected 0, 1 or 2")),
        false => Ok(()),
    }
}
