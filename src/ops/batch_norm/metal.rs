//! Launches of kernels/batch_norm.metal.

use super::train::Measured;
use super::{Extent, Given, NAME};
use crate::check;
use crate::metal::elementwise::dense;
use crate::metal::grid::{self, Grid};
use crate::metal::sources::BATCH_NORM;
use crate::metal::{
    aligned4, alloc, build, build_like, dtype_name, finish, row_grid, Launch, Operand,
};
use crate::op::on_metal::{Args, OpResult, OpResults};
use crate::ops::row_norm::metal::with_vectors;
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    rows: u32,
    cols: u32,
    channels: u32,
    spatial: u32,
    count: u32,
    parts: u32,
    part: u32,
    eps: f32,
    aligned: u32,
}

/// A tensor with channels.
struct Channels<'a> {
    x: &'a MetalStorage,
    extent: Extent,
    eps: f32,
    /// Into how many parts the elements of a channel are cut to sum them up, and how long a part is.
    parts: usize,
    part: usize,
}

impl<'a> Channels<'a> {
    fn new(x: &'a MetalStorage, l: &Layout, eps: f32) -> Result<Self> {
        let extent = Extent::of(l);
        let largest = extent.of_item().max(extent.of_channel());
        // A sum's last steps may count beyond the end.
        if largest.max(extent.batch) > (u32::MAX - 8192) as usize {
            let message = format!("got x of shape {:?}, expected 32-bit sizes", l.shape());
            return Err(check::error(NAME, message));
        }
        let (parts, part) = match extent.count() {
            0 => (1, 4),
            _ => grid::row_parts(extent.channels, extent.of_channel()),
        };
        Ok(Channels {
            x,
            extent,
            eps,
            parts,
            part,
        })
    }

    fn launch(&self, kernel: &str) -> Result<Launch<'a>> {
        let dtype = dtype_name(self.x.dtype(), NAME)?;
        self.launch_f32(&format!("{kernel}_{dtype}"))
    }

    /// Of a kernel that reads no x.
    fn launch_f32(&self, kernel: &str) -> Result<Launch<'a>> {
        Launch::new(
            self.x.device(),
            &BATCH_NORM,
            &format!("batch_norm_{kernel}"),
        )
    }

    /// `stride`: between the starts of what is read four elements at a time.
    fn params(&self, stride: usize, operands: &[&Operand]) -> Params {
        let e = self.extent;
        Params {
            rows: e.batch as u32,
            cols: e.of_item() as u32,
            channels: e.channels as u32,
            spatial: e.spatial as u32,
            count: e.of_channel() as u32,
            parts: self.parts as u32,
            part: self.part as u32,
            eps: self.eps,
            aligned: u32::from(stride.is_multiple_of(4)) & aligned4(operands),
        }
    }

    /// For kernels that go through the items of the batch.
    fn by_item(&self, operands: &[&Operand]) -> (Params, Grid) {
        let (items, item) = (self.extent.batch, self.extent.of_item());
        let grid = grid::elementwise_rows(items, item, 4);
        (self.params(item, operands), grid)
    }

    /// For kernels that sum over the parts of channels.
    fn by_part(&self, operands: &[&Operand]) -> (Params, Grid) {
        let rows = self.extent.channels * self.parts;
        let grid = grid::row_per_threadgroup(rows, self.part, 4);
        (self.params(self.extent.spatial, operands), grid)
    }

    /// `each` numbers in f32 for each channel, which launches will write; where channels have no elements, all of them are
    /// `without_elements`.
    fn numbers(&self, each: usize, without_elements: f32) -> Result<MetalStorage> {
        let (device, n) = (self.x.device(), each * self.extent.channels);
        if self.extent.count() > 0 || n == 0 {
            return Ok(finish(alloc(device, n, DType::F32)?, device, n, DType::F32));
        }
        device.storage_from_cpu_storage(&CpuStorage::F32(vec![without_elements; n]))
    }
}

