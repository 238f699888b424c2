//! Launches of kernels/upsample.metal, which reads x with any strides. The tables are made here: Metal has no f64.

use super::axis::{Axis, Tap};
use super::{Upsample, NAME};
use crate::check;
use crate::metal::{
    build, dtype_name, grid, image_strides, pair, sources, upload, Launch, Operand,
};
use crate::op::on_metal::Arg;
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{Layout, MetalStorage, Result, Shape};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: [u64; 4],
    channels: u32,
    input: [u32; 2],
    output: [u32; 2],
    reserved: u32,
}

impl Params {
    /// Of an x of these dims, and of the layout that is read.
    fn new(op: &Upsample, x: &[usize], l: &Layout) -> Result<Self> {
        const MOST: usize = 1 << 29;
        let ([height, width], [to_height, to_width]) = ([x[2], x[3]], op.size);
        // No overflow: the result has elements, as many as memory can hold.
        let counts = [x[0] * x[1], height * width, to_height * to_width];
        let message = format_args!(
            "got x of shape {x:?} and size {:?}, expected up to 2^29 planes and pixels on Metal",
            op.size
        );
        check::ensure(counts.iter().all(|&count| count <= MOST), NAME, message)?;
        Ok(Params {
            x: image_strides(l),
            channels: x[1] as u32,
            input: pair([height, width]),
            output: pair(op.size),
            reserved: 0,
        })
    }
}

fn taps(axes: &[Axis; 2]) -> Vec<Tap> {
    [&axes[0].taps[..], &axes[1].taps].concat()
}

pub fn forward(op: &Upsample, (x, l): Arg) -> Result<MetalStorage> {
    let (dims, [height, width]) = (l.dims(), op.size);
    let planes = dims[0] * dims[1];
    build(x, planes * height * width, |y| {
        let params = Params::new(op, dims, l)?;
        let kind = match op.is_nearest(dims) {
            true => "nearest",
            false => "bilinear",
        };
        let taps = upload(x.device(), &taps(&op.axes(dims)))?;
        let kernel = format!("{NAME}_fwd_{kind}_{}", dtype_name(x.dtype(), NAME)?);
        Launch::new(x.device(), &sources::UPSAMPLE, &kernel)?
            .input(&Operand::strided(x, l))
            .input_buffer(&taps)
            .output(y)
            .params(&params)
            .run(grid::elementwise_rows(planes, height * width, 1))
    })
}

/// The gradient of an x of these dims.
pub fn backward(op: &Upsample, x: &[usize], (grad, l): Arg) -> Result<MetalStorage> {
    if l.shape().elem_count() == 0 {
        let shape = Shape::from(x.iter().product::<usize>());
        return grad.device().zeros_impl(&shape, grad.dtype());
    }
    let planes = x[0] * x[1];
    build(grad, planes * x[2] * x[3], |dx| {
        let params = Params::new(op, x, l)?;
        let axes = op.axes(x);
        let parts: Vec<[u32; 2]> = axes
            .iter()
            .flat_map(Axis::outputs)
            .map(|outputs| [outputs.start as u32, outputs.end as u32])
            .collect();
        let (taps, parts) = (
            upload(grad.device(), &taps(&axes))?,
            upload(grad.device(), &parts)?,
        );
        let kernel = format!("{NAME}_bwd_{}", dtype_name(grad.dtype(), NAME)?);
        Launch::new(grad.device(), &sources::UPSAMPLE, &kernel)?
            .input(&Operand::contiguous(grad, l)?)
            .input_buffer(&taps)
            .input_buffer(&parts)
            .output(dx)
            .params(&params)
            .run(grid::elementwise_rows(planes, x[2] * x[3], 1))
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "upsample" UpsampleParams { x, channels, input, output, reserved }
    Tap => "upsample" Tap { low, high, low_weight, high_weight }
}
