//! Clipping and accumulation, against slow forms.

use super::{close, message, signal, store, values, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{clip_grad_norm, clip_grad_value, GradAccumulator};

/// Longer than a part of a sum on either device, empty, and of one element.
const SHAPES: [&[usize]; 6] = [&[17, 1001], &[0], &[1], &[3, 5], &[4097], &[]];

fn vars(dtype: DType, device: &Device) -> Result<Vec<Var>> {
    SHAPES
        .iter()
        .map(|&shape| Var::zeros(shape, dtype, device))
        .collect()
}

fn gradients(seed: u64, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let grad = |(i, shape): (usize, &&[usize])| signal(shape, seed + i as u64, dtype, device);
    SHAPES.iter().enumerate().map(grad).collect()
}

/// In f64, element by element.
fn slow_norm(grads: &[Tensor]) -> Result<f64> {
    let mut sum = 0.0;
    for grad in grads {
        sum += values(grad)?.iter().map(|x| x * x).sum::<f64>();
    }
    Ok(sum.sqrt())
}

#[test]
fn the_norm_is_over_all_gradients() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES
            .into_iter()
            .chain(device.is_cpu().then_some(DType::F64))
        {
            let (vars, grads) = (vars(dtype, device)?, gradients(1, dtype, device)?);
            let before: Vec<Tensor> = grads
                .iter()
                .map(|g| g.force_contiguous())
                .collect::<Result<_>>()?;
            let norm = slow_norm(&before)?;
            let mut store = store(vars.iter().zip(&grads));
            for max in [f64::INFINITY, 2.0 * norm, 0.25 * norm] {
                let got = clip_grad_norm(&mut store, &vars, max)?;
                assert!((got - norm).abs() < 1e-6 * norm, "{dtype:?}: {got}, {norm}");
                let factor = (max / (norm + 1e-6)).min(1.0);
                let bound = match dtype {
                    DType::F32 | DType::F64 => 1e-6,
                    // A unit in the last place, where f32 has rounded to the other side of a tie.
                    _ => 8e-3,
                };
                for (var, grad) in vars.iter().zip(&before) {
                    let want = (grad.to_device(&Device::Cpu)?.to_dtype(DType::F64)? * factor)?
                        .to_dtype(dtype)?;
                    close(store.get(var).expect("a gradient"), &want, bound)?;
                }
            }
        }
    }
    Ok(())
}

/// Two variables with one gradient, a variable as its own gradient, a broadcast one: no memory is scaled twice.
#[test]
fn shared_gradients_are_scaled_once() -> Result<()> {
    for device in devices() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|_| Var::ones((2, 8), DType::F32, device));
        let (a, b, c, d) = (a?, b?, c?, d?);
        let shared = Tensor::ones((2, 8), DType::F32, device)?;
        let repeated = Tensor::ones((1, 8), DType::F32, device)?.broadcast_as((2, 8))?;
        let mut grads = store([
            (&a, &shared),
            (&b, &shared),
            (&c, c.as_tensor()),
            (&d, &repeated),
        ]);
        let vars = [a, b, c.clone(), d];
        // All elements are 1: 64 of them have the norm 8.
        assert_eq!(clip_grad_norm(&mut grads, &vars, 4.0)?, 8.0);
        for var in &vars {
            close(
                grads.get(var).expect("a gradient"),
                &(shared.ones_like()? * 0.5)?,
                1e-6,
            )?;
        }
        close(&c, &shared.ones_like()?, 0.0)?;
        // A gradient that is shared with a variable which is not clipped.
        let [a, b] = [&vars[0], &vars[1]];
        let mut grads = store([(a, &shared), (b, &shared)]);
        clip_grad_norm(&mut grads, std::slice::from_ref(a), 1.0)?;
        close(grads.get(a).expect("a gradient"), &(&shared * 0.25)?, 1e-6)?;
        close(grads.get(b).expect("a gradient"), &shared.ones_like()?, 0.0)?;
    }
    Ok(())
}