/// By a mean and a variance that are given.
pub fn forward(op: Given, args: Args) -> OpResult {
    let (x, l) = args[0];
    let channels = Channels::new(x, l, op.eps)?;
    build_like((x, l), |out| {
        let (xs, statistics) = (
            Operand::contiguous(x, l)?,
            dense(args[1..3].iter().copied())?,
        );
        let vectors = dense(args[3..].iter().copied())?;
        let (params, grid) = channels.by_item(&[&xs]);
        let launch = channels.launch(&format!("fwd_given_{}", vectors.len()))?;
        let launch = launch
            .input(&xs)
            .input(&statistics[0])
            .input(&statistics[1]);
        let launch = with_vectors(launch, &vectors, &xs).output(out);
        launch.params(&params).run(grid)
    })
}

/// By the statistics of the batch: y, the means, the variances, the moments.
pub fn train(op: Measured, args: Args) -> OpResults {
    let (x, l) = args[0];
    let channels = Channels::new(x, l, op.eps)?;
    let count = channels.extent.channels;
    let [mean, var] = [
        channels.numbers(1, f32::NAN)?,
        channels.numbers(1, f32::NAN)?,
    ];
    let moments = channels.numbers(3, f32::NAN)?;
    let out = build(x, channels.extent.count(), |out| {
        let (xs, vectors) = (
            Operand::contiguous(x, l)?,
            dense(args[1..].iter().copied())?,
        );
        let sums = alloc(x.device(), 3 * count * channels.parts, DType::F32)?;
        let (params, grid) = channels.by_part(&[&xs]);
        channels
            .launch("stats_parts")?
            .input(&xs)
            .output(&sums)
            .params(&params)
            .run(grid)?;
        channels
            .launch_f32("stats_total")?
            .input_buffer(&sums)
            .output(mean.buffer())
            .output(var.buffer())
            .output(moments.buffer())
            .params(&params)
            .run(row_grid([count, 1]).1)?;
        let (params, grid) = channels.by_item(&[&xs]);
        let launch = channels.launch(&format!("fwd_measured_{}", vectors.len()))?;
        let launch = launch.input(&xs).input_buffer(moments.buffer());
        let launch = with_vectors(launch, &vectors, &xs).output(out);
        launch.params(&params).run(grid)
    })?;
    Ok(vec![
        (out, l.shape().clone()),
        (mean, count.into()),
        (var, count.into()),
        (moments, (3, count).into()),
    ])
}

/// Of `(x, grad_out, moments[, weight[, grad_statistics]])`.
pub fn gradients(args: Args) -> OpResults {
    let ((x, xl), (g, gl)) = (args[0], args[1]);
    let channels = Channels::new(x, xl, 0.0)?;
    let (count, device) = (channels.extent.channels, x.device());
    let sums = channels.numbers(2, 0.0)?;
    let dx_shape = match args.len() {
        ..=3 => 0.into(),
        _ => xl.shape().clone(),
    };
    let dx = alloc(device, dx_shape.elem_count(), x.dtype())?;
    if channels.extent.count() > 0 {
        let (xs, gs) = (Operand::contiguous(x, xl)?, Operand::contiguous(g, gl)?);
        let rest = dense(args[2..].iter().copied())?;
        let parts = alloc(device, 2 * count * channels.parts, DType::F32)?;
        let (params, grid) = channels.by_part(&[&xs, &gs]);
        channels
            .launch("bwd_parts")?
            .input(&xs)
            .input(&gs)
            .input(&rest[0])
            .output(&parts)
            .params(&params)
            .run(grid)?;
        channels
            .launch_f32("bwd_total")?
            .input_buffer(&parts)
            .output(sums.buffer())
            .params(&params)
            .run(grid::elementwise(count, 1))?;
        if let Some(weight) = rest.get(1) {
            let (params, grid) = channels.by_item(&[&xs, &gs]);
            channels
                .launch(&format!("bwd_x_{}", rest.len() - 2))?
                .input(&xs)
                .input(&gs)
                .input(&rest[0])
                .input(weight)
                .input_buffer(sums.buffer())
                .input_or(rest.get(2), &rest[0])
                .output(&dx)
                .params(&params)
                .run(grid)?;
        }
    }
    let n = dx_shape.elem_count();
    Ok(vec![
        (finish(dx, device, n, x.dtype()), dx_shape),
        (sums, (2, count).into()),
    ])
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "batch_norm" BatchNormParams { rows, cols, channels, spatial, count, parts, part, eps, aligned }
}
