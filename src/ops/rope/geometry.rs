//! Where heads and table rows lie: dims and strides in one order for all layouts, and the checks that kernels rely on.

use super::{Rope, RopeLayout, RopePositions};
use crate::check;
use crate::op::Spec;
use candle_core::{DType, Layout, Result};

/// A tensor of heads as `[batch, heads, positions, dim]`, whatever the order of its own dims. Strides are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub batch: usize,
    pub heads: usize,
    pub positions: usize,
    pub dim: usize,
    /// Of the same dims.
    pub strides: [usize; 4],
}

impl Heads {
    /// Of a layout of three or four dims.
    pub fn new(order: RopeLayout, l: &Layout) -> Self {
        let rank = l.dims().len();
        let (heads, positions) = match order {
            RopeLayout::HeadsFirst => (rank - 3, rank - 2),
            RopeLayout::PositionsFirst => (rank - 2, rank - 3),
        };
        let batch = match rank {
            3 => (1, 0),
            _ => (l.dims()[0], l.stride()[0]),
        };
        Heads {
            batch: batch.0,
            heads: l.dims()[heads],
            positions: l.dims()[positions],
            dim: l.dims()[rank - 1],
            strides: [
                batch.1,
                l.stride()[heads],
                l.stride()[positions],
                l.stride()[rank - 1],
            ],
        }
    }

    /// The same dims in a contiguous tensor.
    pub fn contiguous(order: RopeLayout, l: &Layout) -> Self {
        Self::new(order, l).packed(order)
    }

    /// The same dims without gaps.
    pub fn packed(self, order: RopeLayout) -> Self {
        let (h, p, d) = (self.heads, self.positions, self.dim);
        let strides = match order {
            RopeLayout::HeadsFirst => [h * p * d, p * d, d, 1],
            RopeLayout::PositionsFirst => [h * p * d, d, h * d, 1],
        };
        Heads { strides, ..self }
    }

    /// Whether the elements of a head are neighbours.
    pub fn has_neighbours(&self) -> bool {
        self.dim <= 1 || self.strides[3] == 1
    }
}

/// The dims of cos and sin, `[axes, batch, rows, pairs]`: a dim that a table lacks is 1, with stride 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableDims {
    pub dims: [usize; 4],
    pub strides: [usize; 4],
}

impl TableDims {
    /// `None` if the rank is not that of a table.
    pub fn new(rope: &Rope, l: &Layout) -> Option<Self> {
        padded(l, rope.tables_per_axis(), 2).map(|(dims, strides)| TableDims { dims, strides })
    }
    pub fn rows(&self) -> usize {
        self.dims[2]
    }
    pub fn pairs(&self) -> usize {
        self.dims[3]
    }
    /// Whether the numbers of a row are neighbours.
    pub fn has_neighbours(&self) -> bool {
        self.pairs() <= 1 || self.strides[3] == 1
    }
}

/// `[axes, batch, ..]` with ones for dims that are not there, and strides that are 0 for ones, of a layout whose last `own` dims always are. The
/// first dim is the axes' if `per_axis`.
#[inline]
fn padded(l: &Layout, per_axis: bool, own: usize) -> Option<([usize; 4], [usize; 4])> {
    // A dim of 1 serves all batch rows.
    let stride = |d: usize, s: usize| if d == 1 { 0 } else { s };
    let (dims, strides) = (l.dims(), l.stride());
    let (axis, dims, strides) = match (per_axis, dims, strides) {
        (false, _, _) => ((1, 0), dims, strides),
        (true, &[d, ref dims @ ..], &[s, ref strides @ ..]) => ((d, stride(d, s)), dims, strides),
        (true, _, _) => return None,
    };
    // The batch, if there is one, and the own dims.
    let (batch, dims, strides) = match (dims.len() - dims.len().min(own), dims, strides) {
        (0, _, _) if dims.len() == own => ((1, 0), dims, strides),
        (1, &[d, ref dims @ ..], &[s, ref strides @ ..]) => ((d, stride(d, s)), dims, strides),
        _ => return None,
    };
    let own = |i: usize| match (dims.get(i), strides.get(i)) {
        (Some(&d), Some(&s)) => (d, stride(d, s)),
        _ => (1, 0),
    };
    let (a, b) = (own(0), own(1));
    Some(([axis.0, batch.0, a.0, b.0], [axis.1, batch.1, a.1, b.1]))
}

impl Rope {
    /// Whether each of three position numbers has a table of its own.
    fn tables_per_axis(&self) -> bool {
        self.sections.is_some() && self.ids().is_none()
    }

    /// Strides of the row numbers by axis, batch and position.
    pub(crate) fn id_strides(&self, l: &Layout) -> [usize; 3] {
        let padded = padded(l, self.sections.is_some(), 1);
        padded.map_or([0; 3], |(_, [axis, batch, position, _])| {
            [axis, batch, position]
        })
    }

