//! [`candle_nn::attention::cpu_flash`]: flash attention of sequences of the same length, on every device.

use super::placed::{attend, attend_with_slopes};
use super::AttnMask;
use crate::check::{self, ensure};
use crate::ops::AttentionConfig;
use candle_core::{DType, Device, Result, Tensor, WithDType};

/// Attention of q `[batch, queries, heads, dim]` to k and v `[batch, keys, kv heads, dim]`, as `[batch, heads, queries, dim]`.
///
/// With `max_bias`, head h of H gets ALiBi's slope `2^(−max_bias · (h + 1) / H')`, H' being H rounded up to a power of 2: it
/// multiplies an explicit mask, or else minus the distance between query and key. A mask has q's dtype and is added to the scores.
///
/// A causal query i sees the keys up to `i + kv_offset`. As in stock, a batch of several sequences ignores the offset: there, and
/// for a single query, the last query is at the last key.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_fused::nn::attention::{flash_attn, AttnMask};
/// let q = Var::randn(0f32, 1., (1, 5, 4, 8), &Device::Cpu)?;
/// let kv = Tensor::randn(0f32, 1., (1, 5, 2, 8), &Device::Cpu)?;
/// let y = flash_attn::<f32>(&q, &kv, &kv, 0.35, AttnMask::causal(), None, None)?;
/// assert_eq!(y.dims(), [1, 4, 5, 8]);
/// assert!(y.sum_all()?.backward()?.get(&q).is_some());
/// # candle_core::Result::Ok(())
/// ```
pub fn flash_attn<T: WithDType>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    Flash {
        name: "flash_attn",
        scale: softmax_scale,
        max_bias,
        softcap,
    }
    .run::<T>([q, k, v], attn_mask)
}

/// The arguments that all functions of this module have beside the tensors, and the name of the one that was called.
struct Flash {
    name: &'static str,
    scale: f32,
    max_bias: Option<f32>,
    softcap: Option<f32>,
}

impl Flash {
    fn run<T: WithDType>(&self, [q, k, v]: [&Tensor; 3], mask: AttnMask) -> Result<Tensor> {
        let name = self.name;
        let (got, expected) = (q.dtype(), T::DTYPE);
        let message = format_args!("got q of dtype {got:?}, expected {expected:?}");
        ensure(got == expected, name, message)?;
        let [batch, queries, heads, _] =
            check::dims(name, "q", q, ["batch", "queries", "heads", "dim"])?;
        let named = ["batch", "keys", "kv heads", "dim"];
        let [_, keys, ..] = check::dims(name, "k", k, named)?;
        let [_, values, ..] = check::dims(name, "v", v, named)?;
        let message = format_args!("got {keys} keys and {values} values, expected as many of each");
        ensure(keys == values, name, message)?;
        let (k, v) = with_the_same_heads(name, k, v, heads)?;
        let mut config = AttentionConfig {
            scale: Some(self.scale),
            softcap: self.softcap.filter(|&cap| cap != 0.0),
            ..Default::default()
        };
        let max_bias = self.max_bias.filter(|&bias| bias > 0.0);
        let mut slopes = max_bias
            .map(|max_bias| slopes(max_bias, heads, q.device()))
            .transpose()?;
        // The position of the first query.
        let mut first = keys as i64 - queries as i64;
        match mask {
            AttnMask::None => {}
            AttnMask::Mask(mask) => {
                additive_mask(name, &mask, q)?;
                config.mask = Some(match slopes.take() {
                    None => mask,
                    Some(slopes) => {
                        let slopes = slopes.to_dtype(q.dtype())?.reshape((heads, 1, 1))?;
                        mask.broadcast_mul(&slopes)?
                    }
                });
            }
            AttnMask::Causal { kv_offset } => {
                let message = format_args!("got {queries} causal queries in a batch of {batch} and {keys} keys, expected no fewer keys");
                ensure(batch == 1 || first >= 0, name, message)?;
                if batch == 1 && queries > 1 {
                    // From the last key on, the query sees all keys, and a larger offset adds the same to the bias of each.
                    first = kv_offset.min(keys) as i64;
                }
                config.causal = true;
            }
        }
        let by_heads = |x: &Tensor| x.transpose(1, 2);
        let (q, k, v) = (by_heads(q)?, by_heads(&k)?, by_heads(&v)?);
        let y = match slopes {
            None => attend(name, [&q, &k, &v], first, &config)?,
            Some(slopes) => attend_with_slopes(name, [&q, &k, &v], first, &slopes, &config)?,
        };
        match batch {
            1 if q.dtype() != DType::F64 => y.to_dtype(DType::F32),
            _ => Ok(y),
        }
    }
}

