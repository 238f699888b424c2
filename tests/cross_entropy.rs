//! What the grid can't express of the losses over classes: logits that are given up, targets outside of the classes, integer
//! dtypes and layouts, stock's own numbers.

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{
    cross_entropy, cross_entropy_inplace, linear_cross_entropy, nll, token_log_probs, CrossEntropy,
    CrossEntropyConfig, LinearCrossEntropyConfig, LossReduction,
};
use candle_fused::reference;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn logits(rows: usize, cols: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let wave = |i| (i as f32 * 0.37).sin() * 3.0 + 0.25;
    let values: Vec<f32> = (0..rows * cols).map(wave).collect();
    Tensor::from_vec(values, (rows, cols), device)?.to_dtype(dtype)
}

fn numbers(t: &Tensor) -> Result<Vec<f32>> {
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    t.flatten_all()?.to_vec1()
}

/// The configurations that take another way through the kernels.
fn configs(classes: usize, dtype: DType, device: &Device) -> Result<Vec<CrossEntropyConfig>> {
    let weight: Vec<f32> = (0..classes).map(|i| (1 + i % 5) as f32 / 4.0).collect();
    let weight = Tensor::from_vec(weight, classes, device)?.to_dtype(dtype)?;
    let smooth = CrossEntropyConfig {
        label_smoothing: 0.25,
        reduction: LossReduction::Sum,
        ..Default::default()
    };
    Ok(vec![
        CrossEntropyConfig::default(),
        CrossEntropyConfig {
            weight: Some(weight),
            ..smooth.clone()
        },
        smooth,
    ])
}

#[test]
fn logits_that_are_given_up_hold_the_gradient() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let x = Var::from_tensor(&logits(5, 37, dtype, device)?)?;
            let target = Tensor::new(&[3i64, -100, 36, 0, 7], device)?;
            for config in configs(37, dtype, device)? {
                for transposed in [false, true] {
                    // The logits are the result of an op; turned round, they are a strided view of one.
                    let make = || match transposed {
                        false => x.affine(2.0, 1.0),
                        true => x.t()?.affine(2.0, 1.0)?.t(),
                    };
                    let (kept, given_up) = (make()?, make()?);
                    let want = cross_entropy(&kept, &target, &config)?;
                    let loss = cross_entropy_inplace(given_up.clone(), &target, &config)?;
                    assert_eq!(numbers(&loss)?, numbers(&want)?);
                    assert_eq!(numbers(&given_up)?, numbers(&kept)?);
                    let want = want.backward()?;
                    let got = loss.backward()?;
                    let of =
                        |grads: &candle_core::backprop::GradStore| numbers(grads.get(&x).unwrap());
                    assert_eq!(of(&got)?, of(&want)?);
                    // The logits have been overwritten: with half of x's gradient.
                    let half: Vec<f32> = of(&got)?.iter().map(|g| g / 2.0).collect();
                    assert_eq!(numbers(&given_up)?, half);
                    assert!(loss.backward().is_err(), "a second backward pass");
                }
            }
            let target = target.narrow(0, 0, 5)?;
            let variable =
                cross_entropy_inplace(x.as_tensor().clone(), &target, &Default::default());
            assert!(variable.is_err(), "a variable would be overwritten");
            // Views of the variable lie in its memory too.
            let before = numbers(&x)?;
            let views = [
                (x.reshape((37, 5))?, 5),
                (x.narrow(1, 3, 30)?, 30),
                (x.narrow(0, 1, 3)?.reshape((1, 3, 37))?, 37),
                (
                    x.t()?
                        .reshape((37, 5))?
                        .t()?
                        .narrow(0, 0, 2)?
                        .flatten_all()?,
                    74,
                ),
            ];
            for (view, classes) in views {
                let leading = &view.dims()[..view.rank() - 1];
                let target = Tensor::zeros(leading, DType::U32, device)?;
                assert_eq!(view.dims()[view.rank() - 1], classes);
                match cross_entropy_inplace(view, &target, &Default::default()) {
                    Err(error) => {
                        let error = error.to_string();
                        assert!(error.contains("cross_entropy_inplace: got"), "{error}");
                    }
                    // A reshaped strided view is a copy.
                    Ok(loss) => assert!(loss.backward()?.get(&x).is_some()),
                }
                assert_eq!(numbers(&x)?, before);
            }
            for view in [x.reshape((5, 37))?, x.narrow(0, 0, 5)?, x.t()?.t()?] {
                let loss = cross_entropy_inplace(view, &target, &Default::default());
                assert!(loss.is_err(), "a view of a variable would be overwritten");
            }
            // A detached view has no gradient.
            let detached = x.detach().reshape((5, 37))?;
            let loss = cross_entropy_inplace(detached, &target, &Default::default())?;
            assert!(loss.backward()?.get(&x).is_none());
            assert_eq!(numbers(&x)?, before);
            // A view of an op's result is overwritten where it lies.
            let wide = x.affine(2.0, 0.0)?;
            let view = wide.narrow(1, 0, 30)?;
            let target = Tensor::new(&[3i64, -100, 29, 0, 7], device)?;
            let want = cross_entropy(&view, &target, &Default::default())?.backward()?;
            let want = numbers(want.get(&x).unwrap())?;
            let got = cross_entropy_inplace(view, &target, &Default::default())?.backward()?;
            assert_eq!(numbers(got.get(&x).unwrap())?, want);
            // A broadcast view has no memory for a gradient.
            let row = x.narrow(0, 0, 1)?.broadcast_as((5, 37))?;
            let loss = cross_entropy_inplace(row, &target, &Default::default())?;
            assert!(loss.backward()?.get(&x).is_some());
        }
    }
    Ok(())
}

