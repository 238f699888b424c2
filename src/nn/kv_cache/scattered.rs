//! [`ScatteredKvCache`]: a cache for a batch whose sequences begin and end at different times, as a server has it.

use super::same_tokens;
use crate::check::{self, ensure};
use crate::nn::attention::table;
use crate::ops::kv_append::{kv_append, Place};
use candle_core::{DType, Device, Result, Tensor};
use std::sync::Arc;

/// The slots that the tokens of one step are written to, and the mask of the keys that they see: made by [`ScatteredCacheBuilder::indices_and_mask`].
#[derive(Debug, Clone)]
pub struct IndicesAndMask {
    mask: Tensor,
    places: Vec<Place>,
    context: usize,
    tokens: usize,
}

impl IndicesAndMask {
    /// 0 where a token sees a slot and −∞ where it does not: `[batch, 1, tokens, context]`, or `[tokens, tokens]` for a chunk as
    /// long as the context or longer.
    pub fn mask(&self) -> &Tensor {
        &self.mask
    }
}

/// [`candle_nn::kv_cache::ScatteredKvCache`]: keys and values `[batch, heads, context, head_dim]`, with the last `context`
/// tokens of each sequence. [`ScatteredCacheBuilder`] makes it, and counts the sequences' tokens for the caches of all layers.
#[derive(Debug, Clone)]
pub struct ScatteredKvCache {
    k: Tensor,
    v: Tensor,
    context: usize,
    /// As many as there are caches that share the memory.
    owners: Arc<()>,
}

impl ScatteredKvCache {
    /// Writes a step's tokens, `[batch, heads, tokens, head_dim]`, and returns all keys and values; or k and v themselves, if
    /// they are as long as the context or longer.
    pub fn append(
        &mut self,
        k: &Tensor,
        v: &Tensor,
        iam: &IndicesAndMask,
    ) -> Result<(Tensor, Tensor)> {
        let name = "ScatteredKvCache::append";
        same_tokens(name, k, v, 2)?;
        let tokens = check::tokens(name, "k", k, 2)?;
        let (batch, of_step) = (self.k.dims()[0], iam.places.len());
        ensure(
            (batch, tokens, self.context) == (of_step, iam.tokens, iam.context),
            name,
            format_args!(
                "got {tokens} tokens for a cache of {batch} sequences with a context of {}, \
                 expected {} tokens, {of_step} sequences and a context of {} as for the indices",
                self.context, iam.tokens, iam.context
            ),
        )?;
        let message =
            "got tokens that track gradients, which the cache would lose; expected detached ones";
        ensure(!k.track_op() && !v.track_op(), name, message)?;
        if Arc::get_mut(&mut self.owners).is_none() {
            // `Tensor::copy` would share the buffers on Metal.
            (self.k, self.v) = (self.k.force_contiguous()?, self.v.force_contiguous()?);
            self.owners = Arc::new(());
        }
        let kept = tokens.min(self.context);
        let last = |x: &Tensor| x.narrow(2, tokens - kept, kept);
        // Nothing of v is refused once k is written.
        let (whole, got) = (self.v.dims(), v.dims());
        let fits = got.len() == 4 && [0, 1, 3].into_iter().all(|i| got[i] == whole[i]);
        ensure(
            fits && v.dtype() == self.v.dtype(),
            name,
            format_args!("got v of shape {got:?} and dtype {:?}, expected that of the cache, {whole:?} and {:?}", v.dtype(), self.v.dtype()),
        )?;
        kv_append(name, &self.k, &last(k)?, 2, &iam.places)?;
        kv_append(name, &self.v, &last(v)?, 2, &iam.places)?;
        match tokens < self.context {
            true => Ok((self.k.clone(), self.v.clone())),
            false => Ok((k.clone(), v.clone())),
        }
    }

    /// The keys in their slots, `[batch, heads, context, head_dim]`. Slots that were never written hold zeros.
    pub fn k(&self) -> &Tensor {
        &self.k
    }

    /// The values in their slots, as [`k`](Self::k).
    pub fn v(&self) -> &Tensor {
        &self.v
    }
}

