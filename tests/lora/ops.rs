//! The ops beyond the grid: ranks of x, quantised bases, long sums, frozen weights, gathered adapters.

use crate::cases::Fill;
use crate::devices::devices;
use crate::tensors::{error, signal, var};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_fused::ops::Act;
use candle_fused::ops::MatmulAct;
use candle_fused::ops::{linear, Linear};
use candle_fused::ops::{lora, lora_with, Adapter, AdapterDropout, Lora};
use candle_fused::ops::{lora_gather, NO_ADAPTER};
use std::sync::Arc;

#[test]
fn x_may_have_any_rank() -> Result<()> {
    for device in devices() {
        let w = signal(&[7, 12], 1, device)?;
        let (a, b) = (signal(&[3, 12], 2, device)?, signal(&[7, 3], 3, device)?);
        for leading in [&[][..], &[1], &[2, 3], &[3, 2, 2], &[2, 1, 3, 2]] {
            let dims = [leading, &[12]].concat();
            let x = signal(&dims, 4, device)?;
            let rows = x.reshape(((), 12))?;
            let want = [leading, &[7]].concat();
            let y = lora(&x, &w, None, &a, &b, 0.5)?;
            let flat = lora(&rows, &w, None, &a, &b, 0.5)?;
            assert_eq!(y.dims(), want);
            assert!(error(&y.reshape(((), 7))?, &flat)? < 1e-6);
        }
        // No single stride leads from row to row here.
        let x = signal(&[4, 5, 12], 4, device)?.narrow(1, 1, 3)?;
        let y = lora(&x, &w, None, &a, &b, 0.5)?;
        let copy = lora(&x.force_contiguous()?, &w, None, &a, &b, 0.5)?;
        assert!(error(&y, &copy)? < 1e-6);
    }
    Ok(())
}

#[test]
fn long_sums_of_f16_stay_accurate() -> Result<()> {
    for device in devices() {
        for rows in [1, 4, 12, 20] {
            let tensor = |dims: [usize; 2], seed| {
                let values = Fill::Signal.tensor(&dims, seed, DType::F16, &Device::Cpu)?;
                (values / 8.0)?.to_device(device)
            };
            let (x, w) = (tensor([rows, 8192], 1)?, tensor([24, 8192], 2)?);
            let (a, b) = (tensor([8, 8192], 3)?, tensor([24, 8], 4)?);
            let got = lora(&x, &w, None, &a, &b, 0.5)?;
            let exact = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
            let want = candle_fused::reference::lora::reference(
                &exact(&x)?,
                &exact(&w)?,
                None,
                Adapter::new(&exact(&a)?, &exact(&b)?, 0.5),
            )?;
            let error = error(&got, &want)?;
            assert!(error <= 2e-3, "{rows} rows: {error:e}");
        }
    }
    Ok(())
}

#[test]
fn frozen_weights_get_no_gradient_even_if_they_are_variables() -> Result<()> {
    for device in devices() {
        let (x, w) = (var(&[3, 12], 1, device)?, var(&[7, 12], 2, device)?);
        let bias = var(&[7], 3, device)?;
        let (a, b) = (var(&[3, 12], 4, device)?, var(&[7, 3], 5, device)?);
        let grads = lora(&x, &w, Some(&bias), &a, &b, 0.5)?.backward()?;
        assert!([&x, &a, &b].iter().all(|t| grads.get(t).is_some()));
        assert!([&w, &bias].iter().all(|t| grads.get(t).is_none()));
    }
    Ok(())
}

