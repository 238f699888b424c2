//! The cos and sin of a block of positions, in f32 and in the order in which a head is read.

use crate::check;
use crate::cpu::element::Element;
use crate::cpu::simd::{Kernel, Simd};
use crate::op::on_cpu::Arg;
use crate::ops::rope::geometry::TableDims;
use crate::ops::rope::{RopePairs, RopePositions, RopeSections, Rotation, TableArgs};
use crate::ops::targets;
use candle_core::{CpuStorage, DType, Result};
use std::ops::Range;

/// cos and sin, and which of their rows belong to which position.
pub struct Tables<'a, T> {
    /// Each from its first element on.
    tables: [(&'a [T], TableDims); 2],
    first: usize,
    ids: Option<Ids>,
    sections: Option<RopeSections>,
    kind: RopePairs,
    inverse: bool,
}

/// cos and sin in f32 for neighbouring positions, and how far a row is from the next.
#[derive(Clone, Copy)]
pub struct Rows {
    tables: [*const f32; 2],
    strides: [usize; 2],
}

impl Rows {
    /// What [`Fill`] has written.
    pub fn filled(out: *const f32, width: usize) -> Self {
        Rows {
            tables: [out, out.wrapping_add(width)],
            strides: [2 * width; 2],
        }
    }

    /// The rows from the i-th on.
    pub fn from(&self, i: usize) -> Self {
        Rows {
            tables: self.at(i),
            ..*self
        }
    }

    /// cos and sin of the i-th of the positions.
    #[inline(always)]
    pub fn at(&self, i: usize) -> [*const f32; 2] {
        let [cos, sin] = self.tables;
        [
            cos.wrapping_add(i * self.strides[0]),
            sin.wrapping_add(i * self.strides[1]),
        ]
    }
}

/// Row numbers, all of them rows that the tables have, by axis, batch and position.
struct Ids {
    rows: Vec<u32>,
    strides: [usize; 3],
}

impl<'a, T: Element> Tables<'a, T> {
    /// Of arguments that the op's check has accepted.
    pub fn new(rotation: &Rotation, args: TableArgs<'a, CpuStorage>) -> Result<Self> {
        let Rotation {
            rope,
            inverse,
            name,
        } = rotation;
        let of = |(storage, l): Arg<'a>| {
            let data = storage.as_slice::<T>()?;
            let dims = TableDims::new(rope, l)
                .ok_or_else(|| check::error(name, "got a table of another rank"))?;
            Ok::<_, candle_core::Error>((&data[l.start_offset().min(data.len())..], dims))
        };
        let tables = [of(args.cos_sin[0])?, of(args.cos_sin[1])?];
        let ids = args
            .ids
            .map(|ids| Ids::new(rotation, ids, tables[0].1.rows()));
        Ok(Tables {
            tables,
            first: match rope.positions {
                RopePositions::From(first) => first,
                RopePositions::Ids(_) => 0,
            },
            ids: ids.transpose()?,
            sections: rope.sections,
            kind: rope.pairs,
            inverse: *inverse,
        })
    }

    pub fn pairs(&self) -> usize {
        self.tables[0].1.pairs()
    }

    pub fn kind(&self) -> RopePairs {
        self.kind
    }

    /// How many f32 the cos of one position take, and the sin as many.
    pub fn width(&self) -> usize {
        match self.kind {
            RopePairs::Half => self.pairs(),
            RopePairs::Interleaved => 2 * self.pairs(),
        }
    }

    /// The tables themselves, from the first position's row on, if a head can be rotated by them as they lie there.
    pub fn as_they_lie(&self, batch: usize) -> Option<Rows> {
        let plain = self.ids.is_none() && self.sections.is_none() && !self.inverse;
        if T::DTYPE != DType::F32 || !plain || self.kind != RopePairs::Half {
            return None;
        }
        let [cos, sin] = &self.tables;
        if !cos.1.has_neighbours() || !sin.1.has_neighbours() {
            return None;
        }
        let of = |(data, table): &(&[T], TableDims)| {
            let [_, batches, rows, _] = table.strides;
            let at = batch * batches + self.first * rows;
            (data.as_ptr().wrapping_add(at).cast::<f32>(), rows)
        };
        let ((cos, cos_stride), (sin, sin_stride)) = (of(cos), of(sin));
        Some(Rows {
            tables: [cos, sin],
            strides: [cos_stride, sin_stride],
        })
    }

    /// The table row of a position.
    fn row(&self, axis: usize, batch: usize, position: usize) -> usize {
        match &self.ids {
            None => self.first + position,
            Some(ids) => {
                let [a, b, p] = ids.strides;
                ids.rows[axis * a + batch * b + position * p] as usize
            }
        }
    }
}

