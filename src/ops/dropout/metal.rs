//! Launches of kernels/dropout.metal.

use super::{Dropout, DropoutAdd, NAME};
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, sources, InPlace, Launch, Operand};
use crate::philox::Mask;
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    n: u64,
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    scale: f32,
    aligned: u32,
}

impl Params {
    fn new(mask: Mask, operands: &[&Operand]) -> Self {
        Params {
            n: operands[0].count() as u64,
            seed_low: mask.seed as u32,
            seed_high: (mask.seed >> 32) as u32,
            threshold: mask.threshold,
            scale: mask.scale,
            aligned: aligned4(operands),
        }
    }
}

fn launch<'a>(variant: &str, x: &'a MetalStorage) -> Result<Launch<'a>> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    Launch::new(
        x.device(),
        &sources::DROPOUT,
        &format!("{NAME}_{variant}_{dtype}"),
    )
}

pub fn forward(op: Dropout, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
    let n = l.shape().elem_count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let xs = Operand::contiguous(x, l)?;
        let variant = if op.relu { "fwd_relu" } else { "fwd_identity" };
        launch(variant, x)?
            .input(&xs)
            .output(&out)
            .params(&Params::new(Mask::new(op.p, op.seed), &[&xs]))
            .run(grid::elementwise(n, 4))?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), l.shape().clone()))
}

pub fn forward_inplace(op: Dropout, x: &MetalStorage, l: &Layout) -> Result<()> {
    let n = l.shape().elem_count();
    if n == 0 {
        return Ok(());
    }
    let target = InPlace::new(x, l)?;
    let variant = if op.relu {
        "inplace_relu"
    } else {
        "inplace_identity"
    };
    launch(variant, x)?
        .inout(target.operand())
        .params(&Params::new(Mask::new(op.p, op.seed), &[target.operand()]))
        .run(grid::elementwise(n, 4))?;
    target.commit()
}

pub fn forward_add(
    op: DropoutAdd,
    (x, xl): (&MetalStorage, &Layout),
    (residual, rl): (&MetalStorage, &Layout),
) -> Result<(MetalStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let (xs, rs) = (
            Operand::contiguous(x, xl)?,
            Operand::contiguous(residual, rl)?,
        );
        launch("add", x)?
            .input(&xs)
            .input(&rs)
            .output(&out)
            .params(&Params::new(Mask::new(op.p, op.seed), &[&xs, &rs]))
            .run(grid::elementwise(n, 4))?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), xl.shape().clone()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "dropout" DropoutParams { n, seed_low, seed_high, threshold, scale, aligned }
}
