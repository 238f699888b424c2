//! Caches that grow.

use super::buffer::Buffer;
use super::same_tokens;
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

    pub fn dim(&self) -> usize {
        self.dim
    }

    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// The tokens that there is room for before the cache grows.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The whole memory, also what is not yet written.
    pub fn all_data(&self) -> &Option<Tensor> {
        self.buffer.data()
    }

    /// A view of the cached tokens.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let view = |data: &Tensor| data.narrow(self.dim, 0, self.current_seq_len);
        self.buffer.data().as_ref().map(view).transpose()
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

    /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Writes tokens behind those that are there.
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

/// [`candle_nn::kv_cache::KvCache`]: keys and values in memory that grows.
#[derive(Debug, Clone)]
pub struct KvCache {
    k: Cache,
    v: Cache,
}

impl KvCache {
    /// For tokens along `dim`, with room for `max_seq_len` of them at first.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        let cache = Cache::new(dim, max_seq_len);
        Self {
            k: cache.clone(),
            v: cache,
        }
    }

    pub fn k_cache(&self) -> &Cache {
        &self.k
    }

    pub fn v_cache(&self) -> &Cache {
        &self.v
    }

    pub fn k_cache_mut(&mut self) -> &mut Cache {
        &mut self.k
    }

    pub fn v_cache_mut(&mut self) -> &mut Cache {
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

    /// Writes tokens behind those that are there, and returns views of all keys and values.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        self.append_for("KvCache::append", k, v)
    }

    pub(crate) fn append_for(
        &mut self,
        name: &'static str,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        same_tokens(name, k, v, self.k.dim)?;
        self.v
            .buffer
            .accepts(name, v, self.v.dim, self.v.current_seq_len == 0)?;
        self.k.append_for(name, k)?;
        self.v.append_for(name, v)?;
        match (self.k()?, self.v()?) {
            (Some(k), Some(v)) => Ok((k, v)),
            _ => Err(check::error(name, "the cache has no memory")),
        }
    }

    pub fn current_seq_len(&self) -> usize {
        self.k.current_seq_len()
    }

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        self.k.reset();
        self.v.reset();
    }

    /// Forgets the tokens behind the first `len`, and keeps the memory.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let cached = self.k.current_seq_len.min(self.v.current_seq_len);
        check_truncate("KvCache::truncate", len, cached)?;
        self.k.truncate(len)?;
        self.v.truncate(len)
    }

    /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
    pub fn fork(&self) -> Self {
        self.clone()
    }
}
