//! Launches of kernels/rope.metal. `rotary` has what all kernels need that rotate heads.

mod rotary;

pub use rotary::{narrow, HeadOperand, HeadStrides, Rotary, RotaryParams};

use super::geometry::Heads;
use super::{Rotation, TableArgs};
use crate::metal::{alloc, dtype_name, finish, grid, sources, update, Launch, Operand};
use crate::op::on_metal::{Arg, ArgMut};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;

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
    x: Arg,
    tables: TableArgs<MetalStorage>,
) -> Result<MetalStorage> {
    let count = x.1.shape().elem_count();
    let out = alloc(x.0.device(), count, x.0.dtype())?;
    if count > 0 {
        // The output stands in for k's, of which there is none.
        run_pair(rotation, [x, x], 0, tables, [&out, &out])?;
    }
    Ok(finish(out, x.0.device(), count, x.0.dtype()))
}

pub fn forward_pair(
    rotation: &Rotation,
    [q, k]: [Arg; 2],
    tables: TableArgs<MetalStorage>,
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
        [0, _] => run_pair(rotation, [k, k], 0, tables, [&outs[1], &outs[1]])?,
        _ => run_pair(rotation, [q, k], k_heads, tables, [&outs[0], &outs[1]])?,
    }
    let [q, k] = outs;
    Ok([
        finish(q, device, counts[0], dtype),
        finish(k, device, counts[1], dtype),
    ])
}

fn run_pair(
    rotation: &Rotation,
    [q, k]: [Arg; 2],
    k_heads: usize,
    tables: TableArgs<MetalStorage>,
    [q_out, k_out]: [&Buffer; 2],
) -> Result<()> {
    let (qs, ks) = (
        HeadOperand::new(rotation, q)?,
        HeadOperand::new(rotation, k)?,
    );
    let rotary = Rotary::new(rotation, tables, qs.heads)?;
    let out = [q, k].map(|(_, l)| Heads::contiguous(rotation.rope.layout, l));
    let octs = rotary.octs();
    let params = Params::new(rotation, &rotary, [&qs, &ks], k_heads, out, octs)?;
    let launch = launch(rotation, "fwd", &rotary, q.0)?;
    let launch = launch.input(&qs.operand).input(&ks.operand);
    let launch = rotary.bind(launch).output(q_out).output(k_out);
    launch.params(&params).run(params.grid(qs.heads.batch))
}

pub fn inplace(rotation: &Rotation, (x, l): ArgMut, tables: TableArgs<MetalStorage>) -> Result<()> {
    let order = rotation.rope.layout;
    let run = |x: &MetalStorage, xs: HeadOperand| {
        let rotary = Rotary::new(rotation, tables, xs.heads)?;
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
    Params => "rope" RopeParams {
        q, k, q_out, k_out, rotary, q_heads, heads, groups, octs, aligned, reserved
    }
}
