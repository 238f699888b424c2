//! Layers with packed weights: against plain Candle, against the numbers and files of the packages whose formats they read,
//! and what they refuse.

mod corrupt;
mod gguf;
mod hf;
mod layers;
mod lora;
mod mlx;
mod save_load;
mod training;

pub use crate::lora::{assert_close, assert_refused, assert_same, values, TempDir};

use crate::cases::Fill;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::quantized::{SubNorm, Tensors};
use candle_fused::nn::PackedBitLinear;
use candle_fused::ops::quantize;
use candle_fused::quant::{Quantized, Scheme};
use std::path::PathBuf;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// For some roundings to the dtype on the way to a sum.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 1.5e-2,
    }
}

fn signal(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    Fill::Signal.tensor(dims, seed, dtype, device)
}

/// ‖got − want‖ ≤ bound · ‖want‖
fn assert_near(got: &Tensor, want: &Tensor, bound: f64, what: &str) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (values(got)?, values(want)?);
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut got.iter().zip(&want).map(|(a, b)| a - b));
    let size = norm(&mut want.iter().copied());
    assert!(error <= bound * size, "{what}: {error} of {size}");
    Ok(())
}

fn path(name: &str) -> PathBuf {
    crate::fixtures::fixture("quant").join(name)
}

fn fixture(name: &str, device: &Device) -> Result<Tensors> {
    candle_core::safetensors::load(path(name), device)
}

/// A layer of this scheme, with everything that it can have.
fn bit_layer(
    dims: (usize, usize),
    scheme: Scheme,
    dtype: DType,
    device: &Device,
) -> Result<PackedBitLinear> {
    let weight = quantize(&signal(&[dims.0, dims.1], 1, dtype, device)?, scheme)?;
    let bias = signal(&[dims.0], 2, dtype, device)?;
    let norm = Fill::Weight.tensor(&[dims.1], 3, dtype, device)?;
    PackedBitLinear::new(weight, Some(bias), Some(SubNorm::with_weight(norm, 1e-6)))
}

/// The same bits in all parts.
fn assert_same_weight(got: &Quantized, want: &Quantized, what: &str) -> Result<()> {
    assert_eq!(got.scheme(), want.scheme(), "{what}");
    assert_eq!(got.shape(), want.shape(), "{what}");
    let bytes = |q: &Quantized| q.codes().flatten_all()?.to_vec1::<u8>();
    assert_eq!(bytes(got)?, bytes(want)?, "{what}");
    let bits = |t: Option<&Tensor>| -> Result<Option<Vec<u32>>> {
        let Some(t) = t else { return Ok(None) };
        let values = t.flatten_all()?.to_vec1::<f32>()?;
        Ok(Some(values.into_iter().map(f32::to_bits).collect()))
    };
    assert_eq!(
        bits(Some(got.scales()))?,
        bits(Some(want.scales()))?,
        "{what}"
    );
    assert_eq!(bits(got.offsets())?, bits(want.offsets())?, "{what}");
    Ok(())
}