    /// `x` has heads that these tables rotate: of x, cos and sin.
    pub(crate) fn check_args(&self, name: &str, called: &str, args: [Spec<'_>; 3]) -> Result<()> {
        let [x, cos, sin] = args;
        let (dims, order) = (x.dims(), self.layout);
        let expected = match order {
            RopeLayout::HeadsFirst => "[batch, heads, positions, dim] or [heads, positions, dim]",
            RopeLayout::PositionsFirst => {
                "[batch, positions, heads, dim] or [positions, heads, dim]"
            }
        };
        check::ensure(
            matches!(dims.len(), 3 | 4),
            name,
            format_args!("got {called} of shape {dims:?}, expected {expected}"),
        )?;
        let x = Heads::new(order, x.layout);
        let message = format_args!(
            "got cos of shape {:?} and sin of {:?}, expected the same shape",
            cos.dims(),
            sin.dims()
        );
        check::ensure(cos.dims() == sin.dims(), name, message)?;
        self.check_tables(name, called, x, cos)?;
        self.check_ids(name, x)
    }

    fn check_tables(&self, name: &str, called: &str, x: Heads, cos: Spec<'_>) -> Result<()> {
        let got = cos.dims();
        let front = match self.tables_per_axis() {
            true => "3, ",
            false => "",
        };
        let rank = format_args!(
            "got cos of shape {got:?}, expected [{front}positions, pairs] or [{front}batch, positions, pairs]"
        );
        let Some(table) = TableDims::new(self, cos.layout) else {
            return Err(check::error(name, rank));
        };
        let axes = if self.tables_per_axis() { 3 } else { 1 };
        check::ensure(table.dims[0] == axes, name, rank)?;
        let (batch, pairs, dim) = (x.batch, table.pairs(), x.dim);
        check::ensure(
            table.dims[1] == 1 || table.dims[1] == batch,
            name,
            format_args!("got cos of shape {got:?}, expected a batch of {batch} as for {called}"),
        )?;
        check::ensure(
            pairs <= dim / 2,
            name,
            format_args!(
                "got cos of shape {got:?}, expected at most {} pairs for {called}'s dim of {dim}",
                dim / 2
            ),
        )?;
        if let Some(sections) = self.sections {
            let lens = sections.lens;
            let total = lens
                .iter()
                .try_fold(0usize, |sum, &len| sum.checked_add(len));
            check::ensure(
                total == Some(pairs),
                name,
                format_args!("got sections of {lens:?} pairs, expected {pairs} in all as cos has"),
            )?;
        }
        let RopePositions::From(first) = self.positions else {
            return Ok(());
        };
        let (end, rows) = (first.checked_add(x.positions), table.rows());
        check::ensure(
            end.is_some_and(|end| end <= rows),
            name,
            format_args!(
                "got cos of {rows} positions, expected {} from {first} on as {called} has",
                x.positions
            ),
        )
    }

    fn check_ids(&self, name: &str, x: Heads) -> Result<()> {
        let Some(ids) = self.ids() else { return Ok(()) };
        let (got, dtype) = (ids.dims(), ids.dtype());
        check::ensure(
            matches!(dtype, DType::U32 | DType::I64),
            name,
            format_args!("got positions of dtype {dtype:?}, expected u32 or i64"),
        )?;
        let per_axis = self.sections.is_some();
        let axes = if per_axis { 3 } else { 1 };
        let (batch, positions) = (x.batch, x.positions);
        let fits = padded(ids.layout(), per_axis, 1).is_some_and(|(dims, _)| {
            dims[0] == axes && (dims[1] == 1 || dims[1] == batch) && dims[2] == positions
        });
        let front = if per_axis { "3, " } else { "" };
        check::ensure(
            fits,
            name,
            format_args!(
                "got positions of shape {got:?}, expected [{front}{positions}] or [{front}{batch}, {positions}]"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::RopeSections;
    use candle_core::{Device, Tensor};

    #[test]
    fn dims_that_are_missing_have_no_stride() {
        let rope = Rope::default();
        let of = |rope: &Rope, dims: &[usize]| {
            TableDims::new(rope, &Layout::contiguous(dims)).map(|t| (t.dims, t.strides))
        };
        assert_eq!(of(&rope, &[7, 4]), Some(([1, 1, 7, 4], [0, 0, 4, 1])));
        assert_eq!(of(&rope, &[2, 7, 4]), Some(([1, 2, 7, 4], [0, 28, 4, 1])));
        assert_eq!(of(&rope, &[4]), None);
        assert_eq!(of(&rope, &[3, 2, 7, 4]), None);
        let sections = Some(RopeSections {
            lens: [2, 1, 1],
            interleaved: false,
        });
        let rope = Rope { sections, ..rope };
        assert_eq!(of(&rope, &[3, 7, 4]), Some(([3, 1, 7, 4], [28, 0, 4, 1])));
        assert_eq!(
            of(&rope, &[3, 2, 7, 4]),
            Some(([3, 2, 7, 4], [56, 28, 4, 1]))
        );
        let ids = Tensor::zeros((3, 2, 5), DType::U32, &Device::Cpu).unwrap();
        assert_eq!(rope.id_strides(ids.layout()), [10, 5, 1]);
    }

    #[test]
    fn sections_take_turns_or_follow_each_other() {
        let mut sections = RopeSections {
            lens: [3, 2, 1],
            interleaved: false,
        };
        let axes = |s: RopeSections| (0..6).map(|j| s.axis(j)).collect::<Vec<_>>();
        assert_eq!(axes(sections), [0, 0, 0, 1, 1, 2]);
        assert_eq!(sections.runs(6), [(0, 0, 3), (1, 3, 2), (2, 5, 1)]);
        sections.interleaved = true;
        assert_eq!(axes(sections), [0, 1, 2, 0, 1, 0]);
    }
}
