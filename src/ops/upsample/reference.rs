//! The compositions of stock ops that resizing equals: the specification, the tests' oracle, and what runs on a device or dtype
//! without a kernel.

use super::axis::{Axis, Tap};
use super::{Mode, Upsample};
use crate::ops::widen::widened;
use candle_core::{Result, Tensor};

/// What an op equals.
pub(super) fn of(op: &Upsample, x: &Tensor) -> Result<Tensor> {
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
    let weighted = |at: fn(&Tap) -> u32, weight: fn(&Tap) -> f32| {
        let weights: Vec<f32> = axis.taps.iter().map(weight).collect();
        let mut dims = [1; 4];
        dims[dim] = weights.len();
        let weights = Tensor::from_vec(weights, &dims, x.device())?.to_dtype(x.dtype())?;
        select(x, axis, dim, at)?.broadcast_mul(&weights)
    };
    weighted(|tap| tap.low, |tap| tap.low_weight)?
        + weighted(|tap| tap.high, |tap| tap.high_weight)?
}

/// `index_select` takes contiguous tensors only.
fn select(x: &Tensor, axis: &Axis, dim: usize, at: fn(&Tap) -> u32) -> Result<Tensor> {
    let indices: Vec<u32> = axis.taps.iter().map(at).collect();
    let indices = Tensor::new(indices, x.device())?;
    x.contiguous()?.index_select(&indices, dim)
}