/// The mask has q's dtype, and is added to the scores. A mask of u8 is refused, as in stock: in [`AttentionConfig::mask`] a 1 marks
/// a key that is seen, in the masks of rotating caches one that is hidden.
pub(crate) fn additive_mask(name: &str, mask: &Tensor, q: &Tensor) -> Result<()> {
    let (got, expected) = (mask.dtype(), q.dtype());
    let message = format_args!(
        "got a mask of dtype {got:?}, expected {expected:?} as for q, to be added to the scores; \
         ops::attention takes masks of u8 that say which keys are seen"
    );
    ensure(got == expected, name, message)
}

/// k and v `[.., kv heads, dim]` with as many heads of each: where their numbers differ, both are repeated up to q's. Their ranks
/// have been checked.
pub(super) fn with_the_same_heads(
    name: &str,
    k: &Tensor,
    v: &Tensor,
    heads: usize,
) -> Result<(Tensor, Tensor)> {
    let count = |x: &Tensor| x.dims()[x.rank() - 2];
    let (of_k, of_v) = (count(k), count(v));
    if of_k == of_v {
        return Ok((k.clone(), v.clone()));
    }
    let whole = [of_k, of_v]
        .iter()
        .all(|&n| n > 0 && heads.is_multiple_of(n));
    let message =
        format_args!("got {of_k} heads of k and {of_v} of v, expected divisors of q's {heads}");
    ensure(whole, name, message)?;
    let repeated = |x: &Tensor, n: usize| {
        let (rank, mut dims) = (x.rank(), x.dims().to_vec());
        dims.insert(rank - 1, heads / n);
        let repeated = x.unsqueeze(rank - 1)?.broadcast_as(dims.as_slice())?;
        dims.remove(rank - 1);
        dims[rank - 2] = heads;
        repeated.reshape(dims)
    };
    Ok((repeated(k, of_k)?, repeated(v, of_v)?))
}

/// ALiBi's slopes, `[heads]` in f32.
fn slopes(max_bias: f32, heads: usize, device: &Device) -> Result<Tensor> {
    let whole = heads.next_power_of_two() as f32;
    let slope = |h: usize| 2f32.powf(-max_bias * (h + 1) as f32 / whole);
    let slopes: Vec<f32> = (0..heads).map(slope).collect();
    Tensor::from_vec(slopes, heads, device)
}

/// [`candle_nn::attention::cpu_flash::causal`]
pub mod causal {
    use super::{AttnMask, Flash, Result, Tensor, WithDType};

    pub use candle_nn::attention::cpu_flash::causal::*;

    /// [`flash_attn`](super::flash_attn()) with a causal mask.
    pub fn run_causal_attn_cpu<T: WithDType>(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        softmax_scale: f32,
        kv_offset: usize,
        max_bias: Option<f32>,
        softcap: Option<f32>,
    ) -> Result<Tensor> {
        Flash {
            name: "run_causal_attn_cpu",
            scale: softmax_scale,
            max_bias,
            softcap,
        }
        .run::<T>([q, k, v], AttnMask::Causal { kv_offset })
    }
}

/// [`candle_nn::attention::cpu_flash::standard`]
pub mod standard {
    use super::{AttnMask, Flash, Result, Tensor, WithDType};

    /// [`flash_attn`](super::flash_attn()) with an explicit mask, or none.
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
        Flash {
            name: "run_flash_attn_cpu",
            scale: softmax_scale,
            max_bias,
            softcap,
        }
        .run::<T>([q, k, v], mask)
    }
}

/// [`candle_nn::attention::cpu_flash::varlen`]
pub mod varlen {
    use super::super::varlen::{packed, packed_function};
    use super::{Result, Tensor};

    packed_function! {
        /// [`flash_attn_varlen_unfused`](super::super::flash_attn_varlen_unfused): both are the same here.
        flash_attn_varlen_cpu
    }
}
