//! Launches of kernels/rope.metal, and what kernels need that rotate heads.

use super::geometry::{Heads, TableDims};
use super::{RopePairs, RopePositions, Rotation};
use crate::check;
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, sources, update, Launch, Operand};
use crate::op::{Arg, ArgMut};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;

pub type MetalArg<'a> = Arg<'a, MetalStorage>;

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
    pairs: u32,
    dim: u32,
    positions: u32,
    sin_sign: f32,
    aligned_tables: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    q: HeadStrides,
    k: HeadStrides,
    q_out: HeadStrides,
    k_out: HeadStrides,
    rotary: RotaryParams,
    q_heads: u32,
    heads: u32,
    groups: u32,
    octs: u32,
    aligned: u32,
    reserved: u32,
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
    pub fn new(rotation: &Rotation, (storage, l): MetalArg<'a>) -> Result<Self> {
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
        [cos, sin]: [MetalArg<'a>; 2],
        ids: Option<MetalArg<'a>>,
        heads: Heads,
    ) -> Result<Self> {
        let (rope, name) = (&rotation.rope, rotation.name);
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

fn table<'a>(rotation: &Rotation, (storage, l): MetalArg<'a>) -> Result<(Operand<'a>, TableDims)> {
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

/// Heads that a thread of rope.metal takes.
const HEADS: usize = 4;

impl Params {
    /// From heads of q, and of k if there are any, to contiguous ones; `octs` of each.
    fn new(
        rotation: &Rotation,
        rotary: &Rotary,
        heads: [&HeadOperand; 2],
        k_heads: usize,
        out: [Heads; 2],
        octs: u32,
    ) -> Result<Self> {
        let [q, k] = heads;
        let name = rotation.name;
        let all = q.heads.heads + k_heads;
        let aligned = rotary.keeps_alignment()
            && heads.iter().all(|x| x.is_aligned())
            && out.iter().all(|y| HeadStrides::of(*y).keep_alignment());
        Ok(Params {
            q: q.strides(),
            k: k.strides(),
            q_out: HeadStrides::of(out[0]),
            k_out: HeadStrides::of(out[1]),
            rotary: rotary.params,
            q_heads: narrow(name, q.heads.heads)?,
            heads: narrow(name, all)?,
            groups: narrow(name, all.div_ceil(HEADS))?,
            octs,
            aligned: aligned.into(),
            reserved: 0,
        })
    }

    fn grid(&self, batch: usize) -> grid::Grid {
        let row = self.octs as usize * self.rotary.positions as usize;
        grid::elementwise_rows(batch * self.groups as usize, row, 1)
    }
}

fn launch<'a>(
    rotation: &Rotation,
    pass: &str,
    rotary: &Rotary,
    x: &'a MetalStorage,
) -> Result<Launch<'a>> {
    let dtype = dtype_name(x.dtype(), rotation.name)?;
    let kernel = format!("rope_{pass}_{}_{dtype}", rotary.pairs_name());
    Launch::new(x.device(), &sources::ROPE, &kernel)
}

pub fn forward(
    rotation: &Rotation,
    x: MetalArg,
    tables: [MetalArg; 2],
    ids: Option<MetalArg>,
) -> Result<MetalStorage> {
    let count = x.1.shape().elem_count();
    let out = alloc(x.0.device(), count, x.0.dtype())?;
    if count > 0 {
        // The output stands in for k's, of which there is none.
        run_pair(rotation, [x, x], 0, tables, ids, [&out, &out])?;
    }
    Ok(finish(out, x.0.device(), count, x.0.dtype()))
}

pub fn forward_pair(
    rotation: &Rotation,
    [q, k]: [MetalArg; 2],
    tables: [MetalArg; 2],
    ids: Option<MetalArg>,
) -> Result<[MetalStorage; 2]> {
    let (device, dtype) = (q.0.device(), q.0.dtype());
    let counts = [q, k].map(|(_, l)| l.shape().elem_count());
    let outs = [
        alloc(device, counts[0], dtype)?,
        alloc(device, counts[1], dtype)?,
    ];
    let k_heads = Heads::new(rotation.rope.layout, k.1).heads;
    match counts {
        [0, 0] => (),
        // q has no heads.
        [0, _] => run_pair(rotation, [k, k], 0, tables, ids, [&outs[1], &outs[1]])?,
        _ => run_pair(rotation, [q, k], k_heads, tables, ids, [&outs[0], &outs[1]])?,
    }
    let [q, k] = outs;
    Ok([
        finish(q, device, counts[0], dtype),
        finish(k, device, counts[1], dtype),
    ])
}

fn run_pair(
    rotation: &Rotation,
    [q, k]: [MetalArg; 2],
    k_heads: usize,
    tables: [MetalArg; 2],
    ids: Option<MetalArg>,
    [q_out, k_out]: [&Buffer; 2],
) -> Result<()> {
    let (qs, ks) = (
        HeadOperand::new(rotation, q)?,
        HeadOperand::new(rotation, k)?,
    );
    let rotary = Rotary::new(rotation, tables, ids, qs.heads)?;
    let out = [q, k].map(|(_, l)| Heads::contiguous(rotation.rope.layout, l));
    let octs = rotary.octs();
    let params = Params::new(rotation, &rotary, [&qs, &ks], k_heads, out, octs)?;
    let launch = launch(rotation, "fwd", &rotary, q.0)?;
    let launch = launch.input(&qs.operand).input(&ks.operand);
    let launch = rotary.bind(launch).output(q_out).output(k_out);
    launch.params(&params).run(params.grid(qs.heads.batch))
}

pub fn inplace(
    rotation: &Rotation,
    (x, l): ArgMut<MetalStorage>,
    tables: [MetalArg; 2],
    ids: Option<MetalArg>,
) -> Result<()> {
    let order = rotation.rope.layout;
    let run = |x: &MetalStorage, xs: HeadOperand| {
        let rotary = Rotary::new(rotation, tables, ids, xs.heads)?;
        if rotary.params.pairs == 0 || l.shape().elem_count() == 0 {
            return Ok(());
        }
        let (octs, out) = (rotary.rotated_octs(), [xs.heads; 2]);
        let params = Params::new(rotation, &rotary, [&xs, &xs], 0, out, octs)?;
        let launch = launch(rotation, "inplace", &rotary, x)?.inout(&xs.operand);
        let launch = rotary.bind(launch).params(&params);
        launch.run(params.grid(xs.heads.batch))
    };
    let heads = Heads::new(order, l);
    if heads.has_neighbours() {
        let operand = Operand::strided(x, l);
        return run(x, HeadOperand { operand, heads });
    }
    update((x, l), |x, xs| {
        let operand = xs.reborrow();
        let heads = Heads::contiguous(order, l);
        run(x, HeadOperand { operand, heads })
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    HeadStrides => "rope" HeadStrides { batch, head, position }
    RotaryParams => "rope" RotaryParams {
        cos, sin, ids, first, rows, id_words, axes, section0, section1, taking_turns, pairs, dim, positions, sin_sign,
        aligned_tables
    }
    Params => "rope" RopeParams {
        q, k, q_out, k_out, rotary, q_heads, heads, groups, octs, aligned, reserved
    }
}
