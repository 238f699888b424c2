//! [`candle_nn::cpu_flash_attention`]: the older name of [`attention`](super::attention).

use super::attention::{flash_attn, AttnMask};
use candle_core::{Result, Tensor, WithDType};

/// [`flash_attn`] with an explicit mask, or none.
#[deprecated(note = "Use `nn::attention::{flash_attn, AttnMask}` instead")]
pub fn run_flash_attn_cpu<T: WithDType>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    softmax_scale: f32,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let mask = mask.map_or(AttnMask::None, |mask| AttnMask::Mask(mask.clone()));
    flash_attn::<T>(q, k, v, softmax_scale, mask, max_bias, softcap)
}
