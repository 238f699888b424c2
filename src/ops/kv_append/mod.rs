//! Tokens written to their places in a preallocated cache, in place: `cache[.., (start + t) mod capacity, ..] = x[.., t, ..]`
//! for the first `count` tokens t.
//!
//! ```text
//!              capacity
//! cache  [ a b c d . . . . ]      start = 4, count = 2
//! x              [ e f ]          as many bytes are written as x has, whatever the cache holds
//! cache  [ a b c d e f . . ]
//! ```
//!
//! Each index of the first dim, a sequence of the batch, may have a place of its own. Bits are moved as they are, so that one
//! kernel serves every dtype: floats, the codes of a quantised cache and their scales.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use crate::check::{self, ensure};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor};

/// Where the tokens of a sequence go: the first `count` of them, from the slot `start` on, round the end of the cache if they
/// have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub start: usize,
    pub count: usize,
}

/// Writes the tokens of x, which lie along `dim`, into the cache on behalf of the function `name`. There is one place for
/// all sequences, or one for each index of the first dim. The cache is contiguous; x has any layout, and is read where it lies
/// if the elements of each token do.
pub(crate) fn kv_append(
    name: &'static str,
    cache: &Tensor,
    x: &Tensor,
    dim: usize,
    places: &[Place],
) -> Result<()> {
    let plan = Plan::new(name, cache, x, dim, places)?;
    if x.elem_count() == 0 || places.iter().all(|place| place.count == 0) {
        return Ok(());
    }
    let device = cache.device();
    let has_kernel = device.is_cpu() || (device.is_metal() && cfg!(feature = "metal"));
    if !has_kernel {
        return reference(cache, x, dim, places);
    }
    match Lead::new(x.layout(), dim) {
        Some(lead) => cache.inplace_op2(x, &KvAppend { lead, ..plan }),
        None => {
            let x = x.contiguous()?;
            let lead = Lead::new(x.layout(), dim)
                .ok_or_else(|| check::error(name, "a contiguous tensor has one stride"))?;
            cache.inplace_op2(&x, &KvAppend { lead, ..plan })
        }
    }
}

/// By Candle's own writes of slices, for devices without a kernel here.
fn reference(cache: &Tensor, x: &Tensor, dim: usize, places: &[Place]) -> Result<()> {
    let capacity = cache.dim(dim)?;
    let write = |cache: &Tensor, x: &Tensor, place: Place| -> Result<()> {
        let whole = place.count.min(capacity - place.start);
        let part = |from: usize, len: usize| x.narrow(dim, from, len)?.contiguous();
        if whole > 0 {
            cache.slice_set(&part(0, whole)?, dim, place.start)?;
        }
        if place.count > whole {
            cache.slice_set(&part(whole, place.count - whole)?, dim, 0)?;
        }
        Ok(())
    };
    match places {
        [place] => write(cache, x, *place),
        places => places
            .iter()
            .enumerate()
            .try_for_each(|(i, place)| write(&cache.narrow(0, i, 1)?, &x.narrow(0, i, 1)?, *place)),
    }
}

/// The dims in front of the tokens, merged where one stride serves several, as (size, stride) from the outermost on; and the
/// stride from token to token.
#[derive(Clone, Copy, Debug, Default)]
struct Lead {
    dims: [(usize, usize); Lead::MAX],
    rank: usize,
    token: usize,
}

impl Lead {
    const MAX: usize = 4;

    /// `None` where the elements of a token are apart, or too many strides lead to them. A token is often a few hundred bytes, so
    /// nothing is allocated here.
    fn new(x: &Layout, dim: usize) -> Option<Self> {
        let (dims, strides) = (x.dims(), x.stride());
        let mut width = 1;
        for i in (dim + 1..dims.len()).rev().filter(|&i| dims[i] != 1) {
            if strides[i] != width {
                return None;
            }
            width *= dims[i];
        }
        let mut lead = Lead {
            token: strides[dim],
            ..Lead::default()
        };
        for i in (0..dim).filter(|&i| dims[i] != 1) {
            match lead.dims[..lead.rank].last_mut() {
                Some((outer, stride)) if *stride == dims[i] * strides[i] => {
                    *outer *= dims[i];
                    *stride = strides[i];
                }
                _ => {
                    *lead.dims.get_mut(lead.rank)? = (dims[i], strides[i]);
                    lead.rank += 1;
                }
            }
        }
        Some(lead)
    }

    /// How far the sequence with this number, counted over all dims in front of the tokens, is from the first.
    fn offset(&self, mut sequence: usize) -> usize {
        if self.rank <= 1 {
            return sequence * self.dims[0].1;
        }
        let mut at = 0;
        for &(dim, stride) in self.dims[..self.rank].iter().rev() {
            at += sequence % dim * stride;
            sequence /= dim;
        }
        at
    }
}

/// What is written where. The dims of cache and x are `[sequences, capacity or tokens, width]`.
#[derive(Clone, Debug)]
struct KvAppend<'a> {
    name: &'static str,
    lead: Lead,
    sequences: usize,
    tokens: usize,
    capacity: usize,
    /// Elements of a token.
    width: usize,
    /// Neighbouring sequences that share a place.
    per_place: usize,
    places: &'a [Place],
}

use KvAppend as Plan;

