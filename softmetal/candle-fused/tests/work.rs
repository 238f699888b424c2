//! How much work the Metal paths do: dispatches, and bytes of device memory.

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::lora::{self, lora_gather, lora_with, Adapter, Base, Dropout};
use std::sync::Mutex;

/// The device counts for the whole process.
static RECORDING: Mutex<()> = Mutex::new(());

struct Work {
    kernels: Vec<String>,
    read: u64,
}

fn work(device: &Device, call: impl FnOnce() -> Result<Tensor>) -> Result<Work> {
    let _alone = RECORDING.lock().unwrap_or_else(|e| e.into_inner());
    device.synchronize()?;
    softmetal::start_recording();
    let y = call()?;
    device.synchronize()?;
    let records = softmetal::stop_recording();
    drop(y);
    Ok(Work {
        kernels: records.iter().map(|r| r.kernel.clone()).collect(),
        read: records.iter().map(|r| r.counters.device_read).sum(),
    })
}

fn tensor(dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| ((i % 7) as f32 - 3.0) / 8.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}

#[test]
fn lora_takes_three_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for rows in [1, 2, 8, 9, 40] {
            for (cols, outputs, rank) in [(33, 17, 1), (64, 64, 8), (40, 129, 64)] {
                let x = tensor(&[rows, cols], dtype, &device)?;
                let w = tensor(&[outputs, cols], dtype, &device)?;
                let bias = tensor(&[outputs], dtype, &device)?;
                let (a, b) = (
                    tensor(&[rank, cols], dtype, &device)?,
                    tensor(&[outputs, rank], dtype, &device)?,
                );
                for dropout in [None, Some(Dropout { p: 0.5, seed: 1 })] {
                    let adapter = Adapter {
                        a: &a,
                        b: &b,
                        scale: 0.5,
                        dropout,
                    };
                    let call = || lora_with(&x, Base::Frozen(&w), Some(&bias), adapter);
                    let work = work(&device, call)?;
                    let most = if rows <= 8 { 2 } else { 3 };
                    assert!(
                        work.kernels.len() <= most,
                        "{rows} rows: {:?}",
                        work.kernels
                    );
                }
                let (a, b) = (a.unsqueeze(0)?, b.unsqueeze(0)?);
                let scales = Tensor::new(&[1f32], &Device::Cpu)?;
                let routes = Tensor::zeros(rows, DType::U32, &Device::Cpu)?;
                let call = || lora_gather(&x, &w, Some(&bias), &a, &b, &scales, &routes);
                let work = work(&device, call)?;
                assert!(work.kernels.len() <= 3, "{rows} rows: {:?}", work.kernels);
            }
        }
    }
    Ok(())
}

/// Of large enough layers: x is read once for 32 outputs.
#[test]
fn lora_of_one_row_reads_each_weight_once() -> Result<()> {
    let device = Device::new_metal(0)?;
    let (cols, outputs) = (2048, 1024);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for rank in [8, 64] {
            let x = tensor(&[1, cols], dtype, &device)?;
            let w = tensor(&[outputs, cols], dtype, &device)?;
            let (a, b) = (
                tensor(&[rank, cols], dtype, &device)?,
                tensor(&[outputs, rank], dtype, &device)?,
            );
            let needed = [&x, &w, &a, &b].map(|t| t.elem_count() * dtype.size_in_bytes());
            let needed = needed.iter().sum::<usize>() as f64;
            let ours = work(&device, || {
                candle_fused::ops::lora(&x, &w, None, &a, &b, 0.5)
            })?;
            let stock = work(&device, || lora::reference(&x, &w, None, &a, &b, 0.5))?;
            let ratio = |work: &Work| work.read as f64 / needed;
            println!(
                "{dtype:?} rank {rank}: ours reads {:.3} of what is needed in {} dispatches, stock {:.3} in {}",
                ratio(&ours),
                ours.kernels.len(),
                ratio(&stock),
                stock.kernels.len(),
            );
            assert!(
                ratio(&ours) <= 1.05,
                "{dtype:?} rank {rank}: {:.3}",
                ratio(&ours)
            );
        }
    }
    Ok(())
}
