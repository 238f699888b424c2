//! Caches that keep the last tokens and forget the others: [`RotatingCache`] for keys or values, [`RotatingKvCache`] for both.

use super::buffer::Buffer;
use super::methods::{cache_methods, cache_pair};
use crate::check;
use crate::nn::attention::table;
use crate::ops::kv_append::Place;
use candle_core::{Device, Result, Tensor};

/// [`candle_nn::kv_cache::RotatingCache`]: the last `max_seq_len` tokens along one dim; a new one takes the slot of the oldest.
///
/// An append of several tokens may overwrite old tokens that the first of the new ones should still see; [`attn_mask`] then hides
/// the slots that have been overwritten. [`FixedKvCache`] with a window refuses such an append.
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

cache_methods!(RotatingCache);

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

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        self.offset = 0;
        self.current_seq_len = 0;
        self.buffer.reset();
    }

    /// Writes tokens, and returns a view of the cached ones. An append that fills all slots returns its own tokens instead, so
    /// that also the ones that found no slot can be seen.
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

    /// The mask of an append that fills all slots: its tokens see each other.
    fn mask_of_chunk(&self, len: usize, device: &Device) -> Result<Tensor> {
        let context = self.max_seq_len;
        let hidden = |i: usize, j: usize| j > i || j + context < i;
        table(len, len, device, |i, j| u8::from(hidden(i, j)))
    }

    /// The mask of an append that leaves old tokens in some slots.
    fn mask_of_slots(&self, len: usize, slots: usize, device: &Device) -> Result<Tensor> {
        let (context, first) = (self.max_seq_len, self.current_seq_len);
        let positions = self.positions(len);
        let hidden = |i: usize, j: usize| {
            let (query, key) = (first + i, positions[j]);
            key > query || key + context < query
        };
        table(len, slots, device, |i, j| u8::from(hidden(i, j)))
    }

    /// The positions of all tokens that an append of `seq_len` tokens will return.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let len = self.current_seq_len + seq_len;
        // An append that fills all slots returns its own tokens.
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

    /// The mask of an append of `seq_len` tokens, `[tokens, slots]` with 1 where a key is hidden. To be asked for before the
    /// append. `None` for one token, which sees all slots.
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

cache_pair! {
    /// [`candle_nn::kv_cache::RotatingKvCache`]: the last keys and values.
    RotatingKvCache of RotatingCache
}

impl RotatingKvCache {
    /// As [`RotatingCache::append`], for keys and values.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let name = "RotatingKvCache::append";
        self.check(name, k, v)?;
        let k = self.k.append_for(name, k)?;
        Ok((k, self.v.append_for(name, v)?))
    }

    /// The slot of the next token.
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// [`RotatingCache::attn_mask`]
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// [`RotatingCache::positions`]
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }
}
