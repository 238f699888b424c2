//! Attention with masks, and behind the tokens of a cache.

use super::Attention;
use crate::check;
use crate::nn::kv_cache::{Counts, FixedKvCache, KvCache};
use crate::ops::{AttentionConfig, AttentionLayout, RopePositions};
use candle_core::{DType, Module, Result, Tensor};

const FIXED: &str = "Attention::forward_fixed";

impl Attention {
    /// x is `[batch, tokens, hidden]`. A mask broadcasts to `[batch, heads, tokens, keys]`: of x's dtype it is added to the
    /// scores, of u8 it says which keys are seen; what else the layer's config hides stays hidden. A layer whose config has a
    /// mask takes no other.
    ///
    /// With a cache, which has its tokens along dim 2, the tokens come behind those that it holds. A call that fails leaves the
    /// cache's tokens as they were. Where queries track gradients and cached keys do not, the graph gets a copy of all keys and
    /// values, so that the cache may be written again before the backward.
    pub fn forward_with(
        &self,
        x: &Tensor,
        mask: Option<&Tensor>,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        self.forward_for("Attention::forward_with", x, mask, cache)
    }

    pub(super) fn forward_for(
        &self,
        name: &'static str,
        x: &Tensor,
        mask: Option<&Tensor>,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let config = self.config_with(name, x, mask)?;
        let Some(cache) = cache else {
            let [q, k, v] = self.heads(name, x, RopePositions::From(0))?;
            return self.attend(&q, &k, &v, config);
        };
        let dims = [cache.k_cache().dim(), cache.v_cache().dim()];
        let message =
            format_args!("got a cache with tokens along dims {dims:?} of k and v, expected dim 2");
        check::ensure(dims == [2, 2], name, message)?;
        let before = [cache.k_cache(), cache.v_cache()].map(|cache| cache.current_seq_len());
        let [q, k, v] = self.heads(name, x, RopePositions::From(before[0]))?;
        let (k, v) = cache.append_for(name, &k.transpose(1, 2)?, &v.transpose(1, 2)?)?;
        let in_graph = is_in_graph(&q, &config);
        let y = (|| {
            let (k, v) = (of_cache(&k, in_graph)?, of_cache(&v, in_graph)?);
            self.attend(&q, &k, &v, config)
        })();
        if y.is_err() {
            cache.k_cache_mut().truncate(before[0])?;
            cache.v_cache_mut().truncate(before[1])?;
        }
        y
    }

    /// The layer's config with a call's mask.
    fn config_with(
        &self,
        name: &str,
        x: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<AttentionConfig> {
        let mut config = self.config.clone();
        if let Some(mask) = mask {
            let message = "got a mask beside that of the layer's config, expected one of both";
            check::ensure(config.mask.is_none(), name, message)?;
            config.mask = Some(mask.clone());
        }
        if let Some(mask) = &config.mask {
            let (got, expected) = (mask.dtype(), x.dtype());
            let message =
                format_args!("got a mask of dtype {got:?}, expected {expected:?} as for x, or u8");
            check::ensure(got == expected || got == DType::U8, name, message)?;
        }
        Ok(config)
    }

    /// Causal attention behind the tokens of a cache in which each sequence has a length of its own: of sequence i the first
    /// `counts[i]` tokens count, and the result of the others means nothing. The cache's window is the layer's: `window_left`
    /// tokens and the token itself. What is hidden beyond that, the cache does not know: a layer whose config is not causal, or
    /// has a mask, a right window, key lengths or packed sequences, is an error.
    ///
    /// A call that fails leaves the cache's tokens as they were. Where queries track gradients, which keys must not, the graph
    /// gets a copy of all keys and values, so that the cache may be written again before the backward.
    pub fn forward_fixed(
        &self,
        x: &Tensor,
        cache: &mut FixedKvCache,
        counts: &[usize],
    ) -> Result<Tensor> {
        cache.check_config(FIXED, &self.config)?;
        let [batch, tokens, _] = check::dims(FIXED, "x", x, ["batch", "tokens", "hidden"])?;
        let expected = cache.config().batch;
        let message = format_args!(
            "got {batch} sequences and {} counts, expected {expected} as the cache has",
            counts.len()
        );
        let whole = batch == expected && counts.len() == expected;
        check::ensure(whole, FIXED, message)?;
        let ids = self.positions(cache, tokens, counts)?;
        let ids = Tensor::from_vec(ids, (batch, tokens), x.device())?;
        let [q, k, v] = self.heads(FIXED, x, RopePositions::Ids(ids))?;
        let tokens_of = Counts::Each(counts);
        cache.append_for(FIXED, &k.transpose(1, 2)?, &v.transpose(1, 2)?, tokens_of)?;
        let config = AttentionConfig {
            layout: AttentionLayout::Bshd,
            ..self.config.clone()
        };
        let y = cache.attend(&q, &config);
        let y = check::on_behalf_of(FIXED, "FixedKvCache::attend", y);
        let y = y.and_then(|y| self.output.forward(&y.flatten_from(2)?));
        if y.is_err() {
            cache.take_back();
        }
        y
    }

    /// The position of each token, `[batch, tokens]`.
    fn positions(&self, cache: &FixedKvCache, tokens: usize, counts: &[usize]) -> Result<Vec<u32>> {
        let lengths = cache.lengths();
        let last = match &self.rotary {
            Some(tables) => tables.cos().dims()[0].saturating_sub(1),
            None => u32::MAX as usize,
        };
        let sound =
            |(len, count): (&usize, &usize)| *count == 0 || len.saturating_add(count - 1) <= last;
        let message =
            format_args!("got tokens behind position {last}, the last of the rotary tables");
        check::ensure(lengths.iter().zip(counts).all(sound), FIXED, message)?;
        // Padding has no position of its own.
        let ids = lengths
            .into_iter()
            .flat_map(|len| (0..tokens).map(move |t| len.saturating_add(t).min(last) as u32));
        Ok(ids.collect())
    }
}

/// Whether attention keeps keys and values for a backward, whatever these track.
fn is_in_graph(q: &Tensor, config: &AttentionConfig) -> bool {
    let rest = [&config.mask, &config.sinks];
    let rest = rest.into_iter().flatten();
    q.track_op() || rest.into_iter().any(|t| t.track_op())
}

/// Keys or values `[batch, heads, keys, dim]` of a cache, as `[batch, keys, heads, dim]`: a view, or, for a graph, a copy. A later
/// token may take a slot of the view before the graph's backward reads it.
fn of_cache(x: &Tensor, in_graph: bool) -> Result<Tensor> {
    let x = x.transpose(1, 2)?;
    match in_graph && !x.track_op() {
        true => x.force_contiguous(),
        false => Ok(x),
    }
}
