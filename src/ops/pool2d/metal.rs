//! Launches of kernels/pool2d.metal, which reads x with any strides.

use super::geometry::Geometry;
use super::{Kind, Pool2dParams, NAME};
use crate::check;
use crate::metal::{
    build, dtype_name, grid, image_strides, sources, Launch, Operand, WindowParams,
};
use crate::op::on_metal::{Arg, Args, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: [u64; 4],
    channels: u32,
    windows: WindowParams,
    include_pad: u32,
}

impl Params {
    fn new(g: &Geometry, x: &Layout) -> Result<Self> {
        check_sizes(g)?;
        // The step between two outputs does not matter where there is one.
        let stride = [0, 1].map(|i| {
            if g.output[i] == 1 {
                1
            } else {
                g.windows.stride[i]
            }
        });
        let Pool2dParams {
            kernel, padding, ..
        } = g.windows;
        Ok(Params {
            x: image_strides(x),
            channels: g.channels as u32,
            windows: WindowParams::new(g.input, kernel, g.output, stride, padding),
            include_pad: g.windows.count_include_pad.into(),
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
        counts.extend([g.windows.kernel[i], g.input[i] + 2 * g.windows.padding[i]]);
    }
    let message = format_args!("got {g:?}, expected sizes up to 2^29 on Metal");
    check::ensure(counts.iter().all(|&count| count <= MOST), NAME, message)
}

/// A kernel that writes `height · width` pixels of each plane. `l` is the layout of x, where the kernel reads it.
fn run(
    g: &Geometry,
    kernel: &str,
    (x, l): Arg,
    inputs: &[Operand],
    [height, width]: [usize; 2],
) -> Result<MetalStorage> {
    build(x, g.planes() * height * width, |out| {
        let params = Params::new(g, l)?;
        let kernel = format!("{NAME}_{kernel}_{}", dtype_name(x.dtype(), NAME)?);
        let launch = Launch::new(x.device(), &sources::POOL2D, &kernel)?;
        let launch = inputs.iter().fold(launch, Launch::input);
        let pixels = grid::elementwise_rows(g.planes(), height * width, 1);
        launch.output(out).params(&params).run(pixels)
    })
}

pub fn forward(kind: Kind, g: &Geometry, (x, l): Arg) -> OpResult {
    let kernel = match kind {
        Kind::Max => "fwd_max",
        Kind::Avg => "fwd_avg",
    };
    let y = run(g, kernel, (x, l), &[Operand::strided(x, l)], g.output)?;
    Ok((y, g.y_shape()))
}

pub fn max_backward(g: &Geometry, args: Args) -> OpResult {
    let ((x, xl), (y, yl), (grad, gl)) = (args[0], args[1], args[2]);
    let inputs = [
        Operand::strided(x, xl),
        Operand::contiguous(y, yl)?,
        Operand::contiguous(grad, gl)?,
    ];
    let dx = run(g, "bwd_max", (x, xl), &inputs, g.input)?;
    Ok((dx, g.x_shape()))
}

/// The kernel reads no x.
pub fn avg_backward(g: &Geometry, (grad, l): Arg) -> OpResult {
    let inputs = [Operand::contiguous(grad, l)?];
    let dx = run(g, "bwd_avg", (grad, l), &inputs, g.input)?;
    Ok((dx, g.x_shape()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "pool2d" Pool2dParams {
        x, channels, windows.input, windows.kernel = "kernel_size", windows.output, windows.stride, windows.padding,
        include_pad
    }
}
