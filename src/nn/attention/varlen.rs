//! [`candle_nn::attention::varlen`]: attention of packed sequences of different lengths, on every device.

use super::cpu_flash::with_the_same_heads;
use super::placed::attend_with_slopes;
use crate::check::{self, ensure};
use crate::ops::{attention, AttentionConfig, AttentionLayout, PackedSequences};
use candle_core::{DType, Result, Tensor};

/// Defines a function with the signature that both of stock's functions for packed sequences have.
macro_rules! packed_function {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "stock's signature")]
        pub fn $name(
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
            window_size_left: Option<usize>,
            window_size_right: Option<usize>,
        ) -> Result<Tensor> {
            packed(
                stringify!($name),
                [q, k, v],
                alibi_slopes,
                [seqlens_q, seqlens_k],
                softmax_scale,
                causal,
                [window_size_left, window_size_right],
            )
        }
    };
}
pub(super) use packed_function;

packed_function! {
    /// Attention of sequences one behind the other, without padding: q `[queries, heads, dim]`, k and v
    /// `[keys, kv heads, dim]`, and their lengths, `[sequences]` in u32. The last query of a sequence is at its last key.
    ///
    /// `alibi_slopes` `[heads]` in f32 times minus the distance between query and key is added to the scores; they get a
    /// gradient too. A left window without a right one hides the keys behind the query.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_fused::nn::attention::flash_attn_varlen_unfused;
    /// let x = Tensor::randn(0f32, 1., (5, 2, 4), &Device::Cpu)?;
    /// let lengths = Tensor::new(&[3u32, 2], &Device::Cpu)?;
    /// let y = flash_attn_varlen_unfused(&x, &x, &x, None, &lengths, &lengths, 3, 3, 0.5, true, None, None)?;
    /// assert_eq!(y.dims(), [5, 2, 4]);
    /// # candle_core::Result::Ok(())
    /// ```
    flash_attn_varlen_unfused
}

/// The functions for packed sequences, on behalf of the one that is called `name`.
pub(super) fn packed(
    name: &'static str,
    [q, k, v]: [&Tensor; 3],
    alibi_slopes: Option<&Tensor>,
    [seqlens_q, seqlens_k]: [&Tensor; 2],
    scale: f32,
    causal: bool,
    [left, right]: [Option<usize>; 2],
) -> Result<Tensor> {
    let [total_q, heads, _] = check::dims(name, "q", q, ["queries", "heads", "dim"])?;
    let named = ["keys", "kv heads", "dim"];
    let [total_k, ..] = check::dims(name, "k", k, named)?;
    let [total_v, ..] = check::dims(name, "v", v, named)?;
    let message = format_args!("got {total_k} keys and {total_v} values, expected as many of each");
    ensure(total_k == total_v, name, message)?;
    let message = "got a right window without a left one, expected both or the left one";
    ensure(left.is_some() || right.is_none(), name, message)?;
    let ends_q = cumulative(name, "seqlens_q", seqlens_q, total_q)?;
    let ends_k = cumulative(name, "seqlens_k", seqlens_k, total_k)?;
    let (of_q, of_k) = (ends_q.len() - 1, ends_k.len() - 1);
    let message = format_args!("got {of_k} lengths of keys, expected {of_q} as of queries");
    ensure(of_q == of_k, name, message)?;
    for i in 0..of_q {
        let (queries, keys) = (ends_q[i + 1] - ends_q[i], ends_k[i + 1] - ends_k[i]);
        let message = format_args!(
            "got {queries} causal queries and {keys} keys in sequence {i}, expected no fewer keys"
        );
        ensure(!causal || keys >= queries, name, message)?;
    }
    let (k, v) = with_the_same_heads(name, k, v, heads)?;
    let mut config = AttentionConfig {
        scale: Some(scale),
        causal: causal || (left.is_some() && right.is_none()),
        window_left: left,
        window_right: right,
        ..Default::default()
    };
    let Some(slopes) = alibi_slopes else {
        config.packed = Some(PackedSequences::new(&ends_q, &ends_k)?);
        let y = attention(q, &k, &v, &config);
        return check::on_behalf_of(name, "attention", y);
    };
    let got = slopes.dims();
    let message =
        format_args!("got alibi_slopes of shape {got:?}, expected [{heads}] for the heads");
    ensure(got == [heads], name, message)?;
    config.layout = AttentionLayout::Bshd;
    let slopes = slopes.to_dtype(DType::F32)?;
    let mut outputs = Vec::with_capacity(of_q);
    for (q_ends, k_ends) in ends_q.windows(2).zip(ends_k.windows(2)) {
        let part = |x: &Tensor, ends: &[u32]| {
            x.narrow(0, ends[0] as usize, (ends[1] - ends[0]) as usize)?
                .unsqueeze(0)
        };
        let (q, k, v) = (part(q, q_ends)?, part(&k, k_ends)?, part(&v, k_ends)?);
        let first = k.dims()[1] as i64 - q.dims()[1] as i64;
        let y = attend_with_slopes(name, [&q, &k, &v], first, &slopes, &config)?;
        outputs.push(y.squeeze(0)?);
    }
    match outputs.is_empty() {
        true => Tensor::zeros((0, heads, v.dim(2)?), q.dtype(), q.device()),
        false => Tensor::cat(&outputs, 0),
    }
}

/// The cumulative lengths of sequences, which begin with 0 and must end with `total`.
fn cumulative(name: &str, what: &str, lengths: &Tensor, total: usize) -> Result<Vec<u32>> {
    let (dtype, dims) = (lengths.dtype(), lengths.dims());
    let message =
        format_args!("got {what} of dtype {dtype:?} and shape {dims:?}, expected u32 and one dim");
    ensure(dtype == DType::U32 && dims.len() == 1, name, message)?;
    let lengths = lengths.to_vec1::<u32>()?;
    let mut ends = vec![0u32];
    for length in lengths {
        let end = ends[ends.len() - 1].checked_add(length);
        ends.push(end.ok_or_else(|| check::error(name, "got more than 2^32-1 tokens"))?);
    }
    let sum = ends[ends.len() - 1] as usize;
    let message = format_args!("got {what} with a sum of {sum}, expected the {total} tokens");
    ensure(sum == total, name, message)?;
    Ok(ends)
}
