//! The loss that never holds its logits.

use super::{logits, numbers, DTYPES};
use crate::devices::devices;
use candle_core::{CustomOp3, DType, Device, Result, Tensor, Var};
use candle_fused::ops::{
    linear_cross_entropy, linear_cross_entropy_grads, CrossEntropyConfig, LinearCrossEntropy,
    LinearCrossEntropyConfig, LossReduction,
};
use candle_fused::reference;

/// Gradients that are too small for f16 before the loss is scaled.
#[test]
fn a_scaled_loss_keeps_small_gradients() -> Result<()> {
    for device in devices() {
        for (dtype, scale) in [(DType::F16, 32768.0), (DType::BF16, 65536.0)] {
            let x = Var::from_tensor(&(logits(6, 8, dtype, device)? * 1e-3)?)?;
            let w = Var::from_tensor(&(logits(5, 8, dtype, device)? * 1e-3)?)?;
            let target = Tensor::new(&[0u32, 4, 3, 1, 2, 0], device)?;
            let config = CrossEntropyConfig {
                // They make gradients that f16 has few digits for, or none.
                reduction: LossReduction::Sum,
                weight: Some((Tensor::ones(5, dtype, device)? * 2f64.powi(-14))?),
                ..Default::default()
            };
            let config = LinearCrossEntropyConfig {
                loss: config,
                chunk_rows: Some(4),
                ..Default::default()
            };
            let loss = (linear_cross_entropy(&x, &w, &target, &config)? * scale)?;
            let got = loss.backward()?;
            let wide =
                |t: &Var| Var::from_tensor(&t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?);
            let (xs, ws) = (wide(&x)?, wide(&w)?);
            let mut exact = config.clone();
            let weight = Tensor::ones(5, DType::F64, &Device::Cpu)?;
            exact.loss.weight = Some((weight * 2f64.powi(-14))?);
            let target = target.to_device(&Device::Cpu)?;
            let loss = reference::linear_cross_entropy::reference(&xs, &ws, &target, &exact)?;
            let want = (loss * scale)?.backward()?;
            for (var, exact) in [(&x, &xs), (&w, &ws)] {
                let got = numbers(got.get(var).unwrap())?;
                let want = numbers(&want.get(exact).unwrap().to_dtype(dtype)?)?;
                let step = if dtype == DType::F16 {
                    1.0 / 512.0
                } else {
                    1.0 / 64.0
                };
                for (g, w) in got.iter().zip(&want) {
                    assert!(
                        (g - w).abs() <= step * w.abs() + 1e-6,
                        "{dtype:?}: {g} and {w}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn linear(loss: CrossEntropyConfig, chunk_rows: usize) -> LinearCrossEntropyConfig {
    LinearCrossEntropyConfig {
        loss,
        chunk_rows: Some(chunk_rows),
        ..Default::default()
    }
}

#[test]
fn targets_of_a_linear_loss() -> Result<()> {
    for device in devices() {
        let (x, w) = (
            logits(6, 4, DType::F32, device)?,
            logits(9, 4, DType::F32, device)?,
        );
        let config = linear(
            CrossEntropyConfig {
                z_loss: 0.01,
                reduction: LossReduction::None,
                ..Default::default()
            },
            4,
        );
        let target = Tensor::new(&[[0u32, 8], [3, 3], [5, 1]], &Device::Cpu)?;
        let x3 = x.reshape((3, 2, 4))?;
        let [cpu_x, cpu_w] = [&x3, &w].map(|t| t.to_device(&Device::Cpu)?.to_dtype(DType::F64));
        let (cpu_x, cpu_w) = (cpu_x?, cpu_w?);
        use reference::linear_cross_entropy::reference;
        let want = numbers(&reference(&cpu_x, &cpu_w, &target, &config)?)?;
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let target = target.to_dtype(dtype)?;
            let strided = target.t()?.contiguous()?.to_device(device)?.t()?;
            let padded = Tensor::cat(&[&target, &target], 0)?.to_device(device)?;
            for target in [target.to_device(device)?, strided, padded.narrow(0, 3, 3)?] {
                let got = numbers(&linear_cross_entropy(&x3, &w, &target, &config)?)?;
                for (g, w) in got.iter().zip(&want) {
                    assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{g} and {w}");
                }
            }
        }
        // Not a class.
        let x = Var::from_tensor(&x)?;
        let wrong = Tensor::new(&[0i64, 8, 3, -1, 5, 1], device)?;
        let loss = linear_cross_entropy(&x, &w, &wrong, &config);
        if device.is_cpu() {
            let error = loss.unwrap_err().to_string();
            assert!(error.contains("linear_cross_entropy: got -1"), "{error}");
            continue;
        }
        let loss = loss?;
        let nan: Vec<bool> = numbers(&loss)?.iter().map(|v| v.is_nan()).collect();
        assert_eq!(nan, [0, 1, 2, 3, 4, 5].map(|i| i == 3));
        let grads = loss.sum_all()?.backward()?;
        let nan = numbers(&grads.get(&x).unwrap().narrow(0, 3, 1)?)?;
        assert!(nan.iter().all(|v| v.is_nan()));
    }
    Ok(())
}

/// More classes than a 16-bit W has widened at a time.
#[test]
fn many_classes_of_16_bits() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            let x = Var::from_tensor(&logits(3, 4, dtype, device)?)?;
            let w = Var::from_tensor(&logits(1030, 4, dtype, device)?)?;
            let target = Tensor::new(&[0u32, 1029, 1024], device)?;
            for reduction in [LossReduction::Mean, LossReduction::None] {
                let config = CrossEntropyConfig {
                    reduction,
                    ..Default::default()
                };
                let config = linear(config, 2);
                let loss = linear_cross_entropy(&x, &w, &target, &config)?;
                let got = loss.sum_all()?.backward()?;
                let wide =
                    |t: &Var| Var::from_tensor(&t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?);
                let (xs, ws) = (wide(&x)?, wide(&w)?);
                let cpu = target.to_device(&Device::Cpu)?;
                let want = reference::linear_cross_entropy::reference(&xs, &ws, &cpu, &config)?;
                let want = want.sum_all()?.backward()?;
                let step = if dtype == DType::F16 {
                    1.0 / 1024.0
                } else {
                    1.0 / 128.0
                };
                for (var, exact) in [(&x, &xs), (&w, &ws)] {
                    let got = numbers(got.get(var).unwrap())?;
                    let want = numbers(want.get(exact).unwrap())?;
                    for (g, w) in got.iter().zip(&want) {
                        assert!(
                            (g - w).abs() <= step * w.abs() + 1e-5,
                            "{dtype:?}: {g} and {w}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// x, W and a target for each row.
fn head(dtype: DType, device: &Device) -> Result<(Var, Var, Tensor)> {
    let x = Var::from_tensor(&logits(6, 8, dtype, device)?)?;
    let w = Var::from_tensor(&logits(5, 8, dtype, device)?)?;
    Ok((x, w, Tensor::new(&[0i64, 4, -100, 1, 2, 0], device)?))
}

/// The gradients that were made with the loss are gone after the first pass: the second one makes them again, to the last bit.
#[test]
fn a_second_backward_pass_gives_the_same() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let (x, w, target) = head(dtype, device)?;
            for reduction in [LossReduction::Mean, LossReduction::Sum, LossReduction::None] {
                let config = CrossEntropyConfig {
                    reduction,
                    ..Default::default()
                };
                for scale in [1.0, 0.3] {
                    // A new loss each time: the first pass gives the saved gradients away, the second computes them again.
                    let loss = linear_cross_entropy(&x, &w, &target, &linear(config.clone(), 4))?;
                    let loss = (loss * scale)?;
                    let (first, second) = (loss.backward()?, loss.backward()?);
                    for var in [&x, &w] {
                        let of = |grads: &candle_core::backprop::GradStore| {
                            numbers(grads.get(var).unwrap())
                        };
                        assert_eq!(of(&first)?, of(&second)?, "{dtype:?} {reduction:?} {scale}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Loss and gradients at once, outside of the graph, for what tracks gradients; by a kernel or, in f64, without.
#[test]
fn gradients_without_a_graph() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            if dtype == DType::F64 && !device.is_cpu() {
                continue;
            }
            let (x, w, target) = head(dtype, device)?;
            let config = linear(CrossEntropyConfig::default(), 4);
            let loss = linear_cross_entropy(&x, &w, &target, &config)?;
            let want = loss.backward()?;
            let (frozen_x, frozen_w) = (x.as_detached_tensor(), w.as_detached_tensor());
            for [tracks_x, tracks_w] in [[true, true], [true, false], [false, true], [false; 2]] {
                let x_arg = if tracks_x { x.as_tensor() } else { &frozen_x };
                let w_arg = if tracks_w { w.as_tensor() } else { &frozen_w };
                let (got, dx, dw) = linear_cross_entropy_grads(x_arg, w_arg, &target, &config)?;
                assert_eq!(numbers(&got)?, numbers(&loss)?);
                for (var, grad, tracks) in [(&x, dx, tracks_x), (&w, dw, tracks_w)] {
                    let grad = grad.map(|grad| numbers(&grad)).transpose()?;
                    let want = tracks.then(|| numbers(want.get(var).unwrap()));
                    assert_eq!(grad, want.transpose()?, "{dtype:?}");
                }
            }
            let rows = CrossEntropyConfig {
                reduction: LossReduction::None,
                ..Default::default()
            };
            let error = linear_cross_entropy_grads(&x, &w, &target, &linear(rows, 4));
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with("linear_cross_entropy_grads: got"),
                "{error}"
            );
            let fewer = target.narrow(0, 0, 1)?;
            let error = linear_cross_entropy_grads(&x, &w, &fewer, &Default::default());
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with("linear_cross_entropy_grads: got"),
                "{error}"
            );
        }
    }
    Ok(())
}

/// A backward that a user calls by hand, with tensors that do not fit each other.
#[test]
fn misfits_of_a_backward_by_hand_are_errors() -> Result<()> {
    for device in devices() {
        let (x, w, target) = head(DType::F32, device)?;
        let grad = Tensor::ones((), DType::F32, device)?;
        for reduction in [LossReduction::Mean, LossReduction::None] {
            let config = CrossEntropyConfig {
                reduction,
                ..Default::default()
            };
            let op = LinearCrossEntropy {
                config: linear(config, 4),
            };
            let narrow = |t: &Tensor, dim: usize, len: usize| {
                Var::from_tensor(&t.narrow(dim, 0, len)?.contiguous()?)
            };
            let few_columns = narrow(&w, 1, 1)?;
            let few_targets = target.narrow(0, 0, 1)?;
            let half = Var::from_tensor(&w.to_dtype(DType::F16)?)?;
            for (w, target) in [
                (&few_columns, &target),
                (&w, &few_targets),
                (&half, &target),
            ] {
                let grads = CustomOp3::bwd(&op, &x, w, target, &grad, &grad);
                assert!(
                    grads.is_err(),
                    "{reduction:?} {:?} {:?}",
                    w.dims(),
                    target.dims()
                );
            }
        }
    }
    Ok(())
}

/// Applied by hand, with class weights in its config.
#[test]
fn the_custom_op_trains() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let (x, w, target) = head(dtype, device)?;
            for reduction in [LossReduction::Mean, LossReduction::None] {
                let weight = Tensor::new(&[1f32, 0.5, 2.0, 1.5, 0.25], device)?;
                let config = CrossEntropyConfig {
                    reduction,
                    weight: Some(weight.to_dtype(dtype)?),
                    ..Default::default()
                };
                let config = linear(config, 4);
                let want = linear_cross_entropy(&x, &w, &target, &config)?;
                let op = LinearCrossEntropy { config };
                let got = x.apply_op3(&w, &target, op.clone())?;
                assert_eq!(numbers(&got)?, numbers(&want)?);
                let want = (want * 0.5)?.backward()?;
                let got = (got * 0.5)?.backward()?;
                for var in [&x, &w] {
                    let of =
                        |grads: &candle_core::backprop::GradStore| numbers(grads.get(var).unwrap());
                    assert_eq!(of(&got)?, of(&want)?, "{dtype:?} {reduction:?}");
                }
                // A frozen W gets nothing.
                let frozen = w.as_detached_tensor();
                let grads = x.apply_op3(&frozen, &target, op)?.sum_all()?.backward()?;
                assert!(grads.get(&x).is_some() && grads.get(&frozen).is_none());
            }
            let trained = Var::from_tensor(&Tensor::ones(5, dtype, device)?)?;
            let config = CrossEntropyConfig {
                weight: Some(trained.into_inner()),
                ..Default::default()
            };
            let op = LinearCrossEntropy {
                config: linear(config, 4),
            };
            assert!(x.apply_op3(&w, &target, op).is_err());
        }
    }
    Ok(())
}