/// Candle's product of a quantised weight is the base, and the adapter stands beside it.
#[test]
fn a_quantised_base_trains() -> Result<()> {
    let quantized = [
        GgmlDType::Q4_0,
        GgmlDType::Q8_0,
        GgmlDType::Q4K,
        GgmlDType::Q6K,
        GgmlDType::F16,
    ];
    for device in devices() {
        for dtype in quantized {
            let w = signal(&[40, 256], 1, &Device::Cpu)?;
            let w = Arc::new(QTensor::quantize_onto(&w, dtype, device)?);
            let dense = w.dequantize(device)?;
            let bias = signal(&[40], 5, device)?;
            for dropout in [None, Some(AdapterDropout { p: 0.25, seed: 3 })] {
                let x = var(&[2, 3, 256], 2, device)?;
                let (a, b) = (var(&[4, 256], 3, device)?, var(&[40, 4], 4, device)?);
                let adapter = Adapter {
                    a: &a,
                    b: &b,
                    scale: 0.5,
                    dropout,
                };
                let y = lora_with(&x, &w.clone().into(), Some(&bias), adapter)?;
                let base = QMatMul::from_arc(w.clone())?.forward(&x.detach())?;
                let zero = dense.zeros_like()?;
                let low = candle_fused::reference::lora::reference(
                    &x.detach(),
                    &zero,
                    Some(&bias),
                    adapter,
                )?;
                // Beside weights of f16 Candle rounds x to f16.
                let most = if dtype == GgmlDType::F16 { 1e-3 } else { 1e-4 };
                assert!(error(&y, &(base + low)?)? < most, "{dtype:?}");

                let g = signal(&[2, 3, 40], 6, device)?;
                let got = (&y * &g)?.backward()?;
                let want =
                    (candle_fused::reference::lora::reference(&x, &dense, Some(&bias), adapter)?
                        * &g)?
                        .backward()?;
                for (name, t) in [("x", &x), ("a", &a), ("b", &b)] {
                    let (Some(got), Some(want)) = (got.get(t), want.get(t)) else {
                        panic!("{dtype:?}: no gradient to {name}")
                    };
                    let error = error(got, want)?;
                    assert!(error < 1e-5, "{dtype:?}, {name}: {error:e}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gathered_rows_are_as_with_their_adapter_alone() -> Result<()> {
    for device in devices() {
        let (x, w) = (signal(&[12, 32], 1, device)?, signal(&[24, 32], 2, device)?);
        let (a, b) = (
            signal(&[3, 4, 32], 3, device)?,
            signal(&[3, 24, 4], 4, device)?,
        );
        let scales = [0.5f32, -1.0, 2.0];
        let adapters: Vec<u32> = (0..12).map(|i| [1, NO_ADAPTER, 2, 0, 0][i % 5]).collect();
        // Where the indices are doesn't matter.
        let rows = Tensor::new(adapters.as_slice(), device)?;
        let y = lora_gather(&x, &w, None, &a, &b, &Tensor::new(&scales, device)?, &rows)?;
        for (i, n) in adapters.into_iter().enumerate() {
            let row = x.narrow(0, i, 1)?;
            let want = match n {
                NO_ADAPTER => linear(&row, &w, None)?,
                n => {
                    let (n, scale) = (n as usize, scales[n as usize]);
                    lora(&row, &w, None, &a.get(n)?, &b.get(n)?, scale)?
                }
            };
            assert!(error(&y.narrow(0, i, 1)?, &want)? < 1e-6, "row {i}");
        }
    }
    Ok(())
}

#[test]
fn gathered_rows_of_any_rank_and_without_adapters() -> Result<()> {
    for device in devices() {
        let w = signal(&[7, 12], 1, device)?;
        let (a, b) = (
            signal(&[1, 3, 12], 2, device)?,
            signal(&[1, 7, 3], 3, device)?,
        );
        let one = Tensor::new(&[0.5f32], &Device::Cpu)?;
        for leading in [&[][..], &[2, 3]] {
            let x = signal(&[leading, &[12]].concat(), 4, device)?;
            let of = |n: u32| Tensor::full(n, leading, &Device::Cpu);
            let y = lora_gather(&x, &w, None, &a, &b, &one, &of(0)?)?;
            let want = lora(&x, &w, None, &a.get(0)?, &b.get(0)?, 0.5)?;
            assert!(error(&y, &want)? < 1e-6, "{leading:?}");
            let y = lora_gather(&x, &w, None, &a, &b, &one, &of(NO_ADAPTER)?)?;
            assert!(error(&y, &linear(&x, &w, None)?)? < 1e-6, "{leading:?}");
        }
        // No adapters at all.
        let x = var(&[2, 12], 4, device)?;
        let (a, b) = (a.narrow(0, 0, 0)?, b.narrow(0, 0, 0)?);
        let none = Tensor::full(NO_ADAPTER, 2, &Device::Cpu)?;
        let y = lora_gather(&x, &w, None, &a, &b, &one.narrow(0, 0, 0)?, &none)?;
        assert!(error(&y, &linear(&x, &w, None)?)? < 1e-6);
    }
    Ok(())
}

/// Who applies an op without its function is refused as well.
#[test]
fn ops_check_their_shapes() -> Result<()> {
    for device in devices() {
        let of = |dims: (usize, usize)| Tensor::zeros(dims, DType::F32, device);
        let wrong = [
            of((1, 4))?.apply_op2_no_bwd(&of((3, 40))?, &Linear::default()),
            of((1, 4))?.apply_op3_no_bwd(
                &of((2, 4))?,
                &of((5, 3))?,
                &Lora {
                    weight: of((5, 4))?,
                    bias: None,
                    scale: 1.0,
                    dropout: None,
                },
            ),
        ];
        for (i, result) in wrong.into_iter().enumerate() {
            let error = result.expect_err(&format!("shapes {i}")).to_string();
            assert!(
                error.contains("expected") || error.contains("accepted"),
                "{error}"
            );
        }
        let half = Tensor::zeros((4, 4), DType::F16, device)?;
        let mixed = [
            of((1, 4))?.apply_op2_no_bwd(&half, &Linear::default()),
            of((4, 4))?.apply_op2_no_bwd(&half, &MatmulAct(Act::Relu)),
            half.apply_op2_no_bwd(&of((4, 4))?, &MatmulAct(Act::Relu)),
        ];
        for (i, result) in mixed.into_iter().enumerate() {
            assert!(result.is_err(), "dtypes {i} are accepted");
        }
    }
    Ok(())
}
