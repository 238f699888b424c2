//! Heads, tables and row numbers as parts/rotary.metal reads them.

use crate::check;
use crate::metal::{aligned4, Launch, Operand};
use crate::op::on_metal::Arg;
use crate::ops::rope::geometry::{Heads, TableDims};
use crate::ops::rope::{RopePairs, RopePositions, Rotation, TableArgs};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result};

/// `HeadStrides` of rotary.metal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadStrides {
    batch: u64,
    head: u64,
    position: u64,
}

impl HeadStrides {
    pub fn of(heads: Heads) -> Self {
        let [batch, head, position, _] = heads.strides.map(|stride| stride as u64);
        HeadStrides {
            batch,
            head,
            position,
        }
    }

    /// Whether every head begins at a multiple of four elements from the first.
    pub fn keep_alignment(&self) -> bool {
        (self.batch | self.head | self.position).is_multiple_of(4)
    }
}

/// `RotaryParams` of rotary.metal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RotaryParams {
    cos: [u64; 3],
    sin: [u64; 3],
    ids: [u64; 3],
    first: u64,
    rows: u64,
    id_words: u32,
    axes: u32,
    section0: u32,
    section1: u32,
    taking_turns: u32,
    pub pairs: u32,
    pub dim: u32,
    pub positions: u32,
    sin_sign: f32,
    aligned_tables: u32,
}

/// A dim as kernels count it.
pub fn narrow(name: &str, n: usize) -> Result<u32> {
    let message = format_args!("got a dim of {n}, expected less than 2^32 on Metal");
    let n = u32::try_from(n).ok();
    n.map_or_else(|| Err(check::error(name, message)), Ok)
}

/// A tensor of heads to read. It is copied only if the elements of a head are not neighbours.
pub struct HeadOperand<'a> {
    pub operand: Operand<'a>,
    pub heads: Heads,
}

impl<'a> HeadOperand<'a> {
    pub fn new(rotation: &Rotation, (storage, l): Arg<'a>) -> Result<Self> {
        let order = rotation.rope.layout;
        let heads = Heads::new(order, l);
        Ok(match heads.has_neighbours() {
            true => HeadOperand {
                operand: Operand::strided(storage, l),
                heads,
            },
            false => HeadOperand {
                operand: Operand::contiguous(storage, l)?,
                heads: Heads::contiguous(order, l),
            },
        })
    }

    pub fn strides(&self) -> HeadStrides {
        HeadStrides::of(self.heads)
    }

    /// Whether four neighbours may be read at a time wherever an oct begins.
    pub fn is_aligned(&self) -> bool {
        aligned4(&[&self.operand]) == 1 && self.strides().keep_alignment()
    }
}

/// cos, sin and the row numbers, as the kernels of `rotation` read them.
pub struct Rotary<'a> {
    cos: Operand<'a>,
    sin: Operand<'a>,
    ids: Option<Operand<'a>>,
    pub params: RotaryParams,
    kind: RopePairs,
}

impl<'a> Rotary<'a> {
    /// For heads like `heads`.
    pub fn new(
        rotation: &Rotation,
        args: TableArgs<'a, MetalStorage>,
        heads: Heads,
    ) -> Result<Self> {
        let (rope, name) = (&rotation.rope, rotation.name);
        let ([cos, sin], ids) = (args.cos_sin, args.ids);
        let ((cos, cos_dims), (sin, sin_dims)) = (table(rotation, cos)?, table(rotation, sin)?);
        let strides = |t: TableDims| [0, 1, 2].map(|i| t.strides[i] as u64);
        let steady = |t: TableDims| strides(t).iter().all(|stride| stride % 4 == 0);
        let aligned = aligned4(&[&cos, &sin]) == 1 && steady(cos_dims) && steady(sin_dims);
        let lens = rope.sections.map_or([0; 3], |sections| sections.lens);
        let taking_turns = rope.sections.is_some_and(|sections| sections.interleaved);
        let [section0, section1] = match taking_turns {
            true => [lens[1], lens[2]],
            false => [lens[0], lens[1]],
        };
        let params = RotaryParams {
            cos: strides(cos_dims),
            sin: strides(sin_dims),
            ids: ids.map_or([0; 3], |(_, l)| {
                rope.id_strides(l).map(|stride| stride as u64)
            }),
            first: match rope.positions {
                RopePositions::From(first) => first as u64,
                RopePositions::Ids(_) => 0,
            },
            rows: cos_dims.rows() as u64,
            id_words: match ids.map(|(ids, _)| ids.dtype()) {
                None => 0,
                Some(DType::U32) => 1,
                Some(_) => 2,
            },
            axes: if rope.sections.is_some() { 3 } else { 1 },
            section0: narrow(name, section0)?,
            section1: narrow(name, section1)?,
            taking_turns: taking_turns.into(),
            pairs: narrow(name, cos_dims.pairs())?,
            dim: narrow(name, heads.dim)?,
            positions: narrow(name, heads.positions)?,
            sin_sign: if rotation.inverse { -1.0 } else { 1.0 },
            aligned_tables: aligned.into(),
        };
        Ok(Rotary {
            cos,
            sin,
            ids: ids.map(|(ids, l)| Operand::strided(ids, l)),
            params,
            kind: rope.pairs,
        })
    }

    /// Binds cos, sin and ids.
    pub fn bind<'b>(&'b self, launch: Launch<'b>) -> Launch<'b> {
        let launch = launch.input(&self.cos).input(&self.sin);
        launch.input_or(self.ids.as_ref(), &self.cos)
    }

    /// The part of a kernel's name that says which elements make a pair.
    pub fn pairs_name(&self) -> &'static str {
        match self.kind {
            RopePairs::Half => "half",
            RopePairs::Interleaved => "interleaved",
        }
    }

    /// Whether octs begin at multiples of four elements of a head.
    pub fn keeps_alignment(&self) -> bool {
        let pairs = self.params.pairs;
        match self.kind {
            RopePairs::Half => pairs.is_multiple_of(4),
            RopePairs::Interleaved => pairs.is_multiple_of(2),
        }
    }

    pub fn rotated_octs(&self) -> u32 {
        self.params.pairs.div_ceil(4)
    }

    /// Those that pass through too.
    pub fn octs(&self) -> u32 {
        self.rotated_octs() + (self.params.dim - 2 * self.params.pairs).div_ceil(8)
    }
}

fn table<'a>(rotation: &Rotation, (storage, l): Arg<'a>) -> Result<(Operand<'a>, TableDims)> {
    let rope = &rotation.rope;
    let dims = |l: &Layout| {
        let dims = TableDims::new(rope, l);
        dims.ok_or_else(|| check::error(rotation.name, "got a table of another rank"))
    };
    match dims(l)? {
        table if table.has_neighbours() => Ok((Operand::strided(storage, l), table)),
        _ => Ok((
            Operand::contiguous(storage, l)?,
            dims(&Layout::contiguous(l.shape()))?,
        )),
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    HeadStrides => "rope" HeadStrides { batch, head, position }
    RotaryParams => "rope" RotaryParams {
        cos, sin, ids, first, rows, id_words, axes, section0, section1, taking_turns, pairs, dim, positions, sin_sign,
        aligned_tables
    }
}