#[test]
fn a_norm_that_is_not_finite_changes_nothing() -> Result<()> {
    for device in devices() {
        for bad in [f32::NAN, f32::INFINITY] {
            let vars = [0, 1].map(|_| Var::ones(3, DType::F32, device));
            let vars = vars.into_iter().collect::<Result<Vec<_>>>()?;
            let (good, bad) = (
                Tensor::new(&[3f32, 4., 0.], device)?,
                Tensor::new(&[1f32, bad, 0.], device)?,
            );
            let mut grads = store([(&vars[0], &good), (&vars[1], &bad)]);
            let text = message(clip_grad_norm(&mut grads, &vars, 1.0));
            assert!(
                text.starts_with("clip_grad_norm: got a gradient") && text.contains("variable 1"),
                "{text}"
            );
            close(grads.get(&vars[0]).expect("a gradient"), &good, 0.0)?;
            close(grads.get(&vars[1]).expect("a gradient"), &bad, 0.0)?;
        }
        let (var, empty) = (
            Var::ones(2, DType::F32, device)?,
            Var::zeros(0, DType::F16, device)?,
        );
        let nothing = empty.as_detached_tensor();
        let mut grads = store([
            (&var, &Tensor::new(&[3f32, 0.5], device)?),
            (&empty, &nothing),
        ]);
        clip_grad_value(&mut grads, &[var.clone(), empty], 1.0)?;
        assert_eq!(values(grads.get(&var).expect("a gradient"))?, [1.0, 0.5]);
        let mut grads = store([(&var, &Tensor::new(&[f32::NAN, 9.], device)?)]);
        assert!(
            message(clip_grad_value(&mut grads, std::slice::from_ref(&var), 1.0)).contains("NaN")
        );
        let mut grads = store([(&var, &Tensor::new(&[f32::INFINITY, -9.], device)?)]);
        clip_grad_value(&mut grads, std::slice::from_ref(&var), 2.0)?;
        assert_eq!(values(grads.get(&var).expect("a gradient"))?, [2.0, -2.0]);
        assert!(clip_grad_norm(&mut grads, std::slice::from_ref(&var), -1.0).is_err());
        assert!(clip_grad_norm(&mut grads, std::slice::from_ref(&var), f64::NAN).is_err());
        assert!(clip_grad_value(&mut grads, &[var], f64::NAN).is_err());
    }
    Ok(())
}

#[test]
fn sums_are_in_f32_whatever_gradients_are_in() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES
            .into_iter()
            .chain(device.is_cpu().then_some(DType::F64))
        {
            let vars = vars(dtype, device)?;
            let mut sum = GradAccumulator::new(&vars)?;
            // Twice, so that nothing of the first round is left.
            for round in 0..2 {
                let mut want: Vec<Option<Tensor>> = vec![None; vars.len()];
                for pass in 0..3 {
                    let mut grads = gradients(round * 100 + pass, dtype, device)?;
                    // A layout that is not contiguous.
                    let wide = signal(&[5, 3], 3, dtype, device)?;
                    grads[3] = wide.t()?;
                    sum.add(&store(vars.iter().zip(&grads)))?;
                    for (want, grad) in want.iter_mut().zip(&grads) {
                        let grad = grad.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                        *want = Some(match want.take() {
                            Some(want) => (want + grad)?,
                            None => grad,
                        });
                    }
                }
                assert_eq!(sum.passes(), 3);
                let mean = sum.finish()?;
                let wide = if dtype == DType::F64 {
                    DType::F64
                } else {
                    DType::F32
                };
                for (var, want) in vars.iter().zip(want) {
                    let mean = mean.get(var).expect("a mean");
                    assert_eq!(mean.dtype(), wide);
                    close(mean, &(want.expect("a sum") / 3.0)?, 1e-6)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_that_are_missing_are_named() -> Result<()> {
    let vars = vars(DType::F32, &Device::Cpu)?;
    let grads = gradients(1, DType::F32, &Device::Cpu)?;
    let mut sum = GradAccumulator::new(&vars)?;
    assert!(message(sum.finish()).contains("expected at least one pass"));
    let some = store(vars.iter().zip(&grads).take(4));
    let text = message(sum.add(&some));
    assert!(text.contains("[4, 5] of 6"), "{text}");
    assert_eq!(sum.passes(), 0);
    assert_eq!(sum.add_found(&some)?, [4, 5]);
    let others = store(vars.iter().zip(&grads).take(5));
    assert_eq!(sum.add_found(&others)?, [5]);
    let mean = sum.finish()?;
    close(mean.get(&vars[0]).expect("a mean"), &grads[0], 1e-6)?;
    // In one of two passes.
    close(
        mean.get(&vars[4]).expect("a mean"),
        &(&grads[4] / 2.0)?,
        1e-6,
    )?;
    assert!(mean.get(&vars[5]).is_none());
    let wrong = store([(&vars[0], &grads[3])]);
    assert!(message(sum.add_found(&wrong)).contains("[3, 5]"));
    let twice = [vars[0].clone(), vars[0].clone()];
    assert!(message(GradAccumulator::new(&twice)).contains("variable 1 twice"));
    Ok(())
}

/// A gradient that is added stays what it is.
#[test]
fn what_is_added_is_not_changed() -> Result<()> {
    for device in devices() {
        let var = Var::ones(9, DType::F32, device)?;
        let grad = Tensor::ones(9, DType::F32, device)?;
        let mut sum = GradAccumulator::new(std::slice::from_ref(&var))?;
        for _ in 0..3 {
            sum.add(&store([(&var, &grad)]))?;
        }
        let first = sum.finish()?;
        sum.add(&store([(&var, first.get(&var).expect("a mean"))]))?;
        sum.add(&store([(&var, &grad)]))?;
        close(first.get(&var).expect("a mean"), &grad, 0.0)?;
        close(&grad, &grad.ones_like()?, 0.0)?;
    }
    Ok(())
}
