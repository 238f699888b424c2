//! The rotation on the CPU: `walk` shares heads and positions out, `tables` widens the cos and sin that a block of positions
//! needs, `rotate` turns one head. `token` does without the first two.

mod rotate;
mod tables;
mod token;
mod walk;

pub use rotate::{rotate_piece, Rotate};
pub use tables::Tables;
pub use walk::{HeadRow, Place, Stream, Walk};

use super::geometry::Heads;
use super::{RopePairs, Rotation, TableArgs};
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut};
use candle_core::{CpuStorage, Result};
use std::borrow::Cow;

pub fn forward(rotation: &Rotation, x: Arg, tables: TableArgs<CpuStorage>) -> Result<CpuStorage> {
    if let Some(y) = token::forward(rotation, x, tables.cos_sin) {
        return Ok(y);
    }
    with_float!(rotation.name, x.0, T => {
        let tables = Tables::<T>::new(rotation, tables)?;
        let source = Source::new(rotation, x)?;
        // SAFETY: the output has x's elements, and `rotate` writes all of them.
        Ok(T::wrap(unsafe {
            alloc::build(x.1.shape().elem_count(), |y| {
                let to = source.heads.packed(rotation.rope.layout);
                rotate(&tables, &[source.stream(y, to)], source.heads);
            })
        }))
    })
}

pub fn forward_pair(
    rotation: &Rotation,
    [q, k]: [Arg; 2],
    tables: TableArgs<CpuStorage>,
) -> Result<[CpuStorage; 2]> {
    with_float!(rotation.name, q.0, T => {
        let tables = Tables::<T>::new(rotation, tables)?;
        let (qs, ks) = (Source::new(rotation, q)?, Source::new(rotation, k)?);
        let [q_to, k_to] = [&qs, &ks].map(|x| x.heads.packed(rotation.rope.layout));
        let mut rotated = Vec::new();
        // SAFETY: the outputs have the elements of q and of k, and `rotate` writes all of them.
        let k = unsafe {
            alloc::build(k.1.shape().elem_count(), |ky| {
                rotated = alloc::build(q.1.shape().elem_count(), |qy| {
                    rotate(
                        &tables,
                        &[qs.stream(qy, q_to), ks.stream(ky, k_to)],
                        qs.heads,
                    );
                });
            })
        };
        Ok([T::wrap(rotated), T::wrap(k)])
    })
}

pub fn inplace(rotation: &Rotation, (x, l): ArgMut, tables: TableArgs<CpuStorage>) -> Result<()> {
    let order = rotation.rope.layout;
    with_float!(rotation.name, x, |data: &[T]| {
        let tables = Tables::<T>::new(rotation, tables)?;
        let run = |data: *mut T, heads: Heads| {
            let place = Place::new(data, heads);
            let stream = Stream {
                from: [place],
                to: place,
                heads: heads.heads,
            };
            // SAFETY: x has these heads, no two of which share memory, since Candle refuses such targets; nothing else uses it.
            unsafe { rotate(&tables, &[stream], heads) };
        };
        let heads = Heads::new(order, l);
        match heads.has_neighbours() && l.shape().elem_count() > 0 {
            true => run(data[l.start_offset()..].as_mut_ptr(), heads),
            false => gather::update(data, l, |data: &mut [T]| {
                run(data.as_mut_ptr(), Heads::contiguous(order, l))
            }),
        }
        Ok(())
    })
}

/// # Safety
/// The streams have heads as `heads` says, but each its own number of them; nothing else touches what they write to.
unsafe fn rotate<T: Element>(tables: &Tables<T>, streams: &[Stream<T, 1>], heads: Heads) {
    let (pairs, dim) = (tables.pairs(), heads.dim);
    let walk = Walk::new(tables, streams, heads);
    // SAFETY: the tables have `pairs` pairs, which a head of `dim` elements has room for by the op's check; the rest is the
    // caller's promise.
    unsafe {
        match tables.kind() {
            RopePairs::Half => walk.run(&Rotate::<false> { pairs, dim }, 2),
            RopePairs::Interleaved => walk.run(&Rotate::<true> { pairs, dim }, 2),
        }
    }
}

/// A tensor of heads to read. It is copied only if the elements of a head are not neighbours.
pub struct Source<'a, T: Clone> {
    data: Cow<'a, [T]>,
    pub heads: Heads,
}

impl<'a, T: Element> Source<'a, T> {
    pub fn new(rotation: &Rotation, (storage, l): Arg<'a>) -> Result<Self> {
        let (order, data) = (rotation.rope.layout, storage.as_slice::<T>()?);
        let heads = Heads::new(order, l);
        if !heads.has_neighbours() || l.shape().elem_count() == 0 {
            return Ok(Source {
                data: gather::contiguous(data, l),
                heads: Heads::contiguous(order, l),
            });
        }
        Ok(Source {
            data: Cow::Borrowed(&data[l.start_offset()..]),
            heads,
        })
    }

    pub fn place(&self) -> Place<T> {
        let [batch, head, position, _] = self.heads.strides;
        Place {
            data: Shared::new(self.data.as_ptr().cast_mut()),
            strides: [batch, head, position],
        }
    }

    /// From here to heads that lie as `to` says from `y` on.
    pub fn stream(&self, y: *mut T, to: Heads) -> Stream<T, 1> {
        Stream {
            from: [self.place()],
            to: Place::new(y, to),
            heads: self.heads.heads,
        }
    }
}

impl<T> Place<T> {
    pub fn new(data: *mut T, heads: Heads) -> Self {
        let [batch, head, position, _] = heads.strides;
        Place {
            data: Shared::new(data),
            strides: [batch, head, position],
        }
    }
}
