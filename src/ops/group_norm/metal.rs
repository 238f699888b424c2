//! Launches of kernels/group_norm.metal.

use super::{Extent, GroupNorm, NAME};
use crate::check;
use crate::metal::elementwise::dense;
use crate::metal::{
    aligned4, alloc, build_like, dtype_name, finish, grid, sources, update, Launch, Operand,
};
use crate::op::on_metal::{ArgMut, Args, OpResult};
use crate::ops::affine_norm::AffineBwd;
use crate::ops::row_norm::metal::with_vectors;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    rows: u32,
    cols: u32,
    channels: u32,
    spatial: u32,
    groups: u32,
    eps: f32,
    aligned: u32,
}

/// A tensor cut into groups.
struct Groups<'a> {
    norm: GroupNorm,
    x: &'a MetalStorage,
    extent: Extent,
}

impl<'a> Groups<'a> {
    fn new(norm: GroupNorm, x: &'a MetalStorage, l: &Layout) -> Result<Self> {
        let extent = norm.extent(l);
        let largest = extent.cols().max(extent.batch * extent.channels);
        if largest > u32::MAX as usize {
            let message = format!("shape {:?} given, 32-bit sizes accepted", l.shape());
            return Err(check::error(NAME, message));
        }
        Ok(Groups { norm, x, extent })
    }

    fn launch(&self, kernel: &str) -> Result<Launch<'a>> {
        let dtype = dtype_name(self.x.dtype(), NAME)?;
        let kernel = format!("group_norm_{kernel}_{dtype}");
        Launch::new(self.x.device(), &sources::GROUP_NORM, &kernel)
    }

    /// `stride`: between the starts of what is read four elements at a time.
    fn params(&self, stride: usize, operands: &[&Operand]) -> Params {
        let e = self.extent;
        Params {
            rows: e.rows() as u32,
            cols: e.cols() as u32,
            channels: e.channels as u32,
            spatial: e.spatial as u32,
            groups: e.groups as u32,
            eps: self.norm.eps,
            aligned: u32::from(stride.is_multiple_of(4)) & aligned4(operands),
        }
    }

    fn grid(&self) -> grid::Grid {
        grid::row_per_threadgroup(self.extent.rows(), self.extent.cols(), 4)
    }
}

pub fn forward(norm: GroupNorm, args: Args) -> OpResult {
    let (x, l) = args[0];
    let groups = Groups::new(norm, x, l)?;
    build_like((x, l), |out| {
        let (xs, vectors) = (
            Operand::contiguous(x, l)?,
            dense(args[1..].iter().copied())?,
        );
        let launch = groups.launch(&format!("fwd_{}", vectors.len()))?.input(&xs);
        let params = groups.params(groups.extent.cols(), &[&xs]);
        let launch = with_vectors(launch, &vectors, &xs).output(out);
        launch.params(&params).run(groups.grid())
    })
}

pub fn inplace(norm: GroupNorm, (x, l): ArgMut, vectors: Args) -> Result<()> {
    update((x, l), |x, xs| {
        let (groups, vectors) = (Groups::new(norm, x, l)?, dense(vectors.iter().copied())?);
        let launch = groups.launch(&format!("inplace_{}", vectors.len()))?;
        let params = groups.params(groups.extent.cols(), &[xs]);
        let launch = with_vectors(launch.inout(xs), &vectors, xs);
        launch.params(&params).run(groups.grid())
    })
}

/// `[dx, dweight, dbias]`, of the vectors' gradients the first `vectors`.
pub fn backward(op: &AffineBwd<GroupNorm>, args: Args) -> OpResult {
    let ((x, xl), (g, gl)) = (args[0], args[1]);
    let groups = Groups::new(op.norm, x, xl)?;
    let (device, dtype, extent) = (x.device(), x.dtype(), groups.extent);
    let (count, wanted) = (extent.count(), op.vectors * extent.channels);
    let n = count + wanted;
    let out = alloc(device, n, dtype)?;
    let channels = extent.batch * extent.channels;
    let sums = alloc(device, 2 * channels.max(1), DType::F32)?;
    if count > 0 {
        let (xs, gs) = (Operand::contiguous(x, xl)?, Operand::contiguous(g, gl)?);
        let stats = alloc(device, 3 * extent.rows(), DType::F32)?;
        let by_row = groups.params(extent.cols(), &[&xs, &gs]);
        groups
            .launch("bwd_stats")?
            .input(&xs)
            .output(&stats)
            .params(&by_row)
            .run(groups.grid())?;
        groups
            .launch("bwd_sums")?
            .input(&xs)
            .input(&gs)
            .input_buffer(&stats)
            .output(&sums)
            .params(&groups.params(extent.spatial, &[&xs, &gs]))
            .run(grid::row_per_threadgroup(channels, extent.spatial, 4))?;
        let weight = dense(args.get(2).copied())?;
        groups
            .launch(&format!("bwd_x_{}", weight.len()))?
            .input(&xs)
            .input(&gs)
            .input_or(weight.first(), &xs)
            .input_buffer(&stats)
            .input_buffer(&sums)
            .output(&out)
            .params(&by_row)
            .run(groups.grid())?;
    }
    if wanted > 0 {
        // Without elements there are no sums to add up.
        let batch = if count > 0 { extent.batch } else { 0 };
        groups
            .launch("bwd_weight")?
            .input_buffer(&sums)
            .output_at(&out, count * dtype.size_in_bytes())
            .params(&Params {
                rows: batch as u32,
                cols: wanted as u32,
                ..groups.params(1, &[])
            })
            .run(grid::elementwise(wanted, 1))?;
    }
    Ok((finish(out, device, n, dtype), n.into()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "group_norm" GroupNormParams { rows, cols, channels, spatial, groups, eps, aligned }
}
