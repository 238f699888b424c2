//! Launches of kernels/glu.metal.

use super::NAME;
use crate::act::Act;
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, sources, InPlace, Launch, Operand};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    cols: u64,
    stride: u64,
    up_at: u64,
    dup_at: u64,
    act_param: f32,
    aligned: u32,
}

impl Params {
    /// Two tensors as one long row; the gradients stand one behind the other.
    fn separate(act: Act, operands: &[&Operand]) -> Self {
        let n = operands[0].count() as u64;
        Params {
            cols: n,
            stride: n,
            up_at: 0,
            dup_at: n,
            act_param: act.param(),
            aligned: aligned4(operands) & u32::from(n.is_multiple_of(4)),
        }
    }

    /// Rows that hold both halves.
    fn packed(act: Act, cols: usize, operands: &[&Operand]) -> Self {
        let cols = cols as u64;
        Params {
            cols,
            stride: 2 * cols,
            up_at: cols,
            dup_at: cols,
            act_param: act.param(),
            aligned: aligned4(operands) & u32::from(cols.is_multiple_of(4)),
        }
    }
}

fn launch<'a>(pass: &str, act: Act, x: &'a MetalStorage) -> Result<Launch<'a>> {
    let dtype = dtype_name(x.dtype(), NAME)?;
    let kernel = format!("{NAME}_{pass}_{}_{dtype}", act.name());
    Launch::new(x.device(), &sources::GLU, &kernel)
}

type Arg<'a> = (&'a MetalStorage, &'a Layout);

pub fn forward(act: Act, (gate, gl): Arg, (up, ul): Arg) -> Result<(MetalStorage, Shape)> {
    let n = gl.shape().elem_count();
    let out = alloc(gate.device(), n, gate.dtype())?;
    if n > 0 {
        let (gates, ups) = (Operand::contiguous(gate, gl)?, Operand::contiguous(up, ul)?);
        launch("fwd", act, gate)?
            .input(&gates)
            .input(&ups)
            .output(&out)
            .params(&Params::separate(act, &[&gates, &ups]))
            .run(grid::elementwise_rows(1, n, 4))?;
    }
    let out = finish(out, gate.device(), n, gate.dtype());
    Ok((out, gl.shape().clone()))
}

pub fn forward_inplace(act: Act, (gate, gl): Arg, (up, ul): Arg) -> Result<()> {
    let n = gl.shape().elem_count();
    if n == 0 {
        return Ok(());
    }
    let (target, ups) = (InPlace::new(gate, gl)?, Operand::contiguous(up, ul)?);
    launch("inplace", act, gate)?
        .inout(target.operand())
        .input(&ups)
        .params(&Params::separate(act, &[target.operand(), &ups]))
        .run(grid::elementwise_rows(1, n, 4))?;
    target.commit()
}

pub fn backward(act: Act, (gate, gl): Arg, (up, ul): Arg, (g, l): Arg) -> Result<MetalStorage> {
    let n = gl.shape().elem_count();
    let out = alloc(gate.device(), 2 * n, gate.dtype())?;
    if n > 0 {
        let (gates, ups) = (Operand::contiguous(gate, gl)?, Operand::contiguous(up, ul)?);
        let gs = Operand::contiguous(g, l)?;
        launch("bwd", act, gate)?
            .input(&gates)
            .input(&ups)
            .input(&gs)
            .output(&out)
            .params(&Params::separate(act, &[&gates, &ups, &gs]))
            .run(grid::elementwise_rows(1, n, 4))?;
    }
    Ok(finish(out, gate.device(), 2 * n, gate.dtype()))
}

/// Rows and half the columns of a packed tensor.
fn packed_dims(l: &Layout) -> (usize, usize) {
    let cols = l.dims().last().map_or(0, |d| d / 2);
    let rows = l.shape().elem_count() / (2 * cols).max(1);
    (rows, cols)
}

pub fn forward_packed(act: Act, (x, l): Arg) -> Result<MetalStorage> {
    let (rows, cols) = packed_dims(l);
    let out = alloc(x.device(), rows * cols, x.dtype())?;
    if rows * cols > 0 {
        let xs = Operand::contiguous(x, l)?;
        launch("fwd", act, x)?
            .input(&xs)
            .input(&xs)
            .output(&out)
            .params(&Params::packed(act, cols, &[&xs]))
            .run(grid::elementwise_rows(rows, cols, 4))?;
    }
    Ok(finish(out, x.device(), rows * cols, x.dtype()))
}

pub fn backward_packed(act: Act, (x, l): Arg, (g, gl): Arg) -> Result<MetalStorage> {
    let (rows, cols) = packed_dims(l);
    let out = alloc(x.device(), 2 * rows * cols, x.dtype())?;
    if rows * cols > 0 {
        let (xs, gs) = (Operand::contiguous(x, l)?, Operand::contiguous(g, gl)?);
        launch("bwd", act, x)?
            .input(&xs)
            .input(&xs)
            .input(&gs)
            .output(&out)
            .params(&Params::packed(act, cols, &[&xs, &gs]))
            .run(grid::elementwise_rows(rows, cols, 4))?;
    }
    Ok(finish(out, x.device(), 2 * rows * cols, x.dtype()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "glu" GluParams { cols, stride, up_at, dup_at, act_param, aligned }
}
