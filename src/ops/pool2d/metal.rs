//! Launches of kernels/pool2d.metal, which reads x with any strides.

use super::geometry::Geometry;
use super::{Kind, Pool2d, NAME};
use crate::check;
use crate::metal::{build, dtype_name, grid, sources, Launch, Operand};
use crate::op::on_metal::{Arg, Args, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: [u64; 4],
    channels: u32,
    input: [u32; 2],
    kernel: [u32; 2],
    output: [u32; 2],
    stride: [u32; 2],
    padding: [u32; 2],
    include_pad: u32,
}

impl Params {
    fn new(g: &Geometry, x: &Layout, include_pad: bool) -> Result<Self> {
        check_sizes(g)?;
        let pair = |[a, b]: [usize; 2]| [a as u32, b as u32];
        // The step between two outputs does not matter where there is one.
        let stride = [0, 1].map(|i| if g.output[i] == 1 { 1 } else { g.stride[i] });
        Ok(Params {
            x: [0, 1, 2, 3].map(|i| x.stride()[i] as u64),
            channels: g.channels as u32,
            input: pair(g.input),
            kernel: pair(g.kernel),
            output: pair(g.output),
            stride: pair(stride),
            padding: pair(g.padding),
            include_pad: include_pad.into(),
        })
    }
}

/// Kernels count planes, pixels and outputs in 32 bits.
fn check_sizes(g: &Geometry) -> Result<()> {
    const MOST: usize = 1 << 29;
    // No overflow: `Geometry::new` has seen to products of dims.
    let mut counts = vec![
        g.planes(),
        g.input[0] * g.input[1],
        g.output[0] * g.output[1],
    ];
    for i in 0..2 {
        counts.extend([g.kernel[i], g.input[i] + 2 * g.padding[i]]);
    }
    let message = format_args!("got {g:?}, expected sizes up to 2^29 on Metal");
    check::ensure(counts.iter().all(|&count| count <= MOST), NAME, message)
}

pub fn forward(op: &Pool2d, g: &Geometry, (x, l): Arg) -> OpResult {
    let [height, width] = g.output;
    let kind = match op.kind {
        Kind::Max => "max",
        Kind::Avg => "avg",
    };
    let y = build(x, g.planes() * height * width, |y| {
        let params = Params::new(g, l, op.params.count_include_pad)?;
        let kernel = format!("{NAME}_fwd_{kind}_{}", dtype_name(x.dtype(), NAME)?);
        Launch::new(x.device(), &sources::POOL2D, &kernel)?
            .input(&Operand::strided(x, l))
            .output(y)
            .params(&params)
            .run(grid::elementwise_rows(g.planes(), height * width, 1))
    })?;
    Ok((y, g.y_shape()))
}

pub fn max_backward(g: &Geometry, args: Args) -> OpResult {
    let ((x, xl), (y, yl), (grad, gl)) = (args[0], args[1], args[2]);
    let [height, width] = g.input;
    let dx = build(x, g.planes() * height * width, |dx| {
        let params = Params::new(g, xl, false)?;
        let kernel = format!("{NAME}_bwd_max_{}", dtype_name(x.dtype(), NAME)?);
        Launch::new(x.device(), &sources::POOL2D, &kernel)?
            .input(&Operand::strided(x, xl))
            .input(&Operand::contiguous(y, yl)?)
            .input(&Operand::contiguous(grad, gl)?)
            .output(dx)
            .params(&params)
            .run(grid::elementwise_rows(g.planes(), height * width, 1))
    })?;
    Ok((dx, g.x_shape()))
}

pub fn avg_backward(g: &Geometry, include_pad: bool, (grad, l): Arg) -> OpResult {
    let [height, width] = g.input;
    let dx = build(grad, g.planes() * height * width, |dx| {
        // x is not read.
        let params = Params::new(g, l, include_pad)?;
        let kernel = format!("{NAME}_bwd_avg_{}", dtype_name(grad.dtype(), NAME)?);
        Launch::new(grad.device(), &sources::POOL2D, &kernel)?
            .input(&Operand::contiguous(grad, l)?)
            .output(dx)
            .params(&params)
            .run(grid::elementwise_rows(g.planes(), height * width, 1))
    })?;
    Ok((dx, g.x_shape()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "pool2d" Pool2dParams {
        x, channels, input, kernel = "kernel_size", output, stride, padding, include_pad
    }
}
