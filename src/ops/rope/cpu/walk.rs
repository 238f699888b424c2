//! Sharing out heads and positions.
//!
//! A unit of work is a block of neighbouring positions of one batch row, for a group of heads:
//!
//! ```text
//!              positions
//!          ┌──────┬──────┬──────┐
//!  heads   │ unit │ unit │ unit │   the cos and sin of a block are widened once for the group
//!  of q    ├──────┼──────┼──────┤   and then stay in the L1 cache
//!  and k   │ unit │ unit │ unit │
//!          └──────┴──────┴──────┘
//! ```

use super::tables::{Fill, Rows, Tables};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::ops::rope::geometry::Heads;
use crate::ops::rope::RopePairs;
use std::ops::Range;

/// Numbers of cos, and as many of sin, that a block of positions needs: 4 KB each, a quarter of an L1 cache in all.
const TABLE: usize = 1024;
/// Elements of a unit: widening a block's cos and sin is then little beside it.
const UNIT: usize = 32 * 1024;

/// How many of `n` items, of `size` each, make a share of up to `most`, and how many shares there are. Where one share has them
/// all nothing is divided: a head is rotated in the time of few divisions.
#[inline(always)]
fn share(n: usize, size: usize, most: usize) -> [usize; 2] {
    if n.saturating_mul(size) <= most {
        return [n.max(1), n.min(1)];
    }
    let items = (most / size.max(1)).max(1);
    [items, n.div_ceil(items)]
}

/// Quotient and remainder, without a division by 1.
#[inline(always)]
fn divided(n: usize, by: usize) -> [usize; 2] {
    match by {
        1 => [n, 0],
        by => [n / by, n % by],
    }
}

/// Where heads begin, and the strides from one batch row, head and position to the next.
pub struct Place<T> {
    pub data: Shared<T>,
    pub strides: [usize; 3],
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> Place<T> {
    #[inline(always)]
    fn at(&self, batch: usize, head: usize, position: usize) -> *mut T {
        let [b, h, p] = self.strides;
        let at = batch * b + head * h + position * p;
        self.data.get().wrapping_add(at)
    }
}

/// The heads of q, or of k: inputs of the same shape, and the output.
pub struct Stream<T, const I: usize> {
    pub from: [Place<T>; I],
    pub to: Place<T>,
    pub heads: usize,
}

/// What is done with one head at one position. Must be `inline(always)`.
pub trait HeadRow<T, const I: usize>: Sync {
    /// `unit` is the number of the unit, `stream` that of the stream; units with the same number run on one thread.
    ///
    /// # Safety
    /// x and y are a head of each input and of the output of the stream; y may be one of x. cos and sin have
    /// [`Tables::width`] numbers.
    unsafe fn row<S: Simd>(
        &self,
        s: S,
        unit: usize,
        stream: usize,
        x: [*const T; I],
        y: *mut T,
        tables: [*const f32; 2],
    );
}

/// The heads of all streams at all positions.
pub struct Walk<'a, T, const I: usize> {
    tables: &'a Tables<'a, T>,
    streams: &'a [Stream<T, I>],
    positions: usize,
    dim: usize,
    /// Positions of a block, heads of a group.
    block: usize,
    group: usize,
    /// How many there are: batch rows, blocks, groups.
    counts: [usize; 3],
}

impl<'a, T: Element, const I: usize> Walk<'a, T, I> {
    /// Of heads as one of the streams has them.
    pub fn new(tables: &'a Tables<'a, T>, streams: &'a [Stream<T, I>], like: Heads) -> Self {
        let positions = like.positions;
        let heads: usize = streams.iter().map(|stream| stream.heads).sum();
        let [block, blocks] = share(positions, tables.width(), TABLE);
        let [group, groups] = share(heads, block * like.dim, UNIT);
        let counts = match like.dim {
            0 => [0; 3],
            _ => [like.batch, blocks, groups],
        };
        Walk {
            tables,
            streams,
            positions,
            dim: like.dim,
            block,
            group,
            counts,
        }
    }

