//! Launches of kernels/activation.metal.

use super::{Act, NAME};
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, sources, InPlace, Launch, Operand};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    act_param: f32,
    aligned: u32,
}

impl Params {
    fn new(act: Act, operands: &[&Operand]) -> Self {
        Params {
            n: operands[0].count() as u64,
            act_param: act.param(),
            aligned: aligned4(operands),
        }
    }
}

fn kernel(pass: &str, act: Act, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!("{NAME}_{pass}_{}_{dtype}", act.name()))
}

pub fn forward(act: Act, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
    let n = l.shape().elem_count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let operand = Operand::contiguous(x, l)?;
        Launch::new(x.device(), &sources::ACTIVATION, &kernel("fwd", act, x)?)?
            .input(&operand)
            .output(&out)
            .params(&Params::new(act, &[&operand]))
            .run(grid::elementwise(n, 4))?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), l.shape().clone()))
}

pub fn forward_inplace(act: Act, x: &MetalStorage, l: &Layout) -> Result<()> {
    let n = l.shape().elem_count();
    if n == 0 {
        return Ok(());
    }
    let target = InPlace::new(x, l)?;
    Launch::new(
        x.device(),
        &sources::ACTIVATION,
        &kernel("inplace", act, x)?,
    )?
    .inout(target.operand())
    .params(&Params::new(act, &[target.operand()]))
    .run(grid::elementwise(n, 4))?;
    target.commit()
}

pub fn backward(
    act: Act,
    (x, xl): (&MetalStorage, &Layout),
    (g, gl): (&MetalStorage, &Layout),
) -> Result<(MetalStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let (xs, gs) = (Operand::contiguous(x, xl)?, Operand::contiguous(g, gl)?);
        Launch::new(x.device(), &sources::ACTIVATION, &kernel("bwd", act, x)?)?
            .input(&xs)
            .input(&gs)
            .output(&out)
            .params(&Params::new(act, &[&xs, &gs]))
            .run(grid::elementwise(n, 4))?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), xl.shape().clone()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "activation" ActivationParams { n, act_param, aligned }
}
