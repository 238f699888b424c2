//! Launches of kernels/affine_act.metal.

use super::NAME;
use crate::act::Act;
use crate::metal::{
    aligned4, alloc, dtype_name, finish, grid, sources, InPlace, Launch, Operand, Spread,
};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    scale: Spread,
    bias: Spread,
    act_param: f32,
    aligned: u32,
}

impl Params {
    fn new(act: Act, x: &Operand, scale: &Operand, bias: &Operand) -> Self {
        Params {
            n: x.count() as u64,
            scale: scale.into(),
            bias: bias.into(),
            act_param: act.param(),
            aligned: aligned4(&[x, scale, bias]),
        }
    }
}

fn kernel(pass: &str, act: Act, x: &MetalStorage) -> Result<String> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Ok(format!("{NAME}_{pass}_{}_{dtype}", act.name()))
}

type Arg<'a> = (&'a MetalStorage, &'a Layout);

fn spread<'a>((t, l): Arg<'a>, x: &Layout) -> Result<Operand<'a>> {
    Operand::broadcast(t, &l.broadcast_as(x.shape())?)
}

pub fn forward(act: Act, (x, xl): Arg, scale: Arg, bias: Arg) -> Result<(MetalStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let xs = Operand::contiguous(x, xl)?;
        let (scale, bias) = (spread(scale, xl)?, spread(bias, xl)?);
        Launch::new(x.device(), &sources::AFFINE_ACT, &kernel("fwd", act, x)?)?
            .input(&xs)
            .input(&scale)
            .input(&bias)
            .output(&out)
            .params(&Params::new(act, &xs, &scale, &bias))
            .run(grid::elementwise(n, 4))?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), xl.shape().clone()))
}

pub fn forward_inplace(act: Act, (x, xl): Arg, scale: Arg, bias: Arg) -> Result<()> {
    let n = xl.shape().elem_count();
    if n == 0 {
        return Ok(());
    }
    let target = InPlace::new(x, xl)?;
    let (scale, bias) = (spread(scale, xl)?, spread(bias, xl)?);
    Launch::new(
        x.device(),
        &sources::AFFINE_ACT,
        &kernel("inplace", act, x)?,
    )?
    .inout(target.operand())
    .input(&scale)
    .input(&bias)
    .params(&Params::new(act, target.operand(), &scale, &bias))
    .run(grid::elementwise(n, 4))?;
    target.commit()
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "affine_act" AffineActParams { n, scale, bias, act_param, aligned }
}