#[test]
fn targets_outside_of_the_classes() -> Result<()> {
    for device in devices() {
        for (target, row) in [([0i64, 5, 1], 1), ([0, 1, -1], 2), ([i64::MIN, 1, 1], 0)] {
            let target = Tensor::new(&target, device)?;
            let x = Var::from_tensor(&logits(3, 5, DType::F32, device)?)?;
            for config in
                [LossReduction::Mean, LossReduction::None].map(|reduction| CrossEntropyConfig {
                    reduction,
                    ..Default::default()
                })
            {
                for loss in [
                    cross_entropy(&x, &target, &config),
                    nll(&x, &target, &config),
                ] {
                    if device.is_cpu() {
                        let error = loss.unwrap_err().to_string();
                        assert!(error.contains(&format!("position {row}")), "{error}");
                        continue;
                    }
                    let loss = loss?;
                    let nan = numbers(&loss)?
                        .iter()
                        .map(|l| l.is_nan())
                        .collect::<Vec<_>>();
                    match config.reduction {
                        LossReduction::None => assert_eq!(nan, [0, 1, 2].map(|i| i == row)),
                        _ => assert_eq!(nan, [true]),
                    }
                    let grad = loss.sum_all()?.backward()?.get(&x).unwrap().clone();
                    let of_row = grad.narrow(0, row, 1)?;
                    assert!(numbers(&of_row)?.iter().all(|d| d.is_nan()));
                }
            }
            let tokens = token_log_probs(&x, &target);
            if device.is_cpu() {
                let error = tokens.unwrap_err().to_string();
                assert!(error.contains("token_log_probs: got"), "{error}");
                assert!(
                    error.contains(&format!("position {row} of tokens")),
                    "{error}"
                );
                continue;
            }
            let nan: Vec<bool> = numbers(&tokens?)?.iter().map(|v| v.is_nan()).collect();
            assert_eq!(nan, [0, 1, 2].map(|i| i == row));
        }
    }
    Ok(())
}