/// [`candle_nn::kv_cache::ScatteredCacheBuilder`]: makes caches, and counts the tokens of each sequence of the batch.
#[derive(Debug, Clone)]
pub struct ScatteredCacheBuilder {
    context: usize,
    /// The tokens of each sequence so far. The next one's slot is the remainder by the context.
    positions: Vec<usize>,
    dtype: DType,
    device: Device,
}

impl ScatteredCacheBuilder {
    /// For caches with `context` slots for each sequence of a batch.
    pub fn new(batch_size: usize, context: usize, dtype: DType, device: &Device) -> Result<Self> {
        let message = "got a context of 0, expected slots for tokens";
        ensure(context > 0, "ScatteredCacheBuilder::new", message)?;
        Ok(Self {
            positions: vec![0; batch_size],
            context,
            dtype,
            device: device.clone(),
        })
    }

    /// A layer's cache.
    pub fn make_cache(&self, num_heads: usize, head_dim: usize) -> Result<ScatteredKvCache> {
        let shape = (self.batch_size(), num_heads, self.context, head_dim);
        Ok(ScatteredKvCache {
            k: Tensor::zeros(shape, self.dtype, &self.device)?,
            v: Tensor::zeros(shape, self.dtype, &self.device)?,
            context: self.context,
            owners: Arc::new(()),
        })
    }

    /// The tokens of each sequence so far.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// All sequences begin again.
    pub fn reset(&mut self) {
        self.positions.fill(0);
    }

    /// The number of sequences.
    pub fn batch_size(&self) -> usize {
        self.positions.len()
    }

    /// One sequence begins again.
    ///
    /// # Panics
    ///
    /// If the batch has no such sequence.
    pub fn reset_batch_index(&mut self, batch_index: usize) {
        self.positions[batch_index] = 0;
    }

    /// Counts `seq_len` tokens for each sequence whose `batch_mask` is true, and chooses their slots.
    pub fn indices_and_mask(
        &mut self,
        seq_len: usize,
        batch_mask: &[bool],
    ) -> Result<IndicesAndMask> {
        let (got, batch) = (batch_mask.len(), self.batch_size());
        ensure(
            got == batch,
            "ScatteredCacheBuilder::indices_and_mask",
            format_args!("got a batch_mask of {got}, expected {batch} for the batch"),
        )?;
        let (context, kept) = (self.context, seq_len.min(self.context));
        let mask = match seq_len < context {
            true => self.mask_of_slots(seq_len, batch_mask)?,
            false => self.mask_of_chunk(seq_len)?,
        };
        let mut places = Vec::with_capacity(batch);
        for (position, &active) in self.positions.iter_mut().zip(batch_mask) {
            let tokens = if active { seq_len } else { 0 };
            *position += tokens;
            places.push(Place {
                start: (*position - kept.min(tokens)) % context,
                count: kept.min(tokens),
            });
        }
        Ok(IndicesAndMask {
            mask: mask.to_dtype(self.dtype)?,
            places,
            context,
            tokens: seq_len,
        })
    }

    /// The device of the caches.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Sequences that take no part in the step see all slots: their results mean nothing, but are not NaN.
    fn mask_of_slots(&self, seq_len: usize, batch_mask: &[bool]) -> Result<Tensor> {
        let context = self.context;
        let mut mask = Vec::with_capacity(batch_mask.len() * seq_len * context);
        for (&start, &active) in self.positions.iter().zip(batch_mask) {
            let end = start + seq_len;
            for query in start..end {
                // The slot holds the last position before the end that leaves its remainder.
                let seen = |slot: usize| match (end - 1).checked_sub(slot) {
                    Some(before) => before / context * context + slot <= query,
                    None => false,
                };
                let value = |slot| {
                    let seen = !active || seen(slot);
                    if seen {
                        0f32
                    } else {
                        f32::NEG_INFINITY
                    }
                };
                mask.extend((0..context).map(value));
            }
        }
        let shape = (batch_mask.len(), 1, seq_len, context);
        Tensor::from_vec(mask, shape, &self.device)
    }

    fn mask_of_chunk(&self, len: usize) -> Result<Tensor> {
        let context = self.context;
        let value = |i: usize, j: usize| match j > i || j + context < i {
            true => f32::NEG_INFINITY,
            false => 0.0,
        };
        table(len, len, &self.device, value)
    }
}
