//! What the tokens of a cache see, and attention to it.

use super::FixedKvCache;
use crate::check::{self, ensure};
use crate::nn::kv_cache::store::Store;
use crate::ops::{self, AttentionConfig, AttentionLayout};
use candle_core::{Result, Tensor};

impl FixedKvCache {
    /// The position of the token in each slot in use of a sequence; `None` for a slot without one.
    fn positions(&self, i: usize) -> impl Iterator<Item = Option<usize>> + '_ {
        let (len, capacity) = (self.sequences[i].len, self.config.capacity);
        (0..self.slots()).map(move |slot| {
            let before = len.checked_sub(slot + 1)?;
            Some(before / capacity * capacity + slot)
        })
    }

    /// What the last `queries` tokens of each sequence see: 0, or −∞ for later tokens, for those before the window and for slots
    /// without one. `[batch, 1, queries, slots]`, to be added to scores.
    ///
    /// For [`append_counts`](Self::append_counts), `queries` is the number of tokens with the padding; a row that stands for
    /// padding sees what the last token sees.
    pub fn mask(&self, queries: usize) -> Result<Tensor> {
        let (batch, slots) = (self.config.batch, self.slots());
        let mut mask = Vec::with_capacity(batch * queries * slots);
        for (i, sequence) in self.sequences.iter().enumerate() {
            let positions: Vec<_> = self.positions(i).collect();
            let first = sequence.len - sequence.last.min(queries);
            for query in first..first + queries {
                let query = query.min(sequence.len.saturating_sub(1));
                let sees = |key: usize| {
                    let near = self.config.window.is_none_or(|window| query < key + window);
                    key <= query && near
                };
                let value = |key: &Option<usize>| match key.is_some_and(sees) {
                    true => 0f32,
                    false => f32::NEG_INFINITY,
                };
                mask.extend(positions.iter().map(value));
            }
        }
        Tensor::from_vec(mask, (batch, 1, queries, slots), &self.device)?.to_dtype(self.dtype)
    }

    /// Causal attention of the tokens of the last append, whose queries are q, `[batch, heads, tokens, key_dim]` or as
    /// the config's layout says, to those in the cache. Codes are read as they are, without a dequantised copy. A token
    /// of a row that [`append_counts`](Self::append_counts) did not count gives a result that means nothing.
    ///
    /// The cache knows what a token sees: the config is causal, has the cache's window (`window_left` is one less), and no
    /// mask, right window, key lengths or packed sequences. Differentiable in q and the sinks: then the graph gets a copy of
    /// all keys and values, so that the cache may be written again before the backward.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig};
    /// use candle_fused::ops::AttentionConfig;
    ///
    /// let config = FixedKvConfig::new(1, 2, 64, 128).with_int4(32);
    /// let mut cache = FixedKvCache::new(config, DType::F32, &Device::Cpu)?;
    /// let token = Tensor::randn(0f32, 1., (1, 2, 1, 64), &Device::Cpu)?;
    /// cache.append(&token, &token)?;
    /// let q = Tensor::randn(0f32, 1., (1, 8, 1, 64), &Device::Cpu)?;
    /// let y = cache.attend(&q, &AttentionConfig { causal: true, ..Default::default() })?;
    /// assert_eq!(y.dims(), [1, 8, 1, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn attend(&self, q: &Tensor, config: &AttentionConfig) -> Result<Tensor> {
        let name = "FixedKvCache::attend";
        self.check_config(name, config)?;
        check::same_dtype(name, self.dtype, "q", q.dtype())?;
        let dim = match config.layout {
            AttentionLayout::Bhsd => 2,
            AttentionLayout::Bshd => 1,
        };
        let config = self.config_for(check::tokens(name, "q", q, dim)?, config)?;
        let in_graph = q.track_op() || config.sinks.as_ref().is_some_and(Tensor::track_op);
        let slots = self.slots();
        if let (Some(keys), Some(values)) = (self.key_codes(), self.value_codes()) {
            let y = ops::attention_codes(q, &keys.first(slots)?, &values.first(slots)?, &config);
            return check::on_behalf_of(name, "attention_codes", y);
        }
        let read = |store: &Store| -> Result<Tensor> {
            let x = store.read(slots)?;
            // A later token may take a slot of a view before the graph's backward reads it.
            let x = if in_graph { x.force_contiguous()? } else { x };
            match config.layout {
                AttentionLayout::Bhsd => Ok(x),
                AttentionLayout::Bshd => x.transpose(1, 2),
            }
        };
        let y = ops::attention(q, &read(&self.keys)?, &read(&self.values)?, &config);
        check::on_behalf_of(name, "attention", y)
    }

    /// A config sees what the cache keeps and knows about.
    pub(crate) fn check_config(&self, name: &str, config: &AttentionConfig) -> Result<()> {
        for (sound, what) in [
            (config.causal, "is not causal"),
            (config.mask.is_none(), "has a mask"),
            (config.window_right.is_none(), "has a right window"),
            (config.key_lengths.is_none(), "has key_lengths"),
            (config.packed.is_none(), "has packed sequences"),
        ] {
            let message = format_args!(
                "got a config that {what}, expected a causal one with a left window at most"
            );
            ensure(sound, name, message)?;
        }
        let window = config.window_left.map(|left| left.saturating_add(1));
        let got = self.config.window;
        let message = format_args!(
            "got a cache with a window of {got:?}, expected {window:?} as the config has"
        );
        ensure(got == window, name, message)
    }

    /// What the tokens of the last append see.
    fn config_for(&self, tokens: usize, config: &AttentionConfig) -> Result<AttentionConfig> {
        let capacity = self.config.capacity;
        let mut sequences = self.sequences.iter();
        // Token t of a sequence is in slot t while no slot has been used twice.
        let in_order = sequences.all(|seq| seq.last == tokens && seq.written <= capacity);
        Ok(match in_order {
            true => AttentionConfig {
                key_lengths: Some(self.key_lengths()?),
                ..config.clone()
            },
            // The cache's mask knows the lengths and the window, in whatever order the slots are.
            false => AttentionConfig {
                mask: Some(self.mask(tokens)?),
                causal: false,
                window_left: None,
                ..config.clone()
            },
        })
    }
}
