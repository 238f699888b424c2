//! Launches of kernels/binary_act.metal.

use super::{BinaryAct, BinaryOp, NAME};
use crate::metal::{
    aligned4, alloc, dtype_name, finish, grid, sources, InPlace, Launch, Operand, Spread,
};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    y: Spread,
    act_param: f32,
    aligned: u32,
}

impl Params {
    fn new(op: BinaryAct, y: &Operand, dense: &[&Operand]) -> Self {
        Params {
            n: dense[0].count() as u64,
            y: y.into(),
            act_param: op.act.param(),
            aligned: aligned4(dense) & aligned4(&[y]),
        }
    }
}

fn kernel(pass: &str, op: BinaryAct, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!(
        "{NAME}_{pass}_{}_{}_{dtype}",
        op.op.name(),
        op.act.name()
    ))
}

type Arg<'a> = (&'a MetalStorage, &'a Layout);

fn spread<'a>((y, yl): Arg<'a>, x: &Layout) -> Result<Operand<'a>> {
    Operand::broadcast(y, &yl.broadcast_as(x.shape())?)
}

pub fn forward(op: BinaryAct, (x, xl): Arg, y: Arg) -> Result<(MetalStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let (xs, ys) = (Operand::contiguous(x, xl)?, spread(y, xl)?);
        Launch::new(x.device(), &sources::BINARY_ACT, &kernel("fwd", op, x)?)?
            .input(&xs)
            .input(&ys)
            .output(&out)
            .params(&Params::new(op, &ys, &[&xs]))
            .run(grid::elementwise(n, 4))?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), xl.shape().clone()))
}

pub fn forward_inplace(op: BinaryAct, (x, xl): Arg, y: Arg) -> Result<()> {
    let n = xl.shape().elem_count();
    if n == 0 {
        return Ok(());
    }
    let (target, ys) = (InPlace::new(x, xl)?, spread(y, xl)?);
    Launch::new(x.device(), &sources::BINARY_ACT, &kernel("inplace", op, x)?)?
        .inout(target.operand())
        .input(&ys)
        .params(&Params::new(op, &ys, &[target.operand()]))
        .run(grid::elementwise(n, 4))?;
    target.commit()
}

pub fn backward(op: BinaryAct, (x, xl): Arg, y: Arg, (g, gl): Arg) -> Result<MetalStorage> {
    let n = xl.shape().elem_count();
    let outputs = match op.op {
        BinaryOp::Add => 1,
        BinaryOp::Mul => 2,
    };
    let out = alloc(x.device(), outputs * n, x.dtype())?;
    if n > 0 {
        let (xs, ys) = (Operand::contiguous(x, xl)?, spread(y, xl)?);
        let gs = Operand::contiguous(g, gl)?;
        Launch::new(x.device(), &sources::BINARY_ACT, &kernel("bwd", op, x)?)?
            .input(&xs)
            .input(&ys)
            .input(&gs)
            .output(&out)
            .params(&Params::new(op, &ys, &[&xs, &gs]))
            .run(grid::elementwise(n, 4))?;
    }
    Ok(finish(out, x.device(), outputs * n, x.dtype()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "binary_act" BinaryActParams { n, y, act_param, aligned }
}
