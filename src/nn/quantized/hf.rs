//! Layers of the BitNet checkpoints that Hugging Face's transformers writes.

use super::save_load::check_codes;
use super::{PackedBitLinear, SubNorm};
use crate::check;
use crate::quant::pack;
use crate::quant::{Quantized, ScaleScope, Scheme};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

const NAME: &str = "hf_bit_linear";

/// The meaning of a checkpoint's `weight_scale`: the `linear_class` of its `quantization_config`. The tensors don't tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearClass {
    /// "bitlinear": `y = x·Wᵀ / weight_scale + bias`; the scale is 1 / mean |W|.
    BitLinear,
    /// "autobitlinear": `y = (x·Wᵀ + bias) · weight_scale`; the scale is mean |W|.
    AutoBitLinear,
}

/// The part of a checkpoint's config that concerns its linear layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HfConfig {
    /// The meaning of `weight_scale`.
    pub linear_class: LinearClass,
    /// `rms_norm_eps` where `use_rms_norm` is set: each layer has a norm with the weight `rms_norm.weight`.
    pub rms_norm_eps: Option<f32>,
}

impl From<LinearClass> for HfConfig {
    fn from(linear_class: LinearClass) -> Self {
        HfConfig {
            linear_class,
            rms_norm_eps: None,
        }
    }
}

/// A layer of a BitNet b1.58 checkpoint: `weight` (uint8 `[out / 4, in]`), `weight_scale` and `bias` of `vb`.
///
/// ```no_run
/// use candle_core::{DType, Device};
/// use candle_fused::nn::quantized::{hf_bit_linear_no_bias, LinearClass};
/// use candle_fused::nn::VarBuilder;
///
/// // SAFETY: nobody writes to the file meanwhile.
/// let vb = unsafe { VarBuilder::from_mmaped_safetensors(&["model.safetensors"], DType::BF16, &Device::Cpu)? };
/// let vb = vb.pp("model.layers.0.self_attn.q_proj");
/// let layer = hf_bit_linear_no_bias(2560, 2560, LinearClass::AutoBitLinear, vb)?;
/// # candle_core::Result::Ok(())
/// ```
pub fn hf_bit_linear(
    in_dim: usize,
    out_dim: usize,
    config: impl Into<HfConfig>,
    vb: VarBuilder,
) -> Result<PackedBitLinear> {
    let bias = vb.get(out_dim, "bias")?;
    build(in_dim, out_dim, Some(bias), config.into(), vb)
}

/// [`hf_bit_linear`] without a bias.
pub fn hf_bit_linear_no_bias(
    in_dim: usize,
    out_dim: usize,
    config: impl Into<HfConfig>,
    vb: VarBuilder,
) -> Result<PackedBitLinear> {
    build(in_dim, out_dim, None, config.into(), vb)
}

fn build(
    in_dim: usize,
    out_dim: usize,
    bias: Option<Tensor>,
    config: HfConfig,
    vb: VarBuilder,
) -> Result<PackedBitLinear> {
    if !out_dim.is_multiple_of(4) {
        let message = format!("got {out_dim} outputs, expected a multiple of 4");
        return Err(check::error(NAME, message));
    }
    let device = vb.device().clone();
    let get = |shape: &[usize], name, dtype| {
        let vb = vb.clone().set_device(Device::Cpu);
        vb.get_with_hints_dtype(shape, name, Default::default(), dtype)
    };
    let packed = get(&[out_dim / 4, in_dim], "weight", DType::U8)?;
    let scale = get(&[1], "weight_scale", DType::F32)?;
    let weight = hf_weight(&packed, &scale, config.linear_class)?.to_device(&device)?;
    let bias = match (bias, config.linear_class) {
        // In this class, the bias is scaled with the product.
        (Some(bias), LinearClass::AutoBitLinear) => {
            let scale = f64::from(
                scale
                    .reshape(())?
                    .to_device(&Device::Cpu)?
                    .to_scalar::<f32>()?,
            );
            let wide = (bias.to_dtype(DType::F32)? * scale)?;
            Some(wide.to_dtype(bias.dtype())?)
        }
        (bias, _) => bias,
    };
    let norm = match (config.rms_norm_eps, vb.contains_tensor("rms_norm.weight")) {
        (Some(eps), _) => Some(SubNorm::with_weight(
            vb.get(in_dim, "rms_norm.weight")?,
            eps,
        )),
        (None, true) => {
            let message = "got no rms_norm_eps, expected one: the file has a rms_norm.weight";
            return Err(check::error(NAME, message));
        }
        (None, false) => None,
    };
    PackedBitLinear::new(weight, bias, norm)
}

/// Converts a checkpoint's weight: uint8 `[out / 4, in]`, where row `i · out / 4 + p` is stored in bits 2i and 2i + 1 of byte
/// row p.
pub fn hf_weight(packed: &Tensor, weight_scale: &Tensor, class: LinearClass) -> Result<Quantized> {
    let (dtype, dims) = (packed.dtype(), packed.dims());
    let (DType::U8, &[quarter, cols]) = (dtype, dims) else {
        let message = format!("got weight {dims:?} of {dtype:?}, expected [out / 4, in] of U8");
        return Err(check::error(NAME, message));
    };
    let scheme = Scheme::ternary(ScaleScope::Tensor);
    let bytes: Vec<u8> = packed.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    let row_bytes = scheme.row_bytes(cols);
    let mut codes = vec![0; 4 * quarter * row_bytes];
    let mut row = vec![0; cols];
    for (i, to) in codes.chunks_mut(row_bytes.max(1)).enumerate() {
        let from = &bytes[i % quarter * cols..][..cols];
        let shift = 2 * (i / quarter);
        row.iter_mut()
            .zip(from)
            .for_each(|(code, byte)| *code = (byte >> shift) & 3);
        pack(&scheme, &row, to);
    }
    check_codes(NAME, &scheme, &codes)?;
    let scale = Tensor::new(&[scale(weight_scale, class)?], packed.device())?;
    let codes = Tensor::from_vec(codes, (4 * quarter, row_bytes), packed.device())?;
    Quantized::new(codes, scale, None, (4 * quarter, cols), scheme)
}

/// The number that codes are multiplied by.
fn scale(weight_scale: &Tensor, class: LinearClass) -> Result<f32> {
    if weight_scale.elem_count() != 1 {
        let message = format!(
            "got weight_scale of shape {:?}, expected [1]",
            weight_scale.shape()
        );
        return Err(check::error(NAME, message));
    }
    let given = weight_scale.to_dtype(DType::F32)?.reshape(())?;
    let given = given.to_device(&Device::Cpu)?.to_scalar::<f32>()?;
    let scale = match class {
        LinearClass::BitLinear => 1. / given,
        LinearClass::AutoBitLinear => given,
    };
    match scale >= 0. && scale.is_finite() {
        true => Ok(scale),
        false => Err(check::error(
            NAME,
            format_args!("got weight_scale {given}, expected a positive number for {class:?}"),
        )),
    }
}