impl Ids {
    fn new(rotation: &Rotation, (storage, l): Arg, rows: usize) -> Result<Self> {
        let contiguous = candle_core::Layout::contiguous(l.shape());
        Ok(Ids {
            rows: targets::read(rotation.name, "positions", (storage, l), rows, None)?,
            strides: rotation.rope.id_strides(&contiguous),
        })
    }
}

/// Writes the cos and sin of positions to `out`: for each position first cos, then sin, each of `Tables::width` numbers.
/// Neighbours that are rotated together get the same cos twice, and −sin and sin.
pub struct Fill<'a, T> {
    pub tables: &'a Tables<'a, T>,
    pub batch: usize,
    pub positions: Range<usize>,
    /// Has room for them.
    pub out: *mut f32,
}

impl<T: Element> Kernel for Fill<'_, T> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (pairs, width) = (self.tables.pairs(), self.tables.width());
        for (i, position) in self.positions.clone().enumerate() {
            for which in 0..2 {
                // SAFETY: `out` has twice the width for each position.
                let out = unsafe { self.out.add((2 * i + which) * width) };
                let sign = match which == 1 && self.tables.inverse {
                    true => -1.0,
                    false => 1.0,
                };
                match self.neighbours(which, position) {
                    // SAFETY: `pairs` ≤ width numbers fit.
                    Some(row) => unsafe { widen(s, row, out, sign) },
                    None => {
                        for j in 0..pairs {
                            // SAFETY: as above.
                            unsafe { *out.add(j) = self.at(which, position, j) * sign };
                        }
                    }
                }
                if self.tables.kind == RopePairs::Interleaved {
                    let first = if which == 0 { 1.0 } else { -1.0 };
                    // SAFETY: the width is twice the pairs here.
                    unsafe { spread(out, pairs, first) };
                }
            }
        }
    }
}

impl<'a, T: Element> Fill<'a, T> {
    /// The row of one table for a position, if it lies there in one piece.
    fn neighbours(&self, which: usize, position: usize) -> Option<&'a [T]> {
        let (data, table) = &self.tables.tables[which];
        let [_, batch, row, _] = table.strides;
        if self.tables.sections.is_some() || !table.has_neighbours() {
            return None;
        }
        let at = self.batch * batch + self.tables.row(0, self.batch, position) * row;
        data.get(at..at + table.pairs())
    }

    fn at(&self, which: usize, position: usize, j: usize) -> f32 {
        let (data, table) = &self.tables.tables[which];
        let axis = self.tables.sections.map_or(0, |sections| sections.axis(j));
        let [axes, batch, row, pair] = table.strides;
        let at = axis * axes
            + self.batch * batch
            + self.tables.row(axis, self.batch, position) * row
            + j * pair;
        data[at].widen()
    }
}

/// # Safety
/// `out` has room for as many numbers as `row` has.
#[inline(always)]
unsafe fn widen<S: Simd, T: Element>(s: S, row: &[T], out: *mut f32, sign: f32) {
    let mut i = 0;
    while i < row.len() {
        let left = row.len() - i;
        // SAFETY: `left` elements remain in both.
        unsafe {
            let v = T::load_upto(s, row.as_ptr().add(i), left);
            f32::store_upto(s, out.add(i), left, s.mul(v, s.splat(sign)));
        }
        i += S::LANES;
    }
}

/// Each of the first `n` numbers twice, the first of the two times `first`.
///
/// # Safety
/// `out` has room for `2n` numbers, of which the first n can be read.
#[inline(always)]
unsafe fn spread(out: *mut f32, n: usize, first: f32) {
    for j in (0..n).rev() {
        // SAFETY: 2j + 1 < 2n, and whatever lies above j has been read already.
        unsafe {
            let v = *out.add(j);
            *out.add(2 * j) = v * first;
            *out.add(2 * j + 1) = v;
        }
    }
}
