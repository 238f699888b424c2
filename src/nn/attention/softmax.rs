//! Attention with the arguments of its composed form: keys already transposed, and an additive mask of any rank.

use crate::ops::attention::MAX_DIM;
use crate::ops::{self, AttentionConfig};
use candle_core::{DType, Result, Tensor};

/// `softmax(cap(scale · q·kt) + mask)·v` over the last dim, where `cap(s) = c · tanh(s / c)`: what models write as two products
/// and a softmax. `scripts/port_model` writes calls of this.
///
/// Stacks of matrices with equal leading dims, one or two, run as [`ops::attention()`], which holds no scores; anything else as
/// the composed form, with its broadcasting and its errors. A query whose keys are all hidden by −∞ gives zeros in the
/// first and NaN in the second.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::attention::softmax_attention;
/// let (q, k) = (Tensor::zeros((1, 2, 3, 4), DType::F32, &Device::Cpu)?, Tensor::zeros((1, 2, 5, 4), DType::F32, &Device::Cpu)?);
/// let y = softmax_attention(&q, &k.t()?, &k, 0.5, None, None)?;
/// assert_eq!(y.dims(), [1, 2, 3, 4]);
/// # candle_core::Result::Ok(())
/// ```
pub fn softmax_attention(
    q: &Tensor,
    kt: &Tensor,
    v: &Tensor,
    scale: f64,
    softcap: Option<f64>,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    // `ops::attention` takes a positive cap, and both numbers in f32.
    let plain = (scale as f32).is_finite()
        && softcap.is_none_or(|cap| cap as f32 >= f32::MIN_POSITIVE && (cap as f32).is_finite());
    if !plain || !is_attention(q, kt, v, mask) {
        let scores = scores([q, kt], scale, softcap, mask)?;
        return ops::softmax_last_dim(&scores)?.matmul(v);
    }
    let k = kt.t()?;
    let config = |mask| AttentionConfig {
        scale: Some(scale as f32),
        softcap: softcap.map(|cap| cap as f32),
        mask,
        ..Default::default()
    };
    if q.rank() == 4 {
        return ops::attention(q, &k, v, &config(mask.cloned()));
    }
    let heads = |t: &Tensor| t.unsqueeze(0);
    let mask = mask.map(heads).transpose()?;
    ops::attention(&heads(q)?, &heads(&k)?, &heads(v)?, &config(mask))?.squeeze(0)
}

fn is_attention(q: &Tensor, kt: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> bool {
    let rank = q.rank();
    if !(rank == 3 || rank == 4) || kt.rank() != rank || v.rank() != rank {
        return false;
    }
    let (dims, inner) = (q.dims(), rank - 2);
    let (queries, dim) = (dims[rank - 2], dims[rank - 1]);
    let (keys, values) = (v.dims()[rank - 2], v.dims()[rank - 1]);
    let stacked = kt.dims()[..inner] == dims[..inner] && v.dims()[..inner] == dims[..inner];
    let fits = kt.dims()[inner..] == [dim, keys] && dim.max(values) <= MAX_DIM;
    let floats = matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16)
        && kt.dtype() == q.dtype()
        && v.dtype() == q.dtype();
    let full = [&dims[..inner], &[queries, keys]].concat();
    let masked = mask.is_none_or(|mask| {
        let broadcasts = mask.rank() <= rank
            && mask
                .dims()
                .iter()
                .rev()
                .zip(full.iter().rev())
                .all(|(&m, &n)| m == n || m == 1);
        mask.dtype() == q.dtype() && broadcasts
    });
    stacked && fits && floats && masked && q.elem_count() > 0 && v.elem_count() > 0
}

fn scores(
    [q, kt]: [&Tensor; 2],
    scale: f64,
    softcap: Option<f64>,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let mut scores = (q.matmul(kt)? * scale)?;
    if let Some(cap) = softcap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    match mask {
        Some(mask) => scores.broadcast_add(mask),
        None => Ok(scores),
    }
}
