//! What a call of attention is told beside its queries, keys and values.

use crate::check;
use candle_core::{DType, Result, Tensor};
use std::sync::Arc;

/// How [`attention`](super::attention) weighs keys. Every field has a default that changes nothing:
///
/// ```
/// use candle_fused::ops::AttentionConfig;
/// let config = AttentionConfig { causal: true, window_left: Some(1023), ..Default::default() };
/// assert!(config.mask.is_none() && config.scale.is_none());
/// ```
///
/// Query i of a sequence stands at position `p = i + keys − queries`: the last query at the last key, as a KV cache needs it.
/// With [`key_lengths`](Self::key_lengths) it is `p = i + max(length − queries, 0)`, so that a batch of padded prompts
/// (as many queries as keys) and the next tokens behind cached ones both stand where they should.
#[derive(Clone, Debug, Default)]
pub struct AttentionConfig {
    /// Multiplies the products of queries and keys; by default 1/√D.
    pub scale: Option<f32>,
    /// Whether a query sees only the keys j ≤ p.
    pub causal: bool,
    /// A query sees the keys j ≥ p − left only.
    pub window_left: Option<usize>,
    /// A query sees the keys j ≤ p + right only.
    pub window_right: Option<usize>,
    /// Broadcasts to `[batch, heads, queries, keys]`. Of q's dtype it is added to the scores (−∞ hides) and can be trained; of
    /// u8 it says which keys a query may attend to: those that are not 0.
    pub mask: Option<Tensor>,
    /// u32 or i64 of shape `[batch]`: how many keys of each batch row exist. The others may hold anything. A length beyond
    /// the keys counts as all of them.
    pub key_lengths: Option<Tensor>,
    /// Sequences of different lengths one behind the other; q, k and v are then `[tokens, heads, dim]`.
    pub packed: Option<PackedSequences>,
    /// Limits the scores, before a mask is added: `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// `[heads]`, of q's dtype: a score that takes part in the softmax's denominator, but has no value.
    pub sinks: Option<Tensor>,
    /// Drops attention weights at random.
    pub dropout: Option<AttentionDropout>,
    /// The order of the tensors' dims.
    pub layout: AttentionLayout,
}

impl AttentionConfig {
    /// The tensors among the options, in the order in which kernels take them behind q, k and v.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let tensors = [&self.mask, &self.sinks, &self.key_lengths];
        tensors.into_iter().flatten()
    }
}

/// The order of the dims of q, k, v and of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionLayout {
    /// `[batch, heads, sequence, dim]`
    #[default]
    Bhsd,
    /// `[batch, sequence, heads, dim]`
    Bshd,
}

/// Dropout of attention weights. Which ones are dropped depends on the seed and on their place alone, so that the backward
/// drops the same: the weight of key j for query i of head h is that of element
/// `((batch · heads + h) · queries + i) · K + j` in [`dropout`](crate::ops::dropout), where K is the number of keys rounded up
/// to a multiple of four. In packed sequences, i counts all queries and j the sequence's own keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDropout {
    /// The probability that a weight is dropped. The others are scaled by `1 / (1 − p)`.
    pub p: f32,
    pub seed: u64,
}

/// Where packed sequences begin and end.
///
/// ```
/// use candle_fused::ops::PackedSequences;
/// // Sequences of 3, 1 and 4 tokens.
/// let packed = PackedSequences::new(&[0, 3, 4, 8], &[0, 3, 4, 8])?;
/// assert_eq!(packed.count(), 3);
/// assert!(PackedSequences::new(&[0, 3], &[0, 3, 4]).is_err());
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedSequences {
    queries: Arc<[u32]>,
    keys: Arc<[u32]>,
}

const PACKED: &str = "PackedSequences::new";

impl PackedSequences {
    /// Cumulative lengths: sequence n has the queries `queries[n]..queries[n + 1]` and the keys `keys[n]..keys[n + 1]`. Both
    /// begin with 0.
    pub fn new(queries: &[u32], keys: &[u32]) -> Result<Self> {
        for (name, lengths) in [("queries", queries), ("keys", keys)] {
            let ascending = lengths.windows(2).all(|pair| pair[0] <= pair[1]);
            let message = format_args!(
                "got {name} = {lengths:?}, expected ascending numbers that begin with 0"
            );
            check::ensure(ascending && lengths.first() == Some(&0), PACKED, message)?;
        }
        let (got, expected) = (keys.len(), queries.len());
        let message =
            format_args!("got {got} cumulative lengths of keys, expected {expected} as of queries");
        check::ensure(got == expected, PACKED, message)?;
        Ok(PackedSequences {
            queries: queries.into(),
            keys: keys.into(),
        })
    }

    /// As [`PackedSequences::new`], from tensors of u32 or i64, which are read once.
    pub fn from_tensors(queries: &Tensor, keys: &Tensor) -> Result<Self> {
        let read = |t: &Tensor| -> Result<Vec<u32>> {
            match t.dtype() {
                DType::U32 => t.to_vec1(),
                DType::I64 => {
                    let wide = t.to_vec1::<i64>()?;
                    let narrow = wide.into_iter().map(|n| {
                        let message = format!("got {n}, expected a u32");
                        u32::try_from(n).map_err(|_| check::error(PACKED, message))
                    });
                    narrow.collect()
                }
                dtype => Err(check::error(
                    PACKED,
                    format!("got dtype {dtype:?}, expected u32 or i64"),
                )),
            }
        };
        PackedSequences::new(&read(queries)?, &read(keys)?)
    }

    /// The number of sequences.
    pub fn count(&self) -> usize {
        self.queries.len() - 1
    }

    /// The cumulative lengths of queries.
    pub fn queries(&self) -> &[u32] {
        &self.queries
    }

    /// The cumulative lengths of keys.
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }
}
