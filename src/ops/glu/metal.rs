//! Launches of kernels/glu.metal.

use super::NAME;
use crate::act::Act;
use crate::metal::elementwise::dense;
use crate::metal::{aligned4, build, dtype_name, grid, sources, update, Launch, Operand};
use crate::op::on_metal::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

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

/// A pass over the gate and tensors of its shape, with `outputs` outputs.
fn separate(pass: &str, act: Act, args: &[Arg], outputs: usize) -> Result<MetalStorage> {
    let (gate, n) = (args[0].0, args[0].1.shape().elem_count());
    build(gate, outputs * n, |out| {
        let operands = dense(args.iter().copied())?;
        let operands: Vec<&Operand> = operands.iter().collect();
        let launch = launch(pass, act, gate)?;
        let launch = operands.iter().fold(launch, |l, input| l.input(input));
        launch
            .output(out)
            .params(&Params::separate(act, &operands))
            .run(grid::elementwise_rows(1, n, 4))
    })
}

pub fn forward(act: Act, gate: Arg, up: Arg) -> OpResult {
    let out = separate("fwd", act, &[gate, up], 1)?;
    Ok((out, gate.1.shape().clone()))
}

pub fn inplace(act: Act, gate: ArgMut, (up, ul): Arg) -> Result<()> {
    update(gate, |gate, gates| {
        let ups = Operand::contiguous(up, ul)?;
        launch("inplace", act, gate)?
            .inout(gates)
            .input(&ups)
            .params(&Params::separate(act, &[gates, &ups]))
            .run(grid::elementwise_rows(1, gates.count(), 4))
    })
}

pub fn backward(act: Act, gate: Arg, up: Arg, g: Arg) -> Result<MetalStorage> {
    separate("bwd", act, &[gate, up, g], 2)
}

/// A pass over packed rows and, in a backward, a gradient; its output has `width` elements for each of a half row.
fn packed(pass: &str, act: Act, (x, l): Arg, g: Option<Arg>, width: usize) -> Result<MetalStorage> {
    let cols = l.dims().last().map_or(0, |d| d / 2);
    let rows = l.shape().elem_count() / (2 * cols).max(1);
    build(x, width * rows * cols, |out| {
        let (xs, g) = (Operand::contiguous(x, l)?, dense(g)?);
        let inputs: Vec<&Operand> = [&xs, &xs].into_iter().chain(&g).collect();
        let launch = launch(pass, act, x)?;
        let launch = inputs.iter().fold(launch, |l, input| l.input(input));
        launch
            .output(out)
            .params(&Params::packed(act, cols, &inputs))
            .run(grid::elementwise_rows(rows, cols, 4))
    })
}

pub fn forward_packed(act: Act, x: Arg) -> Result<MetalStorage> {
    packed("fwd", act, x, None, 1)
}

pub fn backward_packed(act: Act, x: Arg, g: Arg) -> Result<MetalStorage> {
    packed("bwd", act, x, Some(g), 2)
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "glu" GluParams { cols, stride, up_at, dup_at, act_param, aligned }
}
