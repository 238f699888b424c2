//! Caches whose memory grows when it is full: [`Cache`] for keys or values, [`KvCache`] for both.

use super::buffer::Buffer;
use super::methods::{cache_methods, cache_pair};
use crate::check;
use crate::ops::kv_append::Place;
use candle_core::{Result, Tensor};

/// [`candle_nn::kv_cache::Cache`]: tokens along one dim, in memory that grows by its first size when it is full.
#[derive(Debug, Clone)]
pub struct Cache {
    buffer: Buffer,
    dim: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

cache_methods!(Cache);

impl Cache {
    /// For tokens along `dim`, with room for `max_seq_len` of them at first.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            buffer: Buffer::default(),
            dim,
            current_seq_len: 0,
            grow_by: max_seq_len,
            max_seq_len,
        }
    }

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        self.current_seq_len = 0;
        self.buffer.reset();
    }

    /// Forgets the tokens behind the first `len`, and keeps the memory. More than there are is an error.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        check_truncate("Cache::truncate", len, self.current_seq_len)?;
        self.current_seq_len = len;
        Ok(())
    }

    /// Writes tokens behind the cached ones.
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        self.append_for("Cache::append", src)
    }

    fn append_for(&mut self, name: &'static str, src: &Tensor) -> Result<()> {
        let count = check::tokens(name, "src", src, self.dim)?;
        let start = self.current_seq_len;
        let mut capacity = self.max_seq_len;
        let missing = start.saturating_add(count).saturating_sub(capacity);
        if missing > 0 {
            let message = "got a cache with a max_seq_len of 0, expected one with room to grow by";
            check::ensure(self.grow_by > 0, name, message)?;
            capacity += missing.next_multiple_of(self.grow_by);
        }
        if self.buffer.passes_on(name, src, start == 0)? {
            self.buffer.adopt(src.clone());
        } else {
            let place = Place { start, count };
            self.buffer
                .write(name, src, self.dim, (capacity, start), place)?;
        }
        self.max_seq_len = capacity;
        self.current_seq_len += count;
        Ok(())
    }
}

pub(super) fn check_truncate(name: &str, len: usize, cached: usize) -> Result<()> {
    let message = format_args!("got a length of {len}, expected up to the {cached} cached tokens");
    check::ensure(len <= cached, name, message)
}

cache_pair! {
    /// [`candle_nn::kv_cache::KvCache`]: keys and values in memory that grows.
    KvCache of Cache
}

impl KvCache {
    /// Writes tokens behind the cached ones, and returns views of all keys and values.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.append_for("KvCache::append", k, v)
    }

    pub(crate) fn append_for(
        &mut self,
        name: &'static str,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        self.check(name, k, v)?;
        self.k.append_for(name, k)?;
        self.v.append_for(name, v)?;
        match (self.k()?, self.v()?) {
            (Some(k), Some(v)) => Ok((k, v)),
            _ => Err(check::error(name, "the cache has no memory")),
        }
    }

    /// Forgets the tokens behind the first `len`, and keeps the memory.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let cached = self.k.current_seq_len.min(self.v.current_seq_len);
        check_truncate("KvCache::truncate", len, cached)?;
        self.k.truncate(len)?;
        self.v.truncate(len)
    }
}
