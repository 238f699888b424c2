//! [`candle_nn::attention::cpu_flash`], on every device.

use super::AttnMask;
use crate::check::{self, ensure};
use crate::ops::{attention, AttentionConfig};
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

/// What the functions of this module have in common.
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
        let [_, mut keys, ..] = check::dims(name, "k", k, named)?;
        let [_, values, ..] = check::dims(name, "v", v, named)?;
        let message = format_args!("got {keys} keys and {values} values, expected as many of each");
        ensure(keys == values, name, message)?;
        let (mut k, mut v) = (k.clone(), v.clone());
        (k, v) = with_the_same_heads(name, &k, &v, heads)?;
        let mut config = AttentionConfig {
            scale: Some(self.scale),
            softcap: self.softcap.filter(|&cap| cap != 0.0),
            ..Default::default()
        };
        let max_bias = self.max_bias.filter(|&bias| bias > 0.0);
        // The position of the first query.
        let mut offset = keys as i64 - queries as i64;
        match mask {
            AttnMask::None => {}
            AttnMask::Mask(mask) => {
                additive_mask(name, &mask, q)?;
                config.mask = Some(match max_bias {
                    None => mask,
                    Some(max_bias) => {
                        let slopes = slopes(max_bias, heads, q.device())?.to_dtype(q.dtype())?;
                        mask.broadcast_mul(&slopes.reshape((heads, 1, 1))?)?
                    }
                });
                return self.attend(q, &k, &v, &config, batch);
            }
            AttnMask::Causal { kv_offset } => {
                let message = format_args!("got {queries} causal queries in a batch of {batch} and {keys} keys, expected no fewer keys");
                ensure(batch == 1 || offset >= 0, name, message)?;
                if batch == 1 && queries > 1 {
                    // Behind the last key, all offsets show a query the same, and differ by a constant in the bias.
                    offset = kv_offset.min(keys) as i64;
                }
                // No query sees a key behind that of the last one.
                let seen = (offset + queries as i64).clamp(0, keys as i64) as usize;
                if seen < keys {
                    (k, v, keys) = (k.narrow(1, 0, seen)?, v.narrow(1, 0, seen)?, seen);
                }
                match offset + queries as i64 == keys as i64 {
                    true => config.causal = true,
                    false => {
                        let sees = |i: usize, j: usize| u8::from(j as i64 <= i as i64 + offset);
                        config.mask = Some(table(queries, keys, q.device(), sees)?);
                    }
                }
            }
        }
        if let Some(max_bias) = max_bias {
            let distance = |i: usize, j: usize| -((j as i64 - i as i64 - offset).abs() as f32);
            let distances = table(queries, keys, q.device(), distance)?;
            let slopes = slopes(max_bias, heads, q.device())?.reshape((heads, 1, 1))?;
            let mut bias = slopes.broadcast_mul(&distances)?;
            if let Some(sees) = &config.mask {
                let sees = sees.broadcast_as(bias.shape())?;
                let hidden = Tensor::full(f32::NEG_INFINITY, bias.shape(), q.device())?;
                bias = sees.where_cond(&bias, &hidden)?;
            }
            config.mask = Some(bias.to_dtype(q.dtype())?);
        }
        self.attend(q, &k, &v, &config, batch)
    }

    fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        config: &AttentionConfig,
        batch: usize,
    ) -> Result<Tensor> {
        let by_heads = |x: &Tensor| x.transpose(1, 2);
        let y = attention(&by_heads(q)?, &by_heads(k)?, &by_heads(v)?, config)?;
        match batch {
            1 if q.dtype() != DType::F64 => y.to_dtype(DType::F32),
            _ => Ok(y),
        }
    }
}

/// A mask that is added to scores. One of u8 could mean what is seen, as [`AttentionConfig::mask`] does, or what is hidden, as the
/// masks of rotating caches do; stock takes none either.
pub(crate) fn additive_mask(name: &str, mask: &Tensor, q: &Tensor) -> Result<()> {
    let (got, expected) = (mask.dtype(), q.dtype());
    let message = format_args!(
        "got a mask of dtype {got:?}, expected {expected:?} as for q, to be added to the scores; \
         ops::attention takes masks of u8 that say which keys are seen"
    );
    ensure(got == expected, name, message)
}

/// k and v `[.., kv heads, dim]`, of a rank that has been checked, repeated where their numbers of heads differ.
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

/// `[queries, keys]` of a function of both.
pub(super) fn table<T: WithDType>(
    queries: usize,
    keys: usize,
    device: &Device,
    f: impl Fn(usize, usize) -> T,
) -> Result<Tensor> {
    let f = &f;
    let values = (0..queries).flat_map(|i| (0..keys).map(move |j| f(i, j)));
    Tensor::from_vec(values.collect::<Vec<_>>(), (queries, keys), device)
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
    use super::super::varlen::packed;
    use super::{Result, Tensor};

    /// [`flash_attn_varlen_unfused`](super::super::flash_attn_varlen_unfused): both are the same here.
    #[allow(clippy::too_many_arguments, reason = "stock's signature")]
    pub fn flash_attn_varlen_cpu(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        alibi_slopes: Option<&Tensor>,
        seqlens_q: &Tensor,
        seqlens_k: &Tensor,
        _max_seqlen_q: usize,
        _max_seqlen_k: usize,
        softmax_scale: f32,
        causal: bool,
        window_left: Option<usize>,
        window_right: Option<usize>,
    ) -> Result<Tensor> {
        packed(
            "flash_attn_varlen_cpu",
            [q, k, v],
            alibi_slopes,
            [seqlens_q, seqlens_k],
            softmax_scale,
            causal,
            [window_left, window_right],
        )
    }
}
