//! Layers of models that MLX quantised.

use super::QuantLinear;
use crate::check;
use crate::quant::{Quantized, Scheme};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

const NAME: &str = "mlx_linear";

/// MLX's `quantization` in a model's config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlxQuantization {
    /// 2, 4 or 8
    pub bits: u32,
    /// 32, 64 or 128
    pub group_size: usize,
}

impl MlxQuantization {
    fn check(&self, cols: usize) -> Result<()> {
        let MlxQuantization { bits, group_size } = *self;
        if matches!(bits, 2 | 4 | 8)
            && matches!(group_size, 32 | 64 | 128)
            && cols.is_multiple_of(group_size)
        {
            return Ok(());
        }
        let message = format!(
            "got {bits} bits in groups of {group_size} for {cols} inputs, expected 2, 4 or 8 bits in groups of 32, 64 or 128 that divide the inputs"
        );
        Err(check::error(NAME, message))
    }
}

/// A layer that MLX quantised: `weight` (u32 `[out, in · bits / 32]`), `scales` and `biases` of each group, and the layer's
/// `bias` of `vb`.
///
/// ```no_run
/// use candle_core::{DType, Device};
/// use candle_fused::nn::quantized::{mlx_linear_no_bias, MlxQuantization};
/// use candle_fused::nn::VarBuilder;
///
/// // SAFETY: nobody writes to the file meanwhile.
/// let vb = unsafe { VarBuilder::from_mmaped_safetensors(&["model.safetensors"], DType::F16, &Device::Cpu)? };
/// let config = MlxQuantization { bits: 4, group_size: 64 };
/// let layer = mlx_linear_no_bias(2048, 2048, config, vb.pp("model.layers.0.self_attn.q_proj"))?;
/// # candle_core::Result::Ok(())
/// ```
pub fn mlx_linear(
    in_dim: usize,
    out_dim: usize,
    config: MlxQuantization,
    vb: VarBuilder,
) -> Result<QuantLinear> {
    let bias = vb.get(out_dim, "bias")?;
    QuantLinear::new(read(in_dim, out_dim, config, vb)?, Some(bias))
}

/// [`mlx_linear`] without a bias of the layer.
pub fn mlx_linear_no_bias(
    in_dim: usize,
    out_dim: usize,
    config: MlxQuantization,
    vb: VarBuilder,
) -> Result<QuantLinear> {
    QuantLinear::new(read(in_dim, out_dim, config, vb)?, None)
}

fn read(
    in_dim: usize,
    out_dim: usize,
    config: MlxQuantization,
    vb: VarBuilder,
) -> Result<Quantized> {
    config.check(in_dim)?;
    let device = vb.device().clone();
    let vb = vb.set_device(Device::Cpu);
    let get = |cols: usize, name, dtype| {
        vb.get_with_hints_dtype((out_dim, cols), name, Default::default(), dtype)
    };
    let groups = in_dim / config.group_size;
    let weight = mlx_weight(
        &get(in_dim / 32 * config.bits as usize, "weight", DType::U32)?,
        &get(groups, "scales", DType::F32)?,
        &get(groups, "biases", DType::F32)?,
        config,
    )?;
    weight.to_device(&device)
}

/// A weight `[out, in]` of the three tensors that `mlx.core.quantize` gives: u32, in each of which the first code is
/// lowest, and scales and biases in any float dtype.
pub fn mlx_weight(
    weight: &Tensor,
    scales: &Tensor,
    biases: &Tensor,
    config: MlxQuantization,
) -> Result<Quantized> {
    let (dtype, dims) = (weight.dtype(), weight.dims());
    let (DType::U32, &[out, words]) = (dtype, dims) else {
        let message =
            format!("got weight {dims:?} of {dtype:?}, expected [out, in · bits / 32] of U32");
        return Err(check::error(NAME, message));
    };
    let cols = words * 32 / (config.bits.max(1) as usize);
    config.check(cols)?;
    check::is_float(NAME, scales)?;
    check::is_float(NAME, biases)?;
    let words_of: Vec<u32> = weight.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
    // The lowest byte first is the order of the codes.
    let bytes: Vec<u8> = words_of.into_iter().flat_map(u32::to_le_bytes).collect();
    let codes = Tensor::from_vec(bytes, (out, 4 * words), weight.device())?;
    let wide = |t: &Tensor| t.detach().to_dtype(DType::F32);
    Quantized::new(
        codes,
        wide(scales)?,
        Some(wide(biases)?),
        (out, cols),
        Scheme::mlx(config.bits, config.group_size),
    )
}
