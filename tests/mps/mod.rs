//! Metal Performance Shaders. Everything runs where there is a Metal device, and is judged by the CPU in f64.

mod chain;
mod gradients;
mod ops;
mod place;
mod sessions;
mod steps;

use crate::cases::Fill;
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::metal::device_info;

fn metal() -> impl Iterator<Item = &'static Device> {
    devices().iter().filter(|device| device.is_metal())
}

/// Where it is known what comes of undefined work and of specials.
fn softmetal() -> impl Iterator<Item = &'static Device> {
    let is = |device: &&Device| device_info(device).is_ok_and(|info| info.name == "softmetal");
    metal().filter(is)
}

fn signal(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    Fill::Signal.tensor(dims, seed, dtype, device)
}

/// The values in f64 on the CPU, every element in its place.
fn exact(x: &Tensor) -> Result<Tensor> {
    let x = x.to_device(&Device::Cpu)?;
    x.to_dtype(DType::F64)?.contiguous()
}

/// The largest difference, of results about 1 or else as a part of the largest.
fn error(got: &Tensor, want: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), want.dims());
    if got.elem_count() == 0 {
        return Ok(0.0);
    }
    let largest = |x: &Tensor| x.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>();
    let (got, want) = (exact(got)?, exact(want)?);
    Ok(largest(&(got - &want)?)? / largest(&want)?.max(1.0))
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-5,
        _ => 2e-3,
    }
}
