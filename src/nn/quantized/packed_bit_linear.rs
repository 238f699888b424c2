//! BitNet's linear layer for inference: packed weights, 8-bit inputs.

use super::save_load::saved_layer;
use super::sub_norm::{as_input, check_vector, normed};
use super::SubNorm;
use crate::check;
use crate::ops::bitlinear::{bitlinear, check_scheme};
use crate::quant::{pack, unpack};
use crate::quant::{Levels, Packing, Quantized, ScaleScope, Scheme};
use candle_core::{Device, Module, Result, Tensor};

const NAME: &str = "PackedBitLinear";

/// `y = q(norm(x))·Wᵀ + bias` with W of 1 or 2 bits, by [`ops::bitlinear()`](bitlinear): x is rounded to 8 bits for each token.
/// Differentiable in x. It takes x in any float dtype; bias and norm are converted to it.
///
/// Make one from a trained layer ([`BitLinear::freeze`](super::BitLinear::freeze)), a BitNet checkpoint
/// ([`hf_bit_linear`](super::hf_bit_linear)), or a GGUF file ([`Gguf`](super::Gguf)). Save and load it by
/// [`tensors`](Self::tensors) and [`load`](Self::load):
///
/// ```
/// use candle_core::{safetensors, DType, Device, Tensor};
/// use candle_fused::nn::{Module, PackedBitLinear, VarBuilder};
/// use candle_fused::ops::quantize;
/// use candle_fused::quant::{ScaleScope, Scheme};
///
/// let w = Tensor::randn(0f32, 1., (8, 16), &Device::Cpu)?;
/// let layer = PackedBitLinear::new(quantize(&w, Scheme::ternary(ScaleScope::Tensor))?, None, None)?;
/// let path = std::env::temp_dir().join("candle-fused-doc-packed.safetensors");
/// safetensors::save(&layer.tensors("up")?.into_iter().collect(), &path)?;
///
/// let vb = VarBuilder::from_buffered_safetensors(std::fs::read(&path)?, DType::F32, &Device::Cpu)?;
/// let again = PackedBitLinear::load(vb.pp("up"))?;
/// let x = Tensor::randn(0f32, 1., (3, 16), &Device::Cpu)?;
/// assert_eq!(again.forward(&x)?.to_vec2::<f32>()?, layer.forward(&x)?.to_vec2::<f32>()?);
/// # std::fs::remove_file(&path)?;
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedBitLinear {
    weight: Quantized,
    bias: Option<Tensor>,
    norm: Option<SubNorm>,
}

impl PackedBitLinear {
    /// With a weight `[out, in]` of `Levels::Ternary` or `Levels::Sign`, with scales per tensor or per row, in `Packing::Bits`.
    pub fn new(weight: Quantized, bias: Option<Tensor>, norm: Option<SubNorm>) -> Result<Self> {
        check_scheme(NAME, weight.scheme())?;
        let (out, cols) = dims(NAME, &weight)?;
        if let Some(bias) = &bias {
            check_vector(NAME, "bias", bias, out, weight.device())?;
        }
        if let Some(norm) = &norm {
            norm.check(NAME, cols, weight.device())?;
        }
        Ok(PackedBitLinear { weight, bias, norm })
    }

    /// With a weight that has a scale for each group, as in GGUF files. All groups of a row must have the same scale, but
    /// groups of zeros.
    pub fn from_groups(
        weight: &Quantized,
        bias: Option<Tensor>,
        norm: Option<SubNorm>,
    ) -> Result<Self> {
        Self::new(one_scale(weight)?, bias, norm)
    }

    /// The norm of the input.
    pub fn norm(&self) -> Option<&SubNorm> {
        self.norm.as_ref()
    }
}

saved_layer!(PackedBitLinear, into_bit_linear);

impl Module for PackedBitLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check::is_float(NAME, x)?;
        let x = normed(self.norm.as_ref(), x)?;
        let bias = as_input(self.bias.as_ref(), &x)?;
        bitlinear(&x, &self.weight, bias.as_ref())
    }
}

/// `(out, in)` of a weight.
pub(super) fn dims(layer: &str, weight: &Quantized) -> Result<(usize, usize)> {
    match *weight.shape().dims() {
        [out, cols] => Ok((out, cols)),
        ref dims => Err(check::error(
            layer,
            format_args!("got weight of shape {dims:?}, expected [out, in]"),
        )),
    }
}

/// The same weight with one scale, or else with one for each row.
fn one_scale(w: &Quantized) -> Result<Quantized> {
    let scheme = *w.scheme();
    let ScaleScope::Group(group) = scheme.scope else {
        return Ok(w.clone());
    };
    let (out, cols) = dims(NAME, w)?;
    let bits = scheme.with_packing(Packing::Bits);
    let (row_bytes, to_bytes) = (scheme.row_bytes(cols), bits.row_bytes(cols));
    let codes: Vec<u8> = w
        .codes()
        .to_device(&Device::Cpu)?
        .flatten_all()?
        .to_vec1()?;
    let scales: Vec<f32> = w
        .scales()
        .to_device(&Device::Cpu)?
        .flatten_all()?
        .to_vec1()?;
    let mut packed = vec![0; out * to_bytes];
    let (mut numbers, mut of_rows) = (vec![0; cols], vec![]);
    for row in 0..out {
        unpack(
            &scheme,
            &codes[row * row_bytes..][..row_bytes],
            &mut numbers,
        );
        pack(&bits, &numbers, &mut packed[row * to_bytes..][..to_bytes]);
        let groups = &scales[row * (cols / group)..][..cols / group];
        of_rows.push(of_row(scheme.levels, &numbers, groups, group).map_err(|(a, b)| {
            let message = format!("got the scales {a} and {b} in groups of row {row}, expected one for each row; QuantLinear takes groups");
            check::error(NAME, message)
        })?);
    }
    let mut all = of_rows.iter().flatten();
    let first = all.next().copied();
    let equal = all.all(|scale| Some(scale.to_bits()) == first.map(f32::to_bits));
    let (scope, scales) = match equal {
        true => (ScaleScope::Tensor, vec![first.unwrap_or(0.)]),
        false => (
            ScaleScope::Row,
            of_rows.iter().map(|s| s.unwrap_or(0.)).collect(),
        ),
    };
    let scheme = Scheme { scope, ..bits };
    let scales = Tensor::from_vec(scales, scheme.scales_shape(w.shape())?, w.device())?;
    let codes = Tensor::from_vec(packed, (out, to_bytes), w.device())?;
    Quantized::new(codes, scales, None, (out, cols), scheme)
}

/// The scale that all groups of a row share, `None` if all groups are zeros, or an error with two scales that differ.
fn of_row(
    levels: Levels,
    numbers: &[u8],
    scales: &[f32],
    group: usize,
) -> std::result::Result<Option<f32>, (f32, f32)> {
    let zeros = |codes: &[u8]| levels == Levels::Ternary && codes.iter().all(|&code| code == 1);
    let mut shared: Option<f32> = None;
    for (codes, &scale) in numbers.chunks(group).zip(scales) {
        match shared {
            _ if zeros(codes) => {}
            Some(other) if other.to_bits() != scale.to_bits() => return Err((other, scale)),
            _ => shared = Some(scale),
        }
    }
    Ok(shared)
}
