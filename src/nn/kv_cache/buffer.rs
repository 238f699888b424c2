//! The memory of a cache.

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
    pub fn data(&self) -> &Option<Tensor> {
        &self.data
    }

    /// Gives the memory up.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether `src` is to be handed on as it is, because it tracks gradients and there is nothing in front of it.
    pub fn passes_on(&self, name: &str, src: &Tensor, is_empty: bool) -> Result<bool> {
        let tracked = self.data.as_ref().is_some_and(Tensor::track_op);
        let message = "got tokens behind others in the cache where one of them tracks gradients, \
                       which the cache would lose; expected detached ones, or a cache that is reset";
        check::ensure(is_empty || !(tracked || src.track_op()), name, message)?;
        Ok(src.track_op())
    }

    /// Whether tokens could be written behind, or instead of, those that are there: to be asked before anything is written.
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

    /// Takes a tensor for what is cached, as it is.
    pub fn adopt(&mut self, data: Tensor) {
        self.reset();
        self.data = Some(data);
    }

    /// Sees to it that there are `capacity` slots for tokens like those of `src`, which no other buffer shares, with the first
    /// `kept` of the present ones in them.
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
