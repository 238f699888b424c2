//! What the grid can't express of the losses over classes: targets outside of the classes, integer dtypes and layouts, errors;
//! and, in files of their own, logits that are given up, digits, and the loss without logits.

mod digits;
mod given_up;
mod linear;

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{
    cross_entropy, cross_entropy_inplace, linear_cross_entropy, nll, token_log_probs, CrossEntropy,
    CrossEntropyConfig, LossReduction,
};

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
