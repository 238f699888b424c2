//! [`TransformerBlock`]: attention and an MLP, each behind a norm and beside a residual.

use super::{attention, swiglu, Attention, AttentionSizes, FeedForward, RotaryTables};
use crate::nn::kv_cache::KvCache;
use crate::nn::{rms_norm, LayerNorm};
use crate::ops;
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// Attention and an MLP, each behind a norm and beside a residual:
///
/// ```text
/// h = x + attention(norm₁(x))
/// y = h + mlp(norm₂(h))
/// ```
///
/// The first sum and the second norm are one op.
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    input_norm: LayerNorm,
    attention: Attention,
    post_norm: LayerNorm,
    feed_forward: FeedForward,
}

impl TransformerBlock {
    /// Of any layers. [`RmsNorm::into_inner`](crate::nn::RmsNorm::into_inner) makes an RMS norm one of these norms.
    pub fn new(
        input_norm: LayerNorm,
        attention: Attention,
        post_norm: LayerNorm,
        feed_forward: impl Into<FeedForward>,
    ) -> Self {
        TransformerBlock {
            input_norm,
            attention,
            post_norm,
            feed_forward: feed_forward.into(),
        }
    }

    /// The attention layer.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The same block outside any graph, for inference with a cache.
    pub fn detached(&self) -> Self {
        TransformerBlock {
            input_norm: self.input_norm.detached(),
            attention: self.attention.detached(),
            post_norm: self.post_norm.detached(),
            feed_forward: self.feed_forward.detached(),
        }
    }

    /// x is `[batch, tokens, hidden]`; for mask and cache see [`Attention::forward_with`].
    pub fn forward(
        &self,
        x: &Tensor,
        mask: Option<&Tensor>,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let normed = self.input_norm.forward(x)?;
        let attended = self.attention.forward_with(&normed, mask, cache)?;
        self.behind_attention(x, &attended)
    }

    /// As [`forward`](Self::forward), with the cache of [`Attention::forward_fixed`].
    pub fn forward_fixed(
        &self,
        x: &Tensor,
        cache: &mut crate::nn::kv_cache::FixedKvCache,
        counts: &[usize],
    ) -> Result<Tensor> {
        let normed = self.input_norm.forward(x)?;
        let attended = self.attention.forward_fixed(&normed, cache, counts)?;
        self.behind_attention(x, &attended)
    }

    /// The sum with the residual, the second norm and the MLP.
    fn behind_attention(&self, x: &Tensor, attended: &Tensor) -> Result<Tensor> {
        let norm = &self.post_norm;
        let (weight, bias, eps) = (Some(norm.weight()), norm.bias(), norm.eps() as f32);
        let (sum, normed) = match (eps > 0.0, norm.remove_mean(), bias) {
            (true, true, bias) => ops::add_layer_norm(attended, x, weight, bias, eps)?,
            (true, false, None) => ops::add_rms_norm(attended, x, weight, eps)?,
            _ => {
                let sum = (attended + x)?;
                let normed = norm.forward(&sum)?;
                (sum, normed)
            }
        };
        sum + self.feed_forward.forward(&normed)?
    }
}

/// The sizes of a [`llama_block`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockConfig {
    pub attention: AttentionSizes,
    /// Elements between the MLP's layers.
    pub intermediate: usize,
    /// The epsilon of both norms.
    pub eps: f64,
}

/// A block with the variables of Hugging Face's Llama: `input_layernorm`, `self_attn`, `post_attention_layernorm` and `mlp`.
pub fn llama_block(
    config: BlockConfig,
    tables: RotaryTables,
    vb: VarBuilder,
) -> Result<TransformerBlock> {
    let (hidden, eps) = (config.attention.hidden, config.eps);
    let norm = |name| rms_norm(hidden, eps, vb.pp(name)).map(|norm| norm.into_inner());
    let attention = attention(config.attention, vb.pp("self_attn"))?.with_rotary(tables);
    let mlp = swiglu(hidden, config.intermediate, vb.pp("mlp"))?;
    Ok(TransformerBlock::new(
        norm("input_layernorm")?,
        attention,
        norm("post_attention_layernorm")?,
        mlp,
    ))
}
