//! The compositions of stock ops that resizing equals: the specification, the tests' oracle, and what runs on a device or dtype
//! without a kernel.

use super::axis::{Axis, Tap};
use super::{Mode, Upsample};
use crate::ops::widen::widened;
use candle_core::{DType, Device, Result, Tensor};

/// Stock's op where no gradient is needed; else the reference.
pub(super) fn fallback(op: &Upsample, x: &Tensor) -> Result<Tensor> {
    let [height, width] = op.size;
    let wide = matches!(x.dtype(), DType::F32 | DType::F64);
    if x.track_op() || !wide || x.elem_count() * height * width == 0 {
        return of(op, x);
    }
    match op.mode {
        Mode::Nearest => x.upsample_nearest2d(height, width),
        Mode::Bilinear {
            align_corners,
            scale: None,
        } => x.upsample_bilinear2d(height, width, align_corners),
        // Stock takes the size from the factors, as our function does; a struct may have others.
        Mode::Bilinear { .. } => of(op, x),
    }
}

/// What an op equals.
fn of(op: &Upsample, x: &Tensor) -> Result<Tensor> {
    if x.dims()[..2].contains(&0) {
        // Tables would be as long as a size that nothing else has limited.
        return Tensor::zeros(op.y_shape(x.shape()), x.dtype(), x.device());
    }
    let [rows, columns] = op.axes(x.dims());
    match op.is_nearest(x.dims()) {
        true => nearest(x, &rows, &columns),
        false => bilinear(x, &rows, &columns),
    }
}

/// What [`upsample_nearest2d`](super::upsample_nearest2d) equals.
pub fn reference_nearest(x: &Tensor, size: [usize; 2]) -> Result<Tensor> {
    let mode = Mode::Nearest;
    of(&Upsample { size, mode }, x)
}

/// What [`upsample_bilinear2d`](super::upsample_bilinear2d) equals.
pub fn reference_bilinear(
    x: &Tensor,
    size: [usize; 2],
    align_corners: bool,
    scale: Option<[f64; 2]>,
) -> Result<Tensor> {
    let mode = Mode::Bilinear {
        align_corners,
        scale,
    };
    of(&Upsample { size, mode }, x)
}

fn nearest(x: &Tensor, rows: &Axis, columns: &Axis) -> Result<Tensor> {
    let x = select(x, rows, 2, |tap| tap.low)?;
    select(&x, columns, 3, |tap| tap.low)
}

fn bilinear(x: &Tensor, rows: &Axis, columns: &Axis) -> Result<Tensor> {
    let along = between(&widened(x)?, columns, 3)?;
    between(&along, rows, 2)?.to_dtype(x.dtype())
}

/// The weighted sums of two rows (or columns) each.
fn between(x: &Tensor, axis: &Axis, dim: usize) -> Result<Tensor> {
    let weighted = |at: fn(&Tap) -> u32, weight: fn(f64) -> f64| {
        let weights: Vec<f64> = axis.high_weights.iter().map(|&high| weight(high)).collect();
        let mut dims = [1; 4];
        dims[dim] = weights.len();
        // Metal has no f64.
        let weights = Tensor::from_vec(weights, &dims, &Device::Cpu)?.to_dtype(x.dtype())?;
        select(x, axis, dim, at)?.broadcast_mul(&weights.to_device(x.device())?)
    };
    weighted(|tap| tap.low, |high| 1.0 - high)? + weighted(|tap| tap.high, |high| high)?
}

/// `index_select` takes contiguous tensors only.
fn select(x: &Tensor, axis: &Axis, dim: usize, at: fn(&Tap) -> u32) -> Result<Tensor> {
    let indices: Vec<u32> = axis.taps.iter().map(at).collect();
    let indices = Tensor::new(indices, x.device())?;
    x.contiguous()?.index_select(&indices, dim)
}
