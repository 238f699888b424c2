//! The rotation composed of stock ops.

use super::geometry::TableDims;
use super::{Rope, RopeLayout, RopePairs, RopePositions};
use crate::ops::targets;
use crate::ops::widen::widened;
use candle_core::{Result, Tensor, D};

/// The composition of stock ops that [`rope`](super::rope) replaces.
pub fn reference(x: &Tensor, cos: &Tensor, sin: &Tensor, rope: &Rope) -> Result<Tensor> {
    composed("rope", x, cos, sin, rope)
}

/// On behalf of the function `name`.
pub(super) fn composed(
    name: &str,
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    rope: &Rope,
) -> Result<Tensor> {
    let pairs = cos.dim(D::Minus1)?;
    if x.elem_count() == 0 || pairs == 0 {
        return Ok(x.clone());
    }
    rope.check_row_numbers(name, cos)?;
    let [cos, sin] = [cos, sin].map(|table| rope.table_of(x, &widened(table)?));
    rotated(&widened(x)?, &cos?, &sin?, rope.pairs)?.to_dtype(x.dtype())
}

fn rotated(x: &Tensor, cos: &Tensor, sin: &Tensor, kind: RopePairs) -> Result<Tensor> {
    let (pairs, dim) = (cos.dim(D::Minus1)?, x.dim(D::Minus1)?);
    let rest = x.narrow(D::Minus1, 2 * pairs, dim - 2 * pairs)?;
    let (a, b) = match kind {
        RopePairs::Half => (
            x.narrow(D::Minus1, 0, pairs)?,
            x.narrow(D::Minus1, pairs, pairs)?,
        ),
        RopePairs::Interleaved => {
            let split = [&x.dims()[..x.rank() - 1], &[pairs, 2]].concat();
            let split = x.narrow(D::Minus1, 0, 2 * pairs)?.reshape(split)?;
            let of = |i| split.narrow(D::Minus1, i, 1)?.squeeze(D::Minus1);
            (of(0)?, of(1)?)
        }
    };
    let y = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let z = (b.broadcast_mul(cos)? + a.broadcast_mul(sin)?)?;
    let rotated = match kind {
        RopePairs::Half => Tensor::cat(&[y, z], D::Minus1)?,
        RopePairs::Interleaved => Tensor::stack(&[y, z], D::Minus1)?.flatten_from(D::Minus2)?,
    };
    match rest.elem_count() {
        0 => Ok(rotated),
        _ => Tensor::cat(&[rotated, rest], D::Minus1),
    }
}

impl Rope {
    /// The table has the rows whose numbers are given by a tensor. Stock's lookup takes the largest number of a dtype for
    /// padding.
    fn check_row_numbers(&self, name: &str, cos: &Tensor) -> Result<()> {
        let (Some(ids), Some(table)) = (self.ids(), TableDims::new(self, cos.layout())) else {
            return Ok(());
        };
        targets::read_tensor(name, "positions", ids, table.rows(), None).map(drop)
    }

    /// The rows of a table for each position of x, in a shape that broadcasts to x's.
    fn table_of(&self, x: &Tensor, table: &Tensor) -> Result<Tensor> {
        let rows = self.rows_of(x, table)?;
        match (self.layout, x.rank()) {
            (RopeLayout::HeadsFirst, 3) => Ok(rows),
            (RopeLayout::HeadsFirst, _) => rows.unsqueeze(1),
            (RopeLayout::PositionsFirst, 3) => rows.squeeze(0)?.unsqueeze(1),
            (RopeLayout::PositionsFirst, _) => rows.unsqueeze(2),
        }
    }

    /// `[batch or 1, positions, pairs]`
    fn rows_of(&self, x: &Tensor, table: &Tensor) -> Result<Tensor> {
        let Some(sections) = self.sections else {
            return self.rows_of_axis(x, table, None);
        };
        let axes = [0, 1, 2].map(|axis| self.rows_of_axis(x, table, Some(axis)));
        let axes = axes.into_iter().collect::<Result<Vec<_>>>()?;
        let runs = sections.runs(table.dim(D::Minus1)?).into_iter();
        let runs = runs.map(|(axis, first, len)| axes[axis].narrow(D::Minus1, first, len));
        Tensor::cat(&runs.collect::<Result<Vec<_>>>()?, D::Minus1)
    }

    fn rows_of_axis(&self, x: &Tensor, table: &Tensor, axis: Option<usize>) -> Result<Tensor> {
        let positions = match self.layout {
            RopeLayout::HeadsFirst => x.dim(D::Minus2)?,
            RopeLayout::PositionsFirst => x.dim(x.rank() - 3)?,
        };
        let dims = TableDims::new(self, table.layout());
        let [axes, batch, rows, pairs] = dims.map_or([0; 4], |table| table.dims);
        let table = table.reshape((axes, batch, rows, pairs))?;
        match &self.positions {
            RopePositions::From(first) => {
                let table = table.get(axis.unwrap_or(0))?;
                table.narrow(1, *first, positions)
            }
            RopePositions::Ids(ids) => {
                let ids = match axis {
                    Some(axis) => ids.get(axis)?,
                    None => ids.clone(),
                };
                let ids = ids.reshape(((), positions))?;
                let sets = ids.dim(0)?.max(batch);
                let of = |i: usize| {
                    let table = table.get(0)?.get(i.min(batch - 1))?;
                    let ids = ids.get(i.min(ids.dim(0)? - 1))?;
                    table.index_select(&ids.contiguous()?, 0)
                };
                Tensor::stack(&(0..sets).map(of).collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }
}
