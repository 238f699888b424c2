//! The arguments of a call as kernels read them.

use super::rows::Rows;
use crate::cpu::element::Element;
use crate::cpu::gather;
use crate::op::on_cpu::{Arg, Args};
use crate::op::Spec;
use crate::ops::attention::geometry::{segments, Geometry, Roles, Rules, Segment};
use crate::ops::attention::{Attend, NAME};
use crate::philox;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, Result};
use std::borrow::Cow;

/// A mask, by its strides over `[batch, heads, queries, keys]`; those of dims in which it is repeated are 0.
pub struct MaskRows<'a, M: Clone> {
    data: Cow<'a, [M]>,
    start: usize,
    strides: [usize; 4],
}

impl<'a, M: Clone> MaskRows<'a, M> {
    /// `copy` makes the elements dense whose last dim isn't.
    fn new(data: &'a [M], layout: &Layout, copy: impl FnOnce() -> Cow<'a, [M]>) -> Self {
        let keys = layout.dims().len().checked_sub(1);
        let dense = keys.is_none_or(|i| layout.dims()[i] == 1 || layout.stride()[i] == 1);
        if !dense {
            let layout = Layout::contiguous(layout.shape());
            return MaskRows::of(copy(), &layout);
        }
        MaskRows::of(Cow::Borrowed(data), layout)
    }

    fn of(data: Cow<'a, [M]>, layout: &Layout) -> Self {
        let mut strides = [0; 4];
        let dims = layout.dims().iter().zip(layout.stride());
        for (to, (&dim, &stride)) in strides.iter_mut().rev().zip(dims.rev()) {
            *to = if dim == 1 { 0 } else { stride };
        }
        MaskRows {
            data,
            start: layout.start_offset(),
            strides,
        }
    }

    /// The masks of a query's keys, which are `key_stride` apart: 1, or 0 for one element for all of them.
    #[inline(always)]
    pub fn row(&self, batch: usize, head: usize, query: usize) -> *const M {
        let [b, h, q, _] = self.strides;
        let at = self.start + batch * b + head * h + query * q;
        self.data.as_ptr().wrapping_add(at)
    }

    #[inline(always)]
    pub fn key_stride(&self) -> usize {
        self.strides[3]
    }
}

/// What is done to the scores of a query, beside scaling them.
pub enum Mask<'a, T: Clone> {
    None,
    Additive(MaskRows<'a, T>),
    Boolean(MaskRows<'a, u8>),
}

/// A call of attention, whose keys and values are rows R.
pub struct Call<'a, T: Clone, R = Rows<'a, T>> {
    pub rules: Rules,
    pub geometry: Geometry,
    pub segments: Vec<Segment>,
    pub q: Rows<'a, T>,
    pub k: R,
    pub v: R,
    pub mask: Mask<'a, T>,
    pub sinks: Option<Vec<f32>>,
    pub scale: f32,
    pub dropout: Option<philox::Mask>,
}

/// A query of a head.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    pub batch: usize,
    pub head: usize,
    /// Its place in the batch row.
    pub at: usize,
    /// The keys that it sees, counted from the segment's first.
    pub start: usize,
    pub end: usize,
}

impl<'a, T: Element> Call<'a, T> {
    pub fn new(op: &Attend, args: Args<'a>) -> Result<Self> {
        let specs: Vec<Spec> = args.iter().map(Spec::from).collect();
        let geometry = op.geometry(NAME, &specs)?;
        let Roles { k, v, .. } = op.roles(args);
        let (k, v) = (Rows::new(geometry.axes, k)?, Rows::new(geometry.axes, v)?);
        Call::with_rows(op, geometry, &op.roles(args), (k, v))
    }
}

impl<'a, T: Element, R> Call<'a, T, R> {
    /// Of the other arguments, which have been checked, and of rows of keys and values.
    pub fn with_rows(
        op: &Attend,
        geometry: Geometry,
        args: &Roles<Arg<'a>>,
        (k, v): (R, R),
    ) -> Result<Self> {
        let mask = match args.mask {
            None => Mask::None,
            Some((storage, layout)) if storage.dtype() == DType::U8 => {
                let data = storage.as_slice::<u8>()?;
                Mask::Boolean(MaskRows::new(data, layout, || bytes(data, layout).into()))
            }
            Some((storage, layout)) => {
                let data = storage.as_slice::<T>()?;
                Mask::Additive(MaskRows::new(data, layout, || {
                    gather::contiguous(data, layout)
                }))
            }
        };
        let sinks = match args.sinks {
            Some((storage, layout)) => {
                let sinks = gather::contiguous(storage.as_slice::<T>()?, layout);
                Some(sinks.iter().map(|x| x.widen()).collect())
            }
            None => None,
        };
        let lengths = args.key_lengths.map(lengths).transpose()?;
        let packed = op.packed.as_ref();
        Ok(Call {
            rules: op.rules,
            segments: segments(&geometry, packed, lengths.as_deref()),
            q: Rows::new(geometry.axes, args.q)?,
            k,
            v,
            mask,
            sinks,
            scale: op.rules.scale(geometry.dim),
            dropout: op.rules.dropout.map(|d| philox::Mask::new(d.p, d.seed)),
            geometry,
        })
    }

    /// Row `r` of the queries that share a head of keys: all queries of its first head, then those of the next.
    #[inline(always)]
    pub fn query(&self, segment: &Segment, kv_head: usize, r: usize) -> Query {
        let (head, i) = (r / segment.queries, r % segment.queries);
        let (start, end) = segment.visible(&self.rules, i);
        Query {
            batch: segment.batch,
            head: kv_head * self.geometry.group() + head,
            at: segment.query + i,
            start,
            end,
        }
    }

    /// The number of a query among all, which is that of its log-sum-exp.
    #[inline(always)]
    pub fn number(&self, query: &Query) -> usize {
        (query.batch * self.geometry.heads + query.head) * self.geometry.queries + query.at
    }
}

/// Bytes of any layout, in order.
pub fn bytes(data: &[u8], layout: &Layout) -> Vec<u8> {
    places(layout).map(|i| data[i]).collect()
}

/// Where the elements of a layout are, in order.
fn places(layout: &Layout) -> impl Iterator<Item = usize> + '_ {
    (0..layout.shape().elem_count()).map(|mut i| {
        let mut at = layout.start_offset();
        for (dim, stride) in layout.dims().iter().zip(layout.stride()).rev() {
            at += i % dim * stride;
            i /= dim;
        }
        at
    })
}

fn lengths((storage, layout): Arg) -> Result<Vec<usize>> {
    let index = places(layout);
    Ok(match storage.dtype() {
        DType::I64 => {
            let data = storage.as_slice::<i64>()?;
            index.map(|i| data[i].max(0) as usize).collect()
        }
        _ => {
            let data = storage.as_slice::<u32>()?;
            index.map(|i| data[i] as usize).collect()
        }
    })
}