#[test]
fn targets_of_any_integers_and_layout() -> Result<()> {
    for device in devices() {
        let x = logits(6, 9, DType::F32, device)?.reshape((2, 3, 9))?;
        let target = Tensor::new(&[[0u32, 8], [3, 3], [5, 1]], &Device::Cpu)?.t()?;
        let target = target.contiguous()?;
        let config = CrossEntropyConfig::default();
        let want = numbers(&cross_entropy(&x, &target.to_device(device)?, &config)?)?;
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let target = target.to_dtype(dtype)?;
            let strided = target.t()?.contiguous()?.to_device(device)?.t()?;
            let padded = Tensor::cat(&[&target, &target], 1)?.to_device(device)?;
            for target in [target.to_device(device)?, strided, padded.narrow(1, 3, 3)?] {
                assert_eq!(
                    numbers(&cross_entropy(&x, &target, &config)?)?,
                    want,
                    "{dtype:?}"
                );
            }
        }
        // One row of classes has a scalar for its target.
        let one = cross_entropy(&x.get(1)?.get(2)?, &Tensor::new(1u8, device)?, &config)?;
        assert_eq!(one.dims(), &[] as &[usize]);
    }
    Ok(())
}

#[test]
fn no_row_counts() -> Result<()> {
    for device in devices() {
        let x = Var::from_tensor(&logits(2, 5, DType::F32, device)?)?;
        let target = Tensor::new(&[-100i64, -100], device)?;
        let mean = cross_entropy(&x, &target, &Default::default())?;
        assert!(numbers(&mean)?[0].is_nan(), "PyTorch divides 0 by 0");
        let grads = mean.backward()?;
        assert_eq!(numbers(grads.get(&x).unwrap())?, [0.0; 10]);
        let config = CrossEntropyConfig {
            reduction: LossReduction::Sum,
            ..Default::default()
        };
        assert_eq!(numbers(&cross_entropy(&x, &target, &config)?)?, [0.0]);
    }
    Ok(())
}

/// Applied by hand, with class weights for its third tensor.
#[test]
fn the_custom_op_trains() -> Result<()> {
    for device in devices() {
        let x = Var::from_tensor(&logits(4, 11, DType::F32, device)?)?;
        let target = Tensor::new(&[3i64, -100, 10, 0], device)?;
        for config in configs(11, DType::F32, device)? {
            let op = CrossEntropy::from(&config);
            let loss = match &config.weight {
                Some(weight) => x.apply_op3(&target, weight, op)?,
                None => x.apply_op2(&target, op)?,
            };
            let want = cross_entropy(&x, &target, &config)?;
            assert_eq!(numbers(&loss)?, numbers(&want)?);
            let [got, want] = [loss, want].map(|loss| numbers(loss.backward()?.get(&x).unwrap()));
            assert_eq!(got?, want?);
        }
    }
    Ok(())
}

#[test]
fn class_weights_that_train_are_refused() -> Result<()> {
    let x = logits(2, 3, DType::F32, &Device::Cpu)?;
    let target = Tensor::new(&[0u32, 1], &Device::Cpu)?;
    let weight = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
    let config = CrossEntropyConfig {
        weight: Some(weight.as_tensor().clone()),
        ..Default::default()
    };
    assert!(cross_entropy(&x, &target, &config).is_err());
    assert!(nll(&x, &target, &config).is_err());
    Ok(())
}

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

/// The name of the function that was called, with kernels (f32) and without (f64).
#[test]
fn errors_name_the_function_and_its_argument() -> Result<()> {
    let target = Tensor::new(&[0u32, 7], &Device::Cpu)?;
    let config = CrossEntropyConfig::default();
    for dtype in [DType::F32, DType::F64] {
        let x = logits(2, 5, dtype, &Device::Cpu)?;
        let w = logits(5, 5, dtype, &Device::Cpu)?;
        let calls = [
            (
                "cross_entropy",
                "target",
                cross_entropy(&x, &target, &config),
            ),
            (
                "cross_entropy_inplace",
                "target",
                cross_entropy_inplace(x.clone(), &target, &config),
            ),
            ("nll", "target", nll(&x, &target, &config)),
            ("token_log_probs", "tokens", token_log_probs(&x, &target)),
            (
                "linear_cross_entropy",
                "target",
                linear_cross_entropy(&x, &w, &target, &Default::default()),
            ),
        ];
        for (name, argument, result) in calls {
            let error = result.unwrap_err().to_string();
            let start = format!("{name}: got 7 at position 1 of {argument}, expected");
            assert!(error.starts_with(&start), "{error}");
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
