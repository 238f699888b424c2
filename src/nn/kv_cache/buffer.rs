//! The memory that caches write tokens to, and that their clones share until one of them writes.

use crate::check;
use crate::ops::kv_append::{kv_append, Place};
use candle_core::{Result, Tensor};
use std::sync::Arc;

/// Slots for tokens along one dim. Clones share them until one writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer {
    data: Option<Tensor>,
    /// As many as there are buffers that share the data.
    owners: Arc<()>,
}

impl Buffer {
    /// All slots, or `None` before the first token.
    pub fn data(&self) -> &Option<Tensor> {
        &self.data
    }

    /// Gives the memory up.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether the cache must hold `src` itself instead of a copy, because it tracks gradients. An error if there are tokens in
    /// front of it: written into one memory with them, it would lose its gradient.
    pub fn passes_on(&self, name: &str, src: &Tensor, is_empty: bool) -> Result<bool> {
        let tracked = self.data.as_ref().is_some_and(Tensor::track_op);
        let message = "got tokens behind others in the cache where one of them tracks gradients, \
                       which the cache would lose; expected detached ones, or a cache that is reset";
        check::ensure(is_empty || !(tracked || src.track_op()), name, message)?;
        Ok(src.track_op())
    }

    /// Refuses tokens that could not be written behind the cached ones, or instead of them: to be asked before a write.
    pub fn accepts(&self, name: &str, src: &Tensor, dim: usize, is_empty: bool) -> Result<()> {
        self.passes_on(name, src, is_empty)?;
        let Some(data) = self.data.as_ref().filter(|_| !is_empty) else {
            return Ok(());
        };
        let (got, kept) = (src.dims(), data.dims());
        let fits = got.len() == kept.len()
            && (0..got.len()).all(|i| i == dim || got[i] == kept[i])
            && src.dtype() == data.dtype()
            && src.device().same_device(data.device());
        let (dtype, kept_dtype) = (src.dtype(), data.dtype());
        let message = format_args!(
            "got tokens of shape {got:?} and dtype {dtype:?}, expected the cache's {kept:?} but for dim {dim}, \
             and {kept_dtype:?}, on its device"
        );
        check::ensure(fits, name, message)
    }

    /// Makes a tensor the memory, without a copy.
    pub fn adopt(&mut self, data: Tensor) {
        self.reset();
        self.data = Some(data);
    }

    /// Makes room: `capacity` slots for tokens of `src`'s shape and dtype in memory that no other buffer shares. The first `kept`
    /// cached tokens are in them, the others are lost.
    pub fn reserve(
        &mut self,
        name: &'static str,
        src: &Tensor,
        dim: usize,
        capacity: usize,
        kept: usize,
    ) -> Result<&Tensor> {
        self.accepts(name, src, dim, kept == 0)?;
        let own = Arc::get_mut(&mut self.owners).is_some();
        let reuse = match &self.data {
            Some(data) => {
                let fits = self.accepts(name, src, dim, false).is_ok();
                own && fits && data.dim(dim)? >= capacity
            }
            None => false,
        };
        if !reuse {
            let mut shape = src.dims().to_vec();
            shape[dim] = capacity;
            check::fits_in_memory(name, "the cache", &shape)?;
            let data = Tensor::zeros(shape, src.dtype(), src.device())?;
            if let Some(past) = self.data.as_ref().filter(|_| kept > 0) {
                let past = past.narrow(dim, 0, kept)?;
                let place = Place {
                    start: 0,
                    count: kept,
                };
                kv_append(name, &data, &past, dim, &[place])?;
            }
            // Only now: while this buffer counts as an owner, no other one writes what has been copied.
            self.owners = Arc::new(());
            self.data = Some(data);
        }
        self.data
            .as_ref()
            .ok_or_else(|| check::error(name, "the cache has no memory"))
    }

    /// Reserves and writes.
    pub fn write(
        &mut self,
        name: &'static str,
        src: &Tensor,
        dim: usize,
        (capacity, kept): (usize, usize),
        place: Place,
    ) -> Result<&Tensor> {
        let data = self.reserve(name, src, dim, capacity, kept)?;
        kv_append(name, data, &src.detach(), dim, &[place])?;
        Ok(data)
    }
}
