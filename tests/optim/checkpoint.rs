//! Checkpoints: the gradients of the graph that was not kept, or an error.

use super::{close, message, signal};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{checkpoint, checkpoint_many};
use candle_fused::nn::{Module, VarBuilder, VarMap};
use candle_fused::ops::{add_rms_norm, dropout, rms_norm, softmax_last_dim};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

fn var(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Var> {
    Var::from_tensor(&signal(dims, seed, dtype, device)?)
}

/// A block with more variables than a node of the graph has inputs, and an op of two outputs.
fn block(vars: &[Var], x: &Tensor) -> Result<Tensor> {
    let mut h = rms_norm(x, Some(&vars[0]), 1e-5)?;
    for weight in &vars[1..vars.len() - 1] {
        h = dropout(&softmax_last_dim(&h.matmul(weight)?)?, 0.2, 7)?;
    }
    let (sum, normed) = add_rms_norm(&h, x, Some(&vars[vars.len() - 1]), 1e-5)?;
    sum.tanh()? + normed
}

fn compare(dtype: DType, device: &Device, bound: f64) -> Result<()> {
    let mut vars = vec![var(&[6], 1, dtype, device)?];
    for i in 0..14 {
        vars.push(var(&[6, 6], 10 + i, dtype, device)?);
    }
    vars.push(var(&[6], 2, dtype, device)?);
    let x = var(&[4, 6], 3, dtype, device)?;
    // Two blocks share their variables; one is inside of another's checkpoint.
    let plain = block(&vars, &block(&vars, &x)?)?;
    let inner = vars.clone();
    let once = move |x: &Tensor| block(&inner, x);
    let twice = checkpoint(once.clone(), &checkpoint(once.clone(), &x)?)?;
    let nested = checkpoint(
        move |x: &Tensor| {
            let once = once.clone();
            checkpoint(once.clone(), &checkpoint(once, x)?)
        },
        &x,
    )?;
    let weight = signal(plain.dims(), 5, dtype, device)?;
    let loss = |y: &Tensor| (y * &weight)?.sum_all();
    let want = loss(&plain)?.backward()?;
    for y in [&twice, &nested] {
        close(y, &plain, bound)?;
        // A graph may be gone through twice.
        for _ in 0..2 {
            let got = loss(y)?.backward()?;
            for var in vars.iter().chain([&x]) {
                let want = want.get(var).expect("a gradient");
                close(got.get(var).expect("a gradient"), want, bound)?;
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_are_those_of_the_whole_graph() -> Result<()> {
    for device in devices() {
        compare(DType::F32, device, 1e-4)?;
        compare(DType::BF16, device, 0.05)?;
    }
    compare(DType::F64, &Device::Cpu, 1e-10)
}

#[test]
fn inputs_of_all_kinds() -> Result<()> {
    for device in devices() {
        let (a, b) = (
            var(&[2, 3], 1, DType::F32, device)?,
            var(&[3, 2], 2, DType::F32, device)?,
        );
        let frozen = signal(&[2, 3], 3, DType::F32, device)?;
        let ids = Tensor::new(&[1u32, 0], device)?;
        let unused = var(&[5], 4, DType::F32, device)?;
        let f = |xs: &[Tensor]| {
            let rows = (&xs[0] + &xs[2])?.index_select(&xs[3], 0)?;
            rows.matmul(&xs[1])?.exp()
        };
        // A view, and results of other ops.
        let (a2, b2) = ((a.as_tensor() * 0.5)?, b.t()?.t()?);
        let inputs = [&a2, &b2, &frozen, &ids, unused.as_tensor()];
        let y = checkpoint_many(f, &inputs)?;
        let owned: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
        let plain = f(&owned)?;
        close(&y, &plain, 1e-6)?;
        let (got, want) = (y.sum_all()?.backward()?, plain.sum_all()?.backward()?);
        for var in [&a, &b] {
            close(
                got.get(var).expect("a gradient"),
                want.get(var).expect("a gradient"),
                1e-5,
            )?;
        }
        // An input that f does not use has a gradient of zeros.
        close(
            got.get(&unused).expect("a gradient"),
            &unused.zeros_like()?,
            0.0,
        )?;
        // The input itself, a view of it, one element, nothing.
        let same = checkpoint(|x| Ok(x.clone()), &a)?;
        close(
            same.sum_all()?.backward()?.get(&a).expect("a gradient"),
            &a.ones_like()?,
            0.0,
        )?;
        let view = checkpoint(|x| x.t()?.narrow(0, 1, 2), &a)?;
        assert_eq!(view.dims(), [2, 2]);
        let empty = var(&[0, 3], 5, DType::F32, device)?;
        let y = checkpoint(|x| x.affine(2.0, 1.0), &empty)?;
        assert_eq!(
            y.sum_all()?
                .backward()?
                .get(&empty)
                .expect("a gradient")
                .dims(),
            [0, 3]
        );
        // Nothing that tracks gradients: no graph.
        assert!(!checkpoint(|x| x.exp(), &frozen)?.track_op());
        let ids = checkpoint(|x| x.argmax(1), &a)?;
        assert_eq!(ids.dtype(), DType::U32);
    }
    Ok(())
}

/// More arguments than a node of the graph has inputs, three of which no gradient reaches, and gradients of a pass that are kept
/// while the next one runs.
#[test]
fn a_pass_does_not_see_another_s_gradients() -> Result<()> {
    for device in devices() {
        let x = var(&[4], 1, DType::F32, device)?;
        let vars = (0..7)
            .map(|i| var(&[4], 2 + i, DType::F32, device))
            .collect::<Result<Vec<_>>>()?;
        let mask = |bound: f64| x.gt(bound)?.to_dtype(DType::F32)?.floor();
        let masks = [mask(-0.5)?, mask(0.0)?, mask(0.5)?];
        let weights = vars.clone();
        let f = move |xs: &[Tensor]| {
            let mut y = ((&xs[0] + &xs[1])? + &xs[2])?
                .affine(1.0, 1.0)?
                .mul(&xs[3])?;
            for w in &weights {
                y = (y * w.as_tensor())?;
            }
            Ok(y)
        };
        let args = [&masks[0], &masks[1], &masks[2], x.as_tensor()];
        let plain = f(&args.map(Tensor::clone))?;
        let y = checkpoint_many(f, &args)?;
        let mut kept = Vec::new();
        for factor in [1.0, 3.0] {
            let want = plain.sum_all()?.affine(factor, 0.0)?.backward()?;
            let got = y.sum_all()?.affine(factor, 0.0)?.backward()?;
            for var in vars.iter().chain([&x]) {
                let want = want.get(var).expect("a gradient");
                close(got.get(var).expect("a gradient"), want, 1e-5)?;
            }
            kept.push(got);
        }
    }
    Ok(())
}

#[test]
fn what_would_lose_a_gradient_is_an_error() -> Result<()> {
    for device in devices() {
        let x = var(&[4, 4], 1, DType::F32, device)?;
        let w = var(&[4, 4], 2, DType::F32, device)?;
        let outside = w.exp()?;
        let captured = outside.clone();
        let y = checkpoint(move |x| x * &captured, &x)?;
        let text = message(y.sum_all()?.backward());
        assert!(
            text.contains("checkpoint: f uses a tensor that tracks gradients and was not given"),
            "{text}"
        );
        // Given, it gets its gradient.
        let y = checkpoint_many(|xs| &xs[0] * &xs[1], &[&x, &outside])?;
        let grads = y.sum_all()?.backward()?;
        close(
            grads.get(&w).expect("a gradient"),
            &(x.as_tensor() * &outside)?,
            1e-5,
        )?;

        // Another mask on each run.
        let seed = Arc::new(AtomicUsize::new(0));
        let y = checkpoint(
            move |x| dropout(x, 0.5, seed.fetch_add(1, Ordering::Relaxed) as u64),
            &x,
        )?;
        let text = message(y.sum_all()?.backward());
        assert!(
            text.contains("gave other values when it ran again"),
            "{text}"
        );

        // Another mask of a small part of the result.
        let (large, seed) = (
            (x.as_tensor() * 1000.0)?.to_dtype(DType::BF16)?,
            AtomicUsize::new(0),
        );
        let y = checkpoint(
            move |x| {
                let part = dropout(
                    &(x * 1e-2)?,
                    0.1,
                    seed.fetch_add(1, Ordering::Relaxed) as u64,
                )?;
                x + part
            },
            &large,
        )?;
        assert!(message(y.sum_all()?.backward()).contains("other values"));

        // A part that is small beside a large result, below the digits of its norm.
        let (large, seed) = ((x.as_tensor() * 1e4)?, AtomicUsize::new(0));
        let y = checkpoint(
            move |x| {
                let seed = seed.fetch_add(1, Ordering::Relaxed) as u64;
                x + dropout(&(x * 1e-6)?, 0.5, seed)?
            },
            &large,
        )?;
        assert!(message(y.sum_all()?.backward()).contains("other values"));

        // The same where a part of the result is not finite.
        let (hidden, seed) = (
            Tensor::new(&[0f32, 0.0, f32::NEG_INFINITY, f32::NAN], device)?,
            AtomicUsize::new(0),
        );
        for changes in [0, 1] {
            let hidden = hidden.clone();
            let start = seed.fetch_add(2, Ordering::Relaxed);
            let runs = AtomicUsize::new(start);
            let y = checkpoint(
                move |x| {
                    let seed = runs.fetch_add(changes, Ordering::Relaxed) as u64;
                    dropout(x, 0.5, seed)?.broadcast_add(&hidden)
                },
                &x,
            )?;
            let result = y.narrow(1, 0, 2)?.sum_all()?.backward();
            match changes {
                0 => drop(result?),
                _ => assert!(message(result).contains("other values")),
            }
        }

        // A variable that changes in between.
        let scale = w.clone();
        let y = checkpoint(move |x| x * scale.as_tensor(), &x)?;
        w.set(&w.ones_like()?)?;
        assert!(message(y.sum_all()?.backward()).contains("other values"));

        // Another variable, with the same values, on the second run.
        let runs = AtomicUsize::new(0);
        let twins = [
            var(&[4, 4], 3, DType::F32, device)?,
            var(&[4, 4], 3, DType::F32, device)?,
        ];
        let y = checkpoint(
            move |x| x * twins[runs.fetch_add(1, Ordering::Relaxed) % 2].as_tensor(),
            &x,
        )?;
        assert!(message(y.sum_all()?.backward()).contains("f reached 1 variables"));
        let runs = AtomicUsize::new(0);
        let y = checkpoint(
            move |x| x.narrow(0, 0, 1 + runs.fetch_add(1, Ordering::Relaxed) % 2),
            &x,
        )?;
        assert!(message(y.sum_all()?.backward()).contains("f gave shape"));
    }
    Ok(())
}

/// An error of f is passed on, in either run.
#[test]
fn errors_of_f_are_passed_on() -> Result<()> {
    let x = var(&[2, 3], 1, DType::F32, &Device::Cpu)?;
    assert!(checkpoint(|x| x.matmul(x), &x).is_err());
    let runs = AtomicUsize::new(0);
    let y = checkpoint(
        move |x| match runs.fetch_add(1, Ordering::Relaxed) {
            0 => x.exp(),
            _ => candle_core::bail!("the second run"),
        },
        &x,
    )?;
    assert!(message(y.sum_all()?.backward()).contains("the second run"));
    Ok(())
}

/// A layer that was built from a `VarBuilder`, whose variables only f knows.
#[test]
fn variables_of_layers_are_found() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let layer = candle_fused::nn::linear(6, 6, vb.pp("a"))?;
        let norm = candle_fused::nn::layer_norm(6, 1e-5, vb.pp("b"))?;
        let x = signal(&[3, 6], 1, DType::F32, device)?;
        let f = move |x: &Tensor| norm.forward(&layer.forward(x)?.gelu()?)?.sqr();
        let want = f(&x)?.sum_all()?.backward()?;
        // x tracks nothing; the variables do.
        let got = checkpoint(f, &x)?.sum_all()?.backward()?;
        assert_eq!(vars.all_vars().len(), 4);
        for var in vars.all_vars() {
            close(
                got.get(&var).expect("a gradient"),
                want.get(&var).expect("a gradient"),
                1e-5,
            )?;
        }
    }
    Ok(())
}

/// Two threads go back through one graph.
#[test]
fn threads_share_a_checkpoint() -> Result<()> {
    let x = var(&[8, 8], 1, DType::F32, &Device::Cpu)?;
    let w = var(&[8, 8], 2, DType::F32, &Device::Cpu)?;
    let weight = w.clone();
    let y = checkpoint(move |x| x.matmul(&weight)?.tanh(), &x)?;
    let want = x.matmul(&w)?.tanh()?.sum_all()?.backward()?;
    let want = want.get(&w).expect("a gradient");
    std::thread::scope(|scope| {
        let pass = || {
            for _ in 0..50 {
                let grads = y
                    .sum_all()
                    .and_then(|loss| loss.backward())
                    .expect("a backward");
                close(grads.get(&w).expect("a gradient"), want, 1e-5).expect("values");
            }
        };
        let other = scope.spawn(pass);
        pass();
        other.join().expect("the other thread");
    });
    Ok(())
}