    pub fn kind(&self) -> RopePairs {
        self.tables.kind()
    }

    /// How many units there are; depends on the sizes alone.
    pub fn units(&self) -> usize {
        self.counts.iter().product()
    }

    /// Calls `rows` for every head at every position, in parallel. An element costs `cost`, in the units of [`parallel`].
    ///
    /// # Safety
    /// The streams have the heads that the walk was made for. Nothing else touches what they write to. A head has as many
    /// elements as `rows` expects.
    pub unsafe fn run<R: HeadRow<T, I>>(&self, rows: &R, cost: usize) {
        let cost = self.block * self.group * self.dim * cost;
        let table = 2 * self.tables.width() * self.block;
        let as_they_lie = self.tables.as_they_lie(0).is_some();
        if as_they_lie && self.counts == [1; 3] {
            return self.run_unit(rows, 0, std::ptr::null_mut());
        }
        parallel::ranges(self.units(), cost, 1, |units| {
            if as_they_lie {
                for unit in units {
                    self.run_unit(rows, unit, std::ptr::null_mut());
                }
                return;
            }
            scratch::with([table], |[table]| {
                for unit in units.clone() {
                    self.run_unit(rows, unit, table);
                }
            })
        });
    }

    /// `table` has room for the cos and sin of a block, if they can't be read where they lie.
    fn run_unit<R: HeadRow<T, I>>(&self, rows: &R, unit: usize, table: *mut f32) {
        let [_, blocks, groups] = self.counts;
        let [at, group] = divided(unit, groups);
        let [batch, block] = divided(at, blocks);
        let first = block * self.block;
        let positions = first..self.positions.min(first + self.block);
        let table = match self.tables.as_they_lie(batch) {
            Some(rows) => rows.from(first),
            None => {
                dispatch(Fill {
                    tables: self.tables,
                    batch,
                    positions: positions.clone(),
                    out: table,
                });
                Rows::filled(table, self.tables.width())
            }
        };
        dispatch(Unit {
            walk: self,
            rows,
            unit,
            batch,
            heads: group * self.group..(group + 1) * self.group,
            positions,
            table,
        });
    }
}

/// Some heads, counted through all streams, at some positions. Made by [`Walk::run`] alone.
struct Unit<'a, T, R, const I: usize> {
    walk: &'a Walk<'a, T, I>,
    rows: &'a R,
    unit: usize,
    batch: usize,
    heads: Range<usize>,
    positions: Range<usize>,
    /// The cos and sin of the positions.
    table: Rows,
}

impl<T: Element, R: HeadRow<T, I>, const I: usize> Kernel for Unit<'_, T, R, I> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut first = 0;
        for (number, stream) in self.walk.streams.iter().enumerate() {
            let start = self.heads.start.clamp(first, first + stream.heads);
            let end = self.heads.end.clamp(first, first + stream.heads);
            let heads = [start - first, end - start];
            let positions = [self.positions.start, self.positions.len()];
            first += stream.heads;
            // Along the output's memory.
            let [_, head_stride, position_stride] = stream.to.strides;
            let heads_inside = head_stride < position_stride;
            let (outer, inner) = match heads_inside {
                true => (positions, heads),
                false => (heads, positions),
            };
            for o in 0..outer[1] {
                for i in 0..inner[1] {
                    let (h, p) = if heads_inside { (i, o) } else { (o, i) };
                    let (head, position) = (heads[0] + h, positions[0] + p);
                    let mut x = [std::ptr::null(); I];
                    for (x, from) in x.iter_mut().zip(&stream.from) {
                        *x = from.at(self.batch, head, position).cast_const();
                    }
                    let y = stream.to.at(self.batch, head, position);
                    let tables = self.table.at(p);
                    // SAFETY: the table has rows for each of the unit's positions. By the promise to `Walk::run` the stream
                    // has this head at this position.
                    unsafe { self.rows.row(s, self.unit, number, x, y, tables) };
                }
            }
        }
    }
}
