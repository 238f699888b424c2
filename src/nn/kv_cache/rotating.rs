//! Caches of the last tokens.

use super::buffer::Buffer;
use super::same_tokens;
use crate::check;
use crate::ops::kv_append::Place;
use candle_core::{Device, Result, Tensor};

/// [`candle_nn::kv_cache::RotatingCache`]: the last `max_seq_len` tokens along one dim; a new one takes the slot of the oldest.
///
/// An append of several tokens may take slots of tokens that the first of them should still see; [`attn_mask`] hides what is
/// gone. [`FixedKvCache`] with a window refuses such an append.
///
/// [`attn_mask`]: RotatingCache::attn_mask
/// [`FixedKvCache`]: super::FixedKvCache
#[derive(Debug, Clone)]
pub struct RotatingCache {
    buffer: Buffer,
    dim: usize,
    /// The slot of the next token.
    offset: usize,
    /// All tokens that there ever were.
    current_seq_len: usize,
    max_seq_len: usize,
}

impl RotatingCache {
    /// For tokens along `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            buffer: Buffer::default(),
            dim,
            offset: 0,
            current_seq_len: 0,
            max_seq_len,
        }
    }

    /// The slot of the next token.
    pub fn offset(&self) -> usize {
        self.offset
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// All tokens that there ever were, also those that are gone.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The whole memory, also what is not yet written.
    pub fn all_data(&self) -> &Option<Tensor> {
        self.buffer.data()
    }

    /// A view of the cached tokens, in the order of their slots.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let len = self.current_seq_len.min(self.max_seq_len);
        let view = |data: &Tensor| data.narrow(self.dim, 0, len);
        self.buffer.data().as_ref().map(view).transpose()
    }

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        self.offset = 0;
        self.current_seq_len = 0;
        self.buffer.reset();
    }

    /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Writes tokens, and returns a view of what is cached then; or the tokens themselves, if there are as many as slots or
    /// more, so that all of them can be seen.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        self.append_for("RotatingCache::append", src)
    }

    fn append_for(&mut self, name: &'static str, src: &Tensor) -> Result<Tensor> {
        let max = self.max_seq_len;
        let tokens = check::tokens(name, "src", src, self.dim)?;
        let message = "got a cache with a max_seq_len of 0, expected one with slots";
        check::ensure(max > 0, name, message)?;
        let fills = tokens >= max;
        let last = src.narrow(self.dim, tokens.saturating_sub(max), tokens.min(max))?;
        let start = if fills { 0 } else { self.offset };
        if self
            .buffer
            .passes_on(name, src, self.current_seq_len == 0)?
        {
            self.buffer.adopt(last);
        } else {
            let kept = if fills {
                0
            } else {
                self.current_seq_len.min(max)
            };
            let place = Place {
                start,
                count: tokens.min(max),
            };
            self.buffer
                .write(name, &last, self.dim, (max, kept), place)?;
        }
        self.current_seq_len += tokens;
        if fills {
            self.offset = 0;
            return Ok(src.clone());
        }
        self.offset = (start + tokens) % max;
        let view = self.current_data()?;
        view.ok_or_else(|| check::error(name, "the cache has no memory"))
    }

    fn mask_of_chunk(&self, len: usize, device: &Device) -> Result<Tensor> {
        let context = self.max_seq_len;
        let hidden = |i: usize, j: usize| j > i || j + context < i;
        mask(len, len, device, hidden)
    }

    fn mask_of_slots(&self, len: usize, slots: usize, device: &Device) -> Result<Tensor> {
        let (context, first) = (self.max_seq_len, self.current_seq_len);
        let positions = self.positions(len);
        let hidden = |i: usize, j: usize| {
            let (query, key) = (first + i, positions[j]);
            key > query || key + context < query
        };
        mask(len, slots, device, hidden)
    }

    /// The positions of all tokens that an append of `seq_len` tokens will return.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let len = self.current_seq_len + seq_len;
        // An append of as many tokens as slots returns the tokens themselves.
        if seq_len >= self.max_seq_len {
            return (self.current_seq_len..len).collect();
        }
        let next = (self.offset + seq_len) % self.max_seq_len;
        let position = |slot: usize| match slot < next {
            true => len + slot - next,
            false => len + slot - next - self.max_seq_len,
        };
        (0..len.min(self.max_seq_len)).map(position).collect()
    }

    /// The mask, with 1 for what is hidden, for an append of `seq_len` tokens; to be asked for before the append. `None` for one
    /// token, which sees everything.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        if seq_len == 1 {
            return Ok(None);
        }
        let mask = match seq_len < self.max_seq_len {
            true => {
                let slots = (self.current_seq_len + seq_len).min(self.max_seq_len);
                self.mask_of_slots(seq_len, slots, device)?
            }
            false => self.mask_of_chunk(seq_len, device)?,
        };
        Ok(Some(mask))
    }
}

/// `[queries, keys]`, with 1 for what is hidden.
fn mask(
    queries: usize,
    keys: usize,
    device: &Device,
    hidden: impl Fn(usize, usize) -> bool,
) -> Result<Tensor> {
    let hidden = &hidden;
    let row = |i: usize| (0..keys).map(move |j| u8::from(hidden(i, j)));
    let mask: Vec<u8> = (0..queries).flat_map(row).collect();
    Tensor::from_vec(mask, (queries, keys), device)
}

/// [`candle_nn::kv_cache::RotatingKvCache`]: the last keys and values.
#[derive(Debug, Clone)]
pub struct RotatingKvCache {
    k: RotatingCache,
    v: RotatingCache,
}

impl RotatingKvCache {
    /// For tokens along `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        let cache = RotatingCache::new(dim, max_seq_len);
        Self {
            k: cache.clone(),
            v: cache,
        }
    }

    pub fn k_cache(&self) -> &RotatingCache {
        &self.k
    }

    pub fn v_cache(&self) -> &RotatingCache {
        &self.v
    }

    pub fn k_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.k
    }

    pub fn v_cache_mut(&mut self) -> &mut RotatingCache {
        &mut self.v
    }

    /// A view of the cached keys.
    pub fn k(&self) -> Result<Option<Tensor>> {
        self.k.current_data()
    }

    /// A view of the cached values.
    pub fn v(&self) -> Result<Option<Tensor>> {
        self.v.current_data()
    }

    /// As [`RotatingCache::append`], for keys and values.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let name = "RotatingKvCache::append";
        same_tokens(name, k, v, self.k.dim)?;
        self.v
            .buffer
            .accepts(name, v, self.v.dim, self.v.current_seq_len == 0)?;
        let k = self.k.append_for(name, k)?;
        Ok((k, self.v.append_for(name, v)?))
    }

    /// The slot of the next token.
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// [`RotatingCache::attn_mask`]
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// [`RotatingCache::positions`]
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }

    /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
    pub fn fork(&self) -> Self {
        self.clone()
    }
}
