//! The memory of keys or of values of a [`FixedKvCache`](super::FixedKvCache): numbers, or codes with their scales.

use crate::check;
use crate::ops::kv_append::{kv_append, Place};
use crate::ops::quantize;
use crate::quant::{KvCodes, ScaleScope, Scheme};
use candle_core::{DType, Device, Result, Shape, Tensor};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Data {
    Numbers(Tensor),
    Codes(KvCodes),
}

/// Slots `[batch, heads, capacity, head_dim]`. Clones share them until one writes.
#[derive(Clone, Debug)]
pub(super) struct Store {
    data: Data,
    dtype: DType,
    /// As many as there are stores that share the data.
    owners: Arc<()>,
}

impl Store {
    pub fn new(
        name: &str,
        dims: [usize; 4],
        scheme: Option<Scheme>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = Shape::from(dims.as_slice());
        check::fits_in_memory(name, "the cache", &dims)?;
        let data = match scheme {
            None => Data::Numbers(Tensor::zeros(shape, dtype, device)?),
            Some(scheme) => {
                let scope = scheme.scope;
                let whole = matches!(scope, ScaleScope::Row | ScaleScope::Group(_));
                let message = format_args!("got scales for each {scope:?}, expected them for each row or group: a token brings its own");
                check::ensure(whole, name, message)?;
                scheme.check(name, &shape)?;
                let scales = scheme.scales_shape(&shape)?;
                let zeros = |shape: &Shape| Tensor::zeros(shape, DType::F32, device);
                let offsets = scheme.has_offsets().then(|| zeros(&scales)).transpose()?;
                Data::Codes(KvCodes {
                    codes: Tensor::zeros(scheme.codes_shape(&shape)?, DType::U8, device)?,
                    scales: zeros(&scales)?,
                    offsets,
                    scheme,
                    head_dim: dims[3],
                })
            }
        };
        Ok(Store {
            data,
            dtype,
            owners: Arc::new(()),
        })
    }

    /// Every tensor, through a function that makes another of it.
    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Data> {
        Ok(match &self.data {
            Data::Numbers(x) => Data::Numbers(f(x)?),
            Data::Codes(q) => Data::Codes(KvCodes {
                codes: f(&q.codes)?,
                scales: f(&q.scales)?,
                offsets: q.offsets.as_ref().map(f).transpose()?,
                ..q.clone()
            }),
        })
    }

    /// Writes tokens `[batch, heads, tokens, head_dim]`, which have been checked.
    pub fn write(&mut self, name: &'static str, x: &Tensor, places: &[Place]) -> Result<()> {
        if Arc::get_mut(&mut self.owners).is_none() {
            // `Tensor::copy` would share the buffer on Metal.
            self.data = self.map(Tensor::force_contiguous)?;
            self.owners = Arc::new(());
        }
        match &self.data {
            Data::Numbers(data) => kv_append(name, data, x, 2, places),
            Data::Codes(to) => {
                let q = quantize(x, to.scheme)?;
                kv_append(name, &to.codes, q.codes(), 2, places)?;
                kv_append(name, &to.scales, q.scales(), 2, places)?;
                match (&to.offsets, q.offsets()) {
                    (Some(to), Some(offsets)) => kv_append(name, to, offsets, 2, places),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The first `len` slots as numbers.
    pub fn read(&self, len: usize) -> Result<Tensor> {
        match &self.data {
            Data::Numbers(data) => data.narrow(2, 0, len),
            Data::Codes(q) => q.first(len)?.quantized()?.dequantize(self.dtype),
        }
    }

    pub fn codes(&self) -> Option<KvCodes> {
        match &self.data {
            Data::Numbers(_) => None,
            Data::Codes(q) => Some(q.clone()),
        }
    }

    /// Sequences in another order, or several times: a copy.
    pub fn select(&self, sequences: &Tensor) -> Result<Self> {
        Ok(Store {
            data: self.map(|t| t.index_select(sequences, 0))?,
            dtype: self.dtype,
            owners: Arc::new(()),
        })
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let bytes = |t: &Tensor| t.elem_count() * t.dtype().size_in_bytes();
        match &self.data {
            Data::Numbers(data) => bytes(data),
            Data::Codes(q) => {
                bytes(&q.codes) + bytes(&q.scales) + q.offsets.as_ref().map_or(0, bytes)
            }
        }
    }
}
