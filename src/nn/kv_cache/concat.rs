//! [`ConcatKvCache`] and [`InterleavedKvCache`]. Stock Candle concatenates the old and the new tokens in each step; here the memory
//! doubles when it is full, and is written in place.

use super::buffer::Buffer;
use super::same_tokens;
use crate::check;
use crate::ops::kv_append::Place;
use candle_core::{Result, Tensor, TensorId};

/// The number of slots that the memory begins with.
const FIRST: usize = 64;

/// The tokens of keys, of values or of both, and the memory that they are a view of.
#[derive(Debug, Clone, Default)]
struct Tokens {
    buffer: Buffer,
    view: Option<Tensor>,
    /// The view that [`Tokens::append`] made. Another one was put in its place by the user.
    ours: Option<TensorId>,
}

impl Tokens {
    fn len(&self, dim: usize) -> usize {
        let view = self.view.as_ref();
        view.and_then(|t| t.dims().get(dim).copied()).unwrap_or(0)
    }

    /// A tensor that the user has put in the place of our view becomes the memory.
    fn settle(&mut self) {
        if let Some(view) = self
            .view
            .as_ref()
            .filter(|view| Some(view.id()) != self.ours)
        {
            self.buffer.adopt(view.clone());
            self.ours = Some(view.id());
        }
    }

    fn accepts(&mut self, name: &'static str, src: &Tensor, dim: usize) -> Result<()> {
        self.settle();
        self.buffer.accepts(name, src, dim, self.len(dim) == 0)
    }

    fn append(&mut self, name: &'static str, src: &Tensor, dim: usize) -> Result<Tensor> {
        self.settle();
        let (start, count) = (self.len(dim), check::tokens(name, "src", src, dim)?);
        let end = start + count;
        if self.buffer.passes_on(name, src, start == 0)? {
            self.buffer.adopt(src.clone());
            return Ok(self.keep(src.clone()));
        }
        let slots = match self.buffer.data() {
            Some(data) if data.dim(dim)? >= end => data.dim(dim)?,
            _ => end.max(2 * start).max(FIRST),
        };
        let place = Place { start, count };
        let data = self.buffer.write(name, src, dim, (slots, start), place)?;
        let view = data.narrow(dim, 0, end)?;
        Ok(self.keep(view))
    }

    fn keep(&mut self, view: Tensor) -> Tensor {
        self.ours = Some(view.id());
        self.view = Some(view.clone());
        view
    }
}

/// [`candle_nn::kv_cache::ConcatKvCache`]: keys and values that grow without a size known in advance.
#[derive(Debug, Clone)]
pub struct ConcatKvCache {
    k: Tokens,
    v: Tokens,
    dim: usize,
}

impl ConcatKvCache {
    /// For tokens along `dim`.
    pub fn new(dim: usize) -> Self {
        Self {
            k: Tokens::default(),
            v: Tokens::default(),
            dim,
        }
    }

    /// The number of cached tokens.
    pub fn current_seq_len(&self) -> usize {
        self.k.len(self.dim)
    }

    /// Whether nothing has been appended yet.
    pub fn is_empty(&self) -> bool {
        self.k.view.is_none()
    }

    /// The dim of the tokens.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Writes tokens behind the cached ones, and returns views of all keys and values.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let name = "ConcatKvCache::append";
        same_tokens(name, k, v, self.dim)?;
        self.v.accepts(name, v, self.dim)?;
        let k = self.k.append(name, k, self.dim)?;
        Ok((k, self.v.append(name, v, self.dim)?))
    }

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        *self = Self::new(self.dim);
    }

    /// A cache with the same tokens. Both share their memory until one of them is written to, which then copies it.
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// The cached keys.
    pub fn k(&self) -> Option<&Tensor> {
        self.k.view.as_ref()
    }

    /// The cached values.
    pub fn v(&self) -> Option<&Tensor> {
        self.v.view.as_ref()
    }

    /// The cached keys, for a caller who puts another tensor in their place.
    pub fn k_mut(&mut self) -> Option<&mut Tensor> {
        self.k.view.as_mut()
    }

    /// The cached values, for a caller who puts another tensor in their place.
    pub fn v_mut(&mut self) -> Option<&mut Tensor> {
        self.v.view.as_mut()
    }

    /// Keys and values, if there are any.
    pub fn into_inner(self) -> Option<(Tensor, Tensor)> {
        self.k.view.zip(self.v.view)
    }
}

/// [`candle_nn::kv_cache::InterleavedKvCache`]: keys and values of one sequence side by side, `[tokens, heads, 2 · head_dim]`.
#[derive(Debug, Clone)]
pub struct InterleavedKvCache {
    kv: Tokens,
    head_dim: usize,
}

impl InterleavedKvCache {
    /// For keys and values of `head_dim` elements.
    pub fn new(head_dim: usize) -> Self {
        Self {
            kv: Tokens::default(),
            head_dim,
        }
    }

    /// The number of cached tokens.
    pub fn current_seq_len(&self) -> usize {
        self.kv.len(0)
    }

    /// Whether nothing has been appended yet.
    pub fn is_empty(&self) -> bool {
        self.kv.view.is_none()
    }

    /// Writes k and v, `[1, heads, tokens, head_dim]`, behind the cached ones, and returns the whole cache.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let name = "InterleavedKvCache::append";
        let (got, dim) = (k.dims(), self.head_dim);
        check::ensure(
            got.len() == 4 && got[0] == 1 && got[3] == dim && got == v.dims(),
            name,
            format_args!(
                "got k of shape {:?} and v of {:?}, expected [1, heads, tokens, {dim}] for both",
                k.dims(),
                v.dims()
            ),
        )?;
        let rows = |x: &Tensor| x.squeeze(0)?.transpose(0, 1);
        let kv = Tensor::cat(&[rows(k)?, rows(v)?], 2)?;
        self.kv.append(name, &kv, 0)
    }

    /// The whole cache, `[tokens, heads, 2 · head_dim]`.
    pub fn kv(&self) -> Option<&Tensor> {
        self.kv.view.as_ref()
    }

    /// The elements of a key, and of a value.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Forgets everything and gives the memory up.
    pub fn reset(&mut self) {
        self.kv = Tokens::default();
    }
}
