//! The numbers of heads and elements of an attention layer.

use crate::check;
use candle_core::Result;

/// The sizes of an [`Attention`](super::Attention).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Elements of a token.
    pub hidden: usize,
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has one.
    pub output_bias: bool,
}

impl AttentionSizes {
    /// As many heads of keys as of queries, which make up a token together; no biases.
    pub fn new(hidden: usize, heads: usize) -> Self {
        AttentionSizes {
            hidden,
            heads,
            kv_heads: heads,
            head_dim: hidden.checked_div(heads).unwrap_or(0),
            qkv_bias: false,
            output_bias: false,
        }
    }

    /// Grouped-query attention: `kv_heads` heads of keys and values, and each of these heads serves `heads / kv_heads` heads of
    /// queries.
    pub fn with_kv_heads(self, kv_heads: usize) -> Self {
        AttentionSizes { kv_heads, ..self }
    }

    /// Heads of another size than `hidden / heads`.
    pub fn with_head_dim(self, head_dim: usize) -> Self {
        AttentionSizes { head_dim, ..self }
    }

    /// Biases of the projections.
    pub fn with_biases(self, qkv_bias: bool, output_bias: bool) -> Self {
        AttentionSizes {
            qkv_bias,
            output_bias,
            ..self
        }
    }

    pub(super) fn check(&self, name: &str) -> Result<()> {
        let sound =
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads) && self.head_dim > 0;
        let message =
            format_args!("got {self:?}, expected kv_heads that divide heads, and a head_dim");
        check::ensure(sound, name, message)
    }

    /// The outputs of the projections to queries, keys and values.
    pub(super) fn widths(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_dim)
    }
}
