//! BitNet's linear layer for inference.

use super::norm::{as_input, check_vector};
use super::{SubNorm, Tensors};
use crate::check;
use crate::cpu::codes::{pack, unpack};
use crate::ops::bitlinear::{bitlinear, check_scheme};
use crate::ops::quantize::{Grid, Packing, Per, Quantized, Scheme};
use candle_core::{Device, Module, Result, Tensor};
use candle_nn::VarBuilder;

const NAME: &str = "PackedBitLinear";

/// `y = q(norm(x))·Wᵀ + bias` with W of 1 or 2 bits, by [`ops::bitlinear()`](bitlinear): x is rounded to 8 bits for each token.
/// Differentiable in x. It takes x in any float dtype; bias and norm are converted to it.
///
/// It comes of a trained layer ([`BitLinear::freeze`](super::BitLinear::freeze)), of a BitNet checkpoint
/// ([`hf_bit_linear`](super::hf_bit_linear)), or of a GGUF file ([`Gguf`](super::Gguf)). It is saved and loaded by
/// [`tensors`](Self::tensors) and [`load`](Self::load):
///
/// ```
/// use candle_core::{safetensors, DType, Device, Tensor};
/// use candle_fused::nn::{Module, PackedBitLinear, VarBuilder};
/// use candle_fused::ops::{quantize, quantize::{Per, Scheme}};
///
/// let w = Tensor::randn(0f32, 1., (8, 16), &Device::Cpu)?;
/// let layer = PackedBitLinear::new(quantize(&w, Scheme::ternary(Per::Tensor))?, None, None)?;
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
    /// Of a weight `[out, in]` of `Grid::Ternary` or `Sign`, per tensor or per row, in `Packing::Bits`.
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

    /// Of a weight with a scale for each group, as GGUF files have it, where all groups of a row agree. A group of zeros
    /// agrees with any.
    pub fn from_groups(
        weight: &Quantized,
        bias: Option<Tensor>,
        norm: Option<SubNorm>,
    ) -> Result<Self> {
        Self::new(one_scale(weight)?, bias, norm)
    }

    /// What [`tensors`](Self::tensors) made, at the path of `vb`.
    pub fn load(vb: VarBuilder) -> Result<Self> {
        super::PackedLinear::load(vb)?.into_bit_linear()
    }

    /// What [`tensors`](Self::tensors) made for this prefix.
    pub fn from_tensors(tensors: &Tensors, prefix: &str) -> Result<Self> {
        super::PackedLinear::from_tensors(tensors, prefix)?.into_bit_linear()
    }

    /// All there is to save, by names that begin with `prefix` and a dot, or with nothing if it is empty: see
    /// [`quantized`](super).
    pub fn tensors(&self, prefix: &str) -> Result<Vec<(String, Tensor)>> {
        super::PackedLinear::from(self.clone()).tensors(prefix)
    }

    pub fn weight(&self) -> &Quantized {
        &self.weight
    }

    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    pub fn norm(&self) -> Option<&SubNorm> {
        self.norm.as_ref()
    }

    /// With another bias.
    pub(super) fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        check::float(NAME, x)?;
        let x = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        bitlinear(&x, &self.weight, as_input(bias, &x)?.as_ref())
    }

    pub(super) fn detach(self) -> Self {
        PackedBitLinear {
            weight: self.weight.detach(),
            bias: self.bias.map(|bias| bias.detach()),
            norm: self.norm.map(|norm| norm.detach()),
        }
    }
}

impl Module for PackedBitLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, self.bias.as_ref())
    }
}

/// `(out, in)` of a weight.
pub(super) fn dims(layer: &str, weight: &Quantized) -> Result<(usize, usize)> {
    match *weight.shape().dims() {
        [out, cols] => Ok((out, cols)),
        ref dims => Err(check::error(
            layer,
            format_args!("weight has shape {dims:?}, [out, in] accepted"),
        )),
    }
}

/// The same weight with a scale for all of it, or else for each row.
fn one_scale(w: &Quantized) -> Result<Quantized> {
    let scheme = *w.scheme();
    let Per::Group(group) = scheme.per else {
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
        of_rows.push(of_row(scheme.grid, &numbers, groups, group).map_err(|(a, b)| {
            let message = format!("groups of row {row} have the scales {a} and {b}, one for each row accepted; QuantLinear takes groups");
            check::error(NAME, message)
        })?);
    }
    let mut all = of_rows.iter().flatten();
    let first = all.next().copied();
    let equal = all.all(|scale| Some(scale.to_bits()) == first.map(f32::to_bits));
    let (per, scales) = match equal {
        true => (Per::Tensor, vec![first.unwrap_or(0.)]),
        false => (Per::Row, of_rows.iter().map(|s| s.unwrap_or(0.)).collect()),
    };
    let scheme = Scheme { per, ..bits };
    let scales = Tensor::from_vec(scales, scheme.scales_shape(w.shape()), w.device())?;
    let codes = Tensor::from_vec(packed, (out, to_bytes), w.device())?;
    Quantized::new(codes, scales, None, (out, cols), scheme)
}

/// The scale that all groups share, none if all are of zeros, or two that differ.
fn of_row(
    grid: Grid,
    numbers: &[u8],
    scales: &[f32],
    group: usize,
) -> std::result::Result<Option<f32>, (f32, f32)> {
    let zeros = |codes: &[u8]| grid == Grid::Ternary && codes.iter().all(|&code| code == 1);
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
