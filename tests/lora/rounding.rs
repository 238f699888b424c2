//! One rounding beside every base, and ranks that no tile holds at once.

use crate::cases::Fill;
use crate::devices::devices;
use crate::tensors::error;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::lora_gather;
use candle_fused::ops::quantize;
use candle_fused::ops::{lora, lora_trained, lora_with, Adapter, FrozenWeight};
use candle_fused::quant::{ScaleScope, Scheme};
use std::sync::Arc;

const COLS: usize = 4096;

fn full(value: f32, dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::full(value, dims, device)?.to_dtype(dtype)
}

/// u = x·Aᵀ is 131072, which f16 doesn't have; with B it is 131. Few rows and many take different kernels.
#[test]
fn what_f16_can_not_hold_on_the_way_does_no_harm() -> Result<()> {
    for device in devices() {
        for rows in [1, 3, 40] {
            for (dtype, want) in [(DType::F16, 131.125), (DType::BF16, 131.)] {
                let of = |value, dims: &[usize]| full(value, dims, dtype, device);
                let x = of(32., &[rows, COLS])?;
                let (a, b) = (of(1., &[1, COLS])?, of(1e-3, &[8, 1])?);
                let adapter = Adapter {
                    a: &a,
                    b: &b,
                    scale: 1.,
                    dropout: None,
                };
                let zeros = Tensor::zeros((8, COLS), DType::F32, device)?;
                let w = zeros.to_dtype(dtype)?;
                let gguf = Arc::new(QTensor::quantize_onto(
                    &zeros.to_device(&Device::Cpu)?,
                    GgmlDType::Q8_0,
                    device,
                )?);
                let packed = quantize(&zeros, Scheme::mlx(4, 64))?;
                let ternary = quantize(&zeros, Scheme::ternary(ScaleScope::Row))?;
                let (scales, of_row) = (
                    Tensor::new(&[1f32], &Device::Cpu)?,
                    Tensor::zeros(rows, DType::U32, &Device::Cpu)?,
                );
                let (a3, b3) = (a.unsqueeze(0)?, b.unsqueeze(0)?);
                let results = [
                    ("lora", lora(&x, &w, None, &a, &b, 1.)?),
                    ("trained", lora_trained(&x, &w, None, adapter)?),
                    (
                        "gguf",
                        lora_with(&x, &FrozenWeight::Gguf(gguf), None, adapter)?,
                    ),
                    (
                        "packed",
                        lora_with(&x, &FrozenWeight::Packed(packed), None, adapter)?,
                    ),
                    (
                        "bitnet",
                        lora_with(&x, &FrozenWeight::BitNet(ternary), None, adapter)?,
                    ),
                    (
                        "gather",
                        lora_gather(&x, &w, None, &a3, &b3, &scales, &of_row)?,
                    ),
                ];
                for (name, y) in results {
                    let y = y.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
                    let what = format!("{name}, {dtype:?}, {rows} rows");
                    assert!(y.iter().all(|&y| y == want), "{what}: {y:?}");
                }
            }
        }
    }
    Ok(())
}

/// A base beyond f16 whose sum with the adapter is not.
#[test]
fn the_base_is_added_before_it_is_rounded() -> Result<()> {
    for device in devices() {
        for rows in [1, 3, 40] {
            let of = |value, dims: &[usize]| full(value, dims, DType::F16, device);
            let (x, w) = (of(16., &[rows, COLS])?, of(2., &[8, COLS])?);
            let (a, b) = (of(16., &[1, COLS])?, of(-1., &[8, 1])?);
            // 131072 - 1048576 / 8
            let scales = Tensor::new(&[0.125f32], &Device::Cpu)?;
            let of_row = Tensor::zeros(rows, DType::U32, &Device::Cpu)?;
            let (a3, b3) = (a.unsqueeze(0)?, b.unsqueeze(0)?);
            let results = [
                ("lora", lora(&x, &w, None, &a, &b, 0.125)?),
                (
                    "gather",
                    lora_gather(&x, &w, None, &a3, &b3, &scales, &of_row)?,
                ),
            ];
            for (name, y) in results {
                let y = y.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
                assert!(y.iter().all(|&y| y == 0.), "{name}, {rows} rows: {y:?}");
            }
        }
    }
    Ok(())
}

/// More than the 512 columns of u that a threadgroup holds at a time, in more rows than one.
#[test]
fn ranks_beyond_a_tile() -> Result<()> {
    for device in devices() {
        for rows in [2, 20] {
            let of = |dims: &[usize], seed| Fill::Signal.tensor(dims, seed, DType::F32, device);
            let (x, w) = (of(&[rows, 40], 1)?, of(&[24, 40], 2)?);
            let (a, b) = (of(&[600, 40], 3)?, of(&[24, 600], 4)?);
            let y = lora(&x, &w, None, &a, &b, 0.5)?;
            let want =
                candle_fused::reference::lora::reference(&x, &w, None, Adapter::new(&a, &b, 0.5))?;
            assert!(error(&y, &want)? < 1e-5, "{rows} rows");
        }
    }
    Ok(())
}

/// Enough rows and outputs for the large tiles of the GPU, which keep the base in floats until the adapter is added.
#[test]
fn bases_of_large_tiles() -> Result<()> {
    for device in devices() {
        // One rounding to 11 and to 8 bits.
        for (dtype, bound) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
            let of = |dims: &[usize], seed| Fill::Signal.tensor(dims, seed, dtype, device);
            let (x, w) = (of(&[512, 8], 1)?, of(&[512, 8], 2)?);
            let (a, b) = (of(&[2, 8], 3)?, of(&[512, 2], 4)?);
            let y = lora(&x, &w, None, &a, &b, 0.5)?.to_dtype(DType::F32)?;
            let [x, w, a, b] = [x, w, a, b].map(|t| t.to_dtype(DType::F32));
            let want = candle_fused::reference::lora::reference(
                &x?,
                &w?,
                None,
                Adapter::new(&a?, &b?, 0.5),
            )?;
            assert!(error(&y, &want)? < bound, "{dtype:?}");
        }
    }
    Ok(())
}