impl<'a> Plan<'a> {
    fn new(
        name: &'static str,
        cache: &Tensor,
        x: &Tensor,
        dim: usize,
        places: &'a [Place],
    ) -> Result<Self> {
        check::same_device(name, &["the cache", "the tokens"], &[cache, x])?;
        let (dtype, kept) = (x.dtype(), cache.dtype());
        ensure(
            dtype == kept,
            name,
            format_args!("got tokens of dtype {dtype:?}, expected the cache's {kept:?}"),
        )?;
        let (dims, whole) = (x.dims(), cache.dims());
        let fits = dims.len() == whole.len()
            && dim < whole.len()
            && (0..dims.len()).all(|i| i == dim || dims[i] == whole[i]);
        ensure(
            fits,
            name,
            format_args!(
                "got tokens of shape {dims:?}, expected the cache's {whole:?} but for dim {dim}"
            ),
        )?;
        ensure(
            cache.is_contiguous(),
            name,
            "got a cache that is not contiguous",
        )?;
        let sequences: usize = dims[..dim].iter().product();
        let count = places.len();
        ensure(
            count == 1 || (dim > 0 && count == dims[0]),
            name,
            format_args!("got {count} places, expected 1 or one for each sequence of {dims:?}"),
        )?;
        let (tokens, capacity) = (dims[dim], whole[dim]);
        for &Place { start, count } in places {
            let fits = count <= tokens && count <= capacity && (count == 0 || start < capacity);
            ensure(
                fits,
                name,
                format_args!(
                    "got {count} of {tokens} tokens for slot {start}, expected up to {capacity} slots"
                ),
            )?;
        }
        Ok(KvAppend {
            name,
            lead: Lead::default(),
            sequences,
            tokens,
            capacity,
            width: dims[dim + 1..].iter().product(),
            per_place: (sequences / count.max(1)).max(1),
            places,
        })
    }

    /// The storages are as long as [`KvAppend::new`] has seen: a layout made by hand may reach out of its storage.
    fn check_bounds(&self, cache: (usize, &Layout), x: (usize, &Layout)) -> Result<()> {
        let end = |layout: &Layout| {
            let mut extents = layout.dims().iter().zip(layout.stride());
            extents.try_fold(layout.start_offset(), |at, (&dim, &stride)| {
                at.checked_add(dim.checked_sub(1)?.checked_mul(stride)?)
            })
        };
        let inside = |(len, layout): (usize, &Layout)| end(layout).is_some_and(|end| end < len);
        let message = "got a layout that reaches out of its storage";
        ensure(inside(cache) && inside(x), self.name, message)
    }
}

impl InplaceOp2 for KvAppend<'_> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cpu_fwd(
        &self,
        cache: &mut CpuStorage,
        cache_layout: &Layout,
        x: &CpuStorage,
        x_layout: &Layout,
    ) -> Result<()> {
        cpu::append(self, (cache, cache_layout), (x, x_layout))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        cache: &mut MetalStorage,
        cache_layout: &Layout,
        x: &MetalStorage,
        x_layout: &Layout,
    ) -> Result<()> {
        metal::append(self, (cache, cache_layout), (x, x_layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn tokens(dims: &[usize]) -> Result<Tensor> {
        let count = dims.iter().product::<usize>();
        Tensor::arange(0f32, count as f32, &Device::Cpu)?.reshape(dims)
    }

    /// One place for all sequences or one for each, round the end of the cache too.
    #[test]
    fn slices_give_what_the_kernel_gives() -> Result<()> {
        let place = |start, count| Place { start, count };
        let each = [place(4, 3), place(0, 0), place(2, 1)];
        for (dim, dims) in [(2, [3, 2, 3, 2]), (1, [3, 3, 2, 2])] {
            for places in [&[place(3, 3)][..], &[place(0, 2)], &each] {
                let x = tokens(&dims)?;
                let mut whole = dims;
                whole[dim] = 5;
                let caches = [0, 1].map(|_| Tensor::zeros(&whole, DType::F32, &Device::Cpu));
                let [a, b] = caches;
                let (a, b) = (a?, b?);
                kv_append("test", &a, &x, dim, places)?;
                reference(&b, &x, dim, places)?;
                let values = |t: Tensor| t.flatten_all()?.to_vec1::<f32>();
                assert_eq!(values(a)?, values(b)?, "{places:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let cache = Tensor::zeros((2, 4, 3), DType::F32, &Device::Cpu)?;
        let x = tokens(&[2, 3, 3])?;
        let refused = |x: &Tensor, dim: usize, places: &[(usize, usize)]| {
            let places = places.iter().map(|&(start, count)| Place { start, count });
            kv_append("test", &cache, x, dim, &places.collect::<Vec<_>>()).is_err()
        };
        assert!(!refused(&x, 1, &[(3, 3)]));
        assert!(!refused(&x, 1, &[(9, 0)]));
        assert!(refused(&x, 1, &[(4, 1)]));
        assert!(refused(&x, 1, &[(0, 4)]));
        assert!(refused(&x, 1, &[]));
        assert!(refused(&x, 1, &[(0, 1); 3]));
        assert!(refused(&x, 2, &[(0, 1)]));
        assert!(refused(&x, 3, &[(0, 1)]));
        assert!(refused(&x.to_dtype(DType::F64)?, 1, &[(0, 1)]));
        assert!(refused(&tokens(&[2, 3, 4])?, 1, &[(0, 1)]));
        // A tensor that shares the cache's memory.
        assert!(refused(&cache.narrow(1, 0, 1)?, 1, &[(0, 1)]));
        let transposed = cache.transpose(0, 2)?;
        let place = [Place { start: 0, count: 1 }];
        assert!(kv_append("test", &transposed, &x.transpose(0, 2)?, 1, &place).is_err());
        Ok(())
    }
}
