//! The compositions of stock ops that poolings equal: the specification, the tests' oracle, and what runs on a device or dtype
//! without a kernel.

use super::geometry::Geometry;
use super::{Kind, Pool2dParams, NAME};
use crate::ops::widen::widened;
use candle_core::{DType, Device, Result, Tensor, D};

/// Stock's pooling where it has these params and no gradient is needed; else the reference.
pub(super) fn fallback(x: &Tensor, kind: Kind, params: Pool2dParams) -> Result<Tensor> {
    let Pool2dParams {
        kernel: [height, width],
        stride: [down, along],
        padding,
        ..
    } = params;
    let wide = matches!(x.dtype(), DType::F32 | DType::F64);
    let (kernel, stride) = ((height, width), (down, along));
    match kind {
        _ if padding != [0; 2] || x.track_op() || !wide => {}
        Kind::Max => return x.max_pool2d_with_stride(kernel, stride),
        Kind::Avg => return x.avg_pool2d_with_stride(kernel, stride),
    }
    match kind {
        Kind::Max => reference_max(x, params),
        Kind::Avg => reference_avg(x, params),
    }
}

/// What [`max_pool2d`](super::max_pool2d) equals. Where a window reaches over the border, its pixel nearest to the place there
/// stands in: that changes neither the maximum nor which pixel is the first one.
pub fn reference_max(x: &Tensor, params: Pool2dParams) -> Result<Tensor> {
    let g = Geometry::new(NAME, x.dims(), params)?;
    let x = x.contiguous()?;
    let taps = taps(&g).map(|[i, j]| {
        let rows = x.index_select(&places(&g, 0, i, x.device())?, 2)?;
        rows.index_select(&places(&g, 1, j, x.device())?, 3)
    });
    let windows = Tensor::stack(&taps.collect::<Result<Vec<_>>>()?, 4)?.contiguous()?;
    let first = windows.detach().argmax_keepdim(D::Minus1)?;
    windows.gather(&first.contiguous()?, D::Minus1)?.squeeze(4)
}

/// What [`avg_pool2d`](super::avg_pool2d) equals.
pub fn reference_avg(x: &Tensor, params: Pool2dParams) -> Result<Tensor> {
    let g = Geometry::new(NAME, x.dims(), params)?;
    let (wide, [above, left]) = (widened(x)?, g.windows.padding);
    let padded = wide.pad_with_zeros(2, above, above)?;
    let padded = padded.pad_with_zeros(3, left, left)?.contiguous()?;
    let mut sum: Option<Tensor> = None;
    for [i, j] in taps(&g) {
        let rows = padded.index_select(&padded_places(&g, 0, i, x.device())?, 2)?;
        let tap = rows.index_select(&padded_places(&g, 1, j, x.device())?, 3)?;
        sum = Some(match sum {
            Some(sum) => (sum + tap)?,
            None => tap,
        });
    }
    let Some(sum) = sum else {
        return wide.zeros_like();
    };
    let count = |dim: usize, o: usize| match params.count_include_pad {
        true => g.windows.kernel[dim],
        false => g.window(dim, o).len(),
    };
    let [height, width] = g.output;
    let factors: Vec<f64> = (0..height * width)
        .map(|o| 1.0 / (count(0, o / width) * count(1, o % width)) as f64)
        .collect();
    // Metal has no f64.
    let factors = Tensor::from_vec(factors, (height, width), &Device::Cpu)?;
    let factors = factors.to_dtype(sum.dtype())?.to_device(x.device())?;
    sum.broadcast_mul(&factors)?.to_dtype(x.dtype())
}

/// The places of a window in row-major order.
fn taps(g: &Geometry) -> impl Iterator<Item = [usize; 2]> {
    let [height, width] = g.windows.kernel;
    (0..height * width).map(move |tap| [tap / width, tap % width])
}

/// The rows (`dim` 0) or columns of the padded x that a place of the windows lies in, in order.
fn padded_places(g: &Geometry, dim: usize, tap: usize, device: &Device) -> Result<Tensor> {
    let place = |o: usize| (o * g.windows.stride[dim] + tap) as i64;
    Tensor::new((0..g.output[dim]).map(place).collect::<Vec<_>>(), device)
}

/// The same of x, or the nearest.
fn places(g: &Geometry, dim: usize, tap: usize, device: &Device) -> Result<Tensor> {
    let place = |o: usize| {
        let place = (o * g.windows.stride[dim] + tap).saturating_sub(g.windows.padding[dim]);
        place.min(g.input[dim] - 1) as i64
    };
    Tensor::new((0..g.output[dim]).map(place).collect::<Vec<_>>(), device)
}
