//! Launches of kernels/group_norm.metal.

use super::{Extent, GroupNorm, NAME};
use crate::check;
use crate::metal::{aligned4, alloc, dtype_name, finish, grid, sources, InPlace, Launch, Operand};
use crate::ops::affine_norm::{Arg, Vectors};
use crate::ops::row_norm::metal::operands;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result, Shape};

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

pub fn forward(
    norm: GroupNorm,
    (x, l): Arg<MetalStorage>,
    vectors: Vectors<MetalStorage>,
) -> Result<(MetalStorage, Shape)> {
    let groups = Groups::new(norm, x, l)?;
    let n = groups.extent.count();
    let out = alloc(x.device(), n, x.dtype())?;
    if n > 0 {
        let xs = Operand::contiguous(x, l)?;
        let (vectors, count) = operands(vectors)?;
        let [weight, bias] = [0, 1].map(|i| vectors.get(i).unwrap_or(&xs));
        groups
            .launch(&format!("fwd_{count}"))?
            .input(&xs)
            .input(weight)
            .input(bias)
            .output(&out)
            .params(&groups.params(groups.extent.cols(), &[&xs]))
            .run(groups.grid())?;
    }
    Ok((finish(out, x.device(), n, x.dtype()), l.shape().clone()))
}

pub fn forward_inplace(
    norm: GroupNorm,
    (x, l): Arg<MetalStorage>,
    vectors: Vectors<MetalStorage>,
) -> Result<()> {
    let groups = Groups::new(norm, x, l)?;
    if groups.extent.count() == 0 {
        return Ok(());
    }
    let target = InPlace::new(x, l)?;
    let xs = target.operand();
    let (vectors, count) = operands(vectors)?;
    let [weight, bias] = [0, 1].map(|i| vectors.get(i).unwrap_or(xs));
    groups
        .launch(&format!("inplace_{count}"))?
        .inout(xs)
        .input(weight)
        .input(bias)
        .params(&groups.params(groups.extent.cols(), &[xs]))
        .run(groups.grid())?;
    target.commit()
}

/// `[dx, dweight, dbias]`, of the vectors' gradients the first `vectors`.
pub fn backward(
    norm: GroupNorm,
    (x, xl): Arg<MetalStorage>,
    (g, gl): Arg<MetalStorage>,
    weight: Option<Arg<MetalStorage>>,
    vectors: usize,
) -> Result<(MetalStorage, Shape)> {
    let groups = Groups::new(norm, x, xl)?;
    let (device, dtype, extent) = (x.device(), x.dtype(), groups.extent);
    let (count, wanted) = (extent.count(), vectors * extent.channels);
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
        let (weights, has_weight) = operands([weight, None])?;
        groups
            .launch(&format!("bwd_x_{has_weight}"))?
            .input(&xs)
            .input(&gs)
            .input(weights.first().unwrap_or(&xs))
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
