//! Losses keep their digits: large logits, many rows, weights that cancel.

use super::{logits, numbers};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{
    cross_entropy, CrossEntropyConfig, LinearCrossEntropyConfig, LossReduction,
};
use candle_fused::reference;

/// Logits far from 0 keep their digits: nothing is subtracted from a rounded log-sum-exp.
#[test]
fn large_logits_keep_their_digits() -> Result<()> {
    for device in devices() {
        let near = Tensor::new(&[[0.25f32, -1.5, 2.0, 0.75]], device)?;
        let target = Tensor::new(&[1u32], device)?;
        let config = CrossEntropyConfig {
            label_smoothing: 0.1,
            ..Default::default()
        };
        let run = |shift: f64| -> Result<(Vec<f32>, Vec<f32>)> {
            let x = Var::from_tensor(&(&near + shift)?)?;
            let loss = cross_entropy(&x, &target, &config)?;
            let grads = loss.backward()?;
            Ok((numbers(&loss)?, numbers(grads.get(&x).unwrap())?))
        };
        let (near, far) = (run(0.0)?, run(65536.0)?);
        for (a, b) in near.0.iter().chain(&near.1).zip(far.0.iter().chain(&far.1)) {
            assert!((a - b).abs() < 1e-6, "{a} and {b}");
        }
    }
    Ok(())
}

/// What runs where there is no kernel adds up 16-bit losses in f32: 5000 equal ones have the mean of one.
#[test]
fn references_round_once() -> Result<()> {
    let (rows, classes) = (5000, 3);
    for dtype in [DType::F16, DType::BF16] {
        let x = logits(1, classes, dtype, &Device::Cpu)?;
        let x = x.broadcast_as((rows, classes))?.contiguous()?;
        let target = Tensor::ones(rows, DType::U32, &Device::Cpu)?;
        let weight = Tensor::new(&[1f32, 0.75, 2.0], &Device::Cpu)?.to_dtype(dtype)?;
        let config = CrossEntropyConfig {
            weight: Some(weight.clone()),
            label_smoothing: 0.1,
            ..Default::default()
        };
        let plain = CrossEntropyConfig {
            label_smoothing: 0.0,
            ..config.clone()
        };
        let wide = |config: &CrossEntropyConfig| -> Result<CrossEntropyConfig> {
            Ok(CrossEntropyConfig {
                weight: Some(weight.to_dtype(DType::F64)?),
                ..config.clone()
            })
        };
        let exact = x.to_dtype(DType::F64)?;
        use reference::cross_entropy as of;
        let pairs = [
            (
                of::reference(&x, &target, &config)?,
                of::reference(&exact, &target, &wide(&config)?)?,
            ),
            (
                of::reference_nll(&x, &target, &plain)?,
                of::reference_nll(&exact, &target, &wide(&plain)?)?,
            ),
            (
                of::reference_token_log_probs(&x, &target)?,
                of::reference_token_log_probs(&exact, &target)?,
            ),
        ];
        for (got, want) in pairs {
            assert_eq!(got.dtype(), dtype);
            assert_eq!(numbers(&got)?, numbers(&want.to_dtype(dtype)?)?);
        }
        let w = logits(classes, classes, dtype, &Device::Cpu)?;
        let linear = |loss: CrossEntropyConfig| LinearCrossEntropyConfig {
            loss,
            ..Default::default()
        };
        use reference::linear_cross_entropy::reference;
        let got = reference(&x, &w, &target, &linear(config.clone()))?;
        let want = reference(
            &exact,
            &w.to_dtype(DType::F64)?,
            &target,
            &linear(wide(&config)?),
        )?;
        assert_eq!(numbers(&got)?, numbers(&want.to_dtype(dtype)?)?);
    }
    Ok(())
}

/// Class weights that cancel, smoothed labels on long rows, and a mean whose weights add up to nothing.
#[test]
fn weights_that_cancel() -> Result<()> {
    for device in devices() {
        let check = |x: &Tensor, target: &[u32], weight: &[f32], eps: f32| -> Result<()> {
            for reduction in [LossReduction::Sum, LossReduction::Mean] {
                let config = |device: &Device, dtype| -> Result<CrossEntropyConfig> {
                    Ok(CrossEntropyConfig {
                        weight: Some(Tensor::new(weight, device)?.to_dtype(dtype)?),
                        label_smoothing: eps,
                        reduction,
                        ..Default::default()
                    })
                };
                let own = Tensor::new(target, device)?;
                let got = cross_entropy(x, &own, &config(device, DType::F32)?)?;
                let exact = x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                let (cpu, own) = (Device::Cpu, own.to_device(&Device::Cpu)?);
                let want =
                    reference::cross_entropy::reference(&exact, &own, &config(&cpu, DType::F64)?)?;
                let (got, want) = (numbers(&got)?[0], numbers(&want)?[0]);
                let close = (got - want).abs() <= 1e-5 * want.abs().max(1.0);
                let same = got == want || (got.is_nan() && want.is_nan());
                assert!(close || same, "{got}, expected {want}: {reduction:?} {eps}");
            }
            Ok(())
        };
        let x = Tensor::new(&[[1f32, 4.0], [-2.0, 0.5]], device)?;
        check(&x, &[0, 0], &[1.0, -1.0], 0.25)?;
        // Nothing counts: the smoothed part is divided by 0.
        check(&x, &[1, 1], &[1.0, 0.0], 0.25)?;
        check(&x, &[1, 1], &[1.0, 0.0], 0.0)?;
        check(&x, &[0, 1], &[1.0, -1.0], 0.0)?;
        // A class that is not there: 0 times infinity.
        let padded = Tensor::new(&[[1f32, 4.0, f32::NEG_INFINITY]], device)?;
        check(&padded, &[0], &[1.0, 1.0, 0.0], 0.25)?;
        check(&padded, &[0], &[1.0, 1.0, 0.0], 0.0)?;
        // Several chunks of columns, the last one of which is not there or cancels.
        let long = logits(2, 4100, DType::F32, device)?;
        let ones = vec![1.0; 4100];
        check(&long, &[0, 4099], &ones, 0.25)?;
        let mut weight = ones.clone();
        weight[4096..].copy_from_slice(&[1.0, -1.0, 2.0, -2.0]);
        check(&long, &[0, 17], &weight, 0.25)?;
        let absent = Tensor::full(f32::NEG_INFINITY, (2, 4), device)?;
        let padded = Tensor::cat(&[&long.narrow(1, 0, 4096)?, &absent], 1)?;
        weight[4096..].fill(0.0);
        check(&padded, &[0, 17], &weight, 0.25)?;
    }
    Ok(())
}
