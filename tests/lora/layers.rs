//! Each layer's values and gradients.

use super::*;
use crate::devices::devices;
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

#[test]
fn it_starts_as_its_base() -> Result<()> {
    for device in devices() {
        for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            for shape in SHAPES {
                // Stock Candle convolves no bf16 on the CPU.
                if shape == Shape::Conv2d && dtype == DType::BF16 && device.is_cpu() {
                    continue;
                }
                let what = format!("{shape:?} {dtype:?} {:?}", device.location());
                let built = build(shape, &config(), dtype, device)?;
                let (y, stock) = (built.eval()?, built.stock.forward(&built.x)?);
                assert_close(&y, &stock, bound, &what)?;
                built.adapters.disable();
                assert_same(&y, &built.eval()?, &what)?;

                let built = build(shape, &dora(), dtype, device)?;
                assert_close(&built.eval()?, &stock, bound, &format!("{what} DoRA"))?;
            }
        }
    }
    Ok(())
}

/// B is zero and A is Kaiming-uniform, or an embedding's A is zero and B normal.
#[test]
fn initial_values_are_pefts() -> Result<()> {
    let device = &Device::Cpu;
    let wide = |in_dim, out_dim| {
        let base = Linear::new(Tensor::zeros((out_dim, in_dim), DType::F32, device)?, None);
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let layer = LoraLinear::new(
            base,
            &LoraConfig {
                rank: 16,
                ..config()
            },
            vb,
        )?;
        layer
            .adapters()
            .adapter("default")
            .ok_or_else(|| candle_core::Error::msg("no adapter"))
    };
    let adapter = wide(100, 50)?;
    let a = values(adapter.a())?;
    let most = a.iter().fold(0f64, |m, x| m.max(x.abs()));
    // Uniform within 1/√100: the mean square is a third of the bound's, ±10 % in 1,600 draws.
    assert!(most <= 0.1 && most > 0.095, "the largest of A is {most}");
    let square = a.iter().map(|x| x * x).sum::<f64>() / a.len() as f64;
    assert!(
        (square * 300.0 - 1.0).abs() < 0.1,
        "the mean square of A is {square}"
    );
    assert!(values(adapter.b())?.iter().all(|x| *x == 0.0));

    let base = Embedding::new(Tensor::zeros((50, 100), DType::F32, device)?, 100);
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
    let layer = LoraEmbedding::new(
        base,
        &LoraConfig {
            rank: 16,
            ..config()
        },
        vb,
    )?;
    let adapter = layer.adapters().adapter("default").expect("the adapter");
    assert!(values(adapter.a())?.iter().all(|x| *x == 0.0));
    let b = values(adapter.b())?;
    let square = b.iter().map(|x| x * x).sum::<f64>() / b.len() as f64;
    assert!(
        (square - 1.0).abs() < 0.2,
        "the mean square of B is {square}"
    );
    Ok(())
}

/// The gradients to the adapter's variables and, unless it is an index, to x.
fn gradients(built: &Built, reference: bool) -> Result<(Tensor, Vec<Tensor>)> {
    let mut vars = built.adapters.adapter_vars();
    let mut input = built.x.clone();
    if input.dtype() == DType::F32 {
        let x = Var::from_tensor(&input)?;
        input = x.as_tensor().clone();
        vars.push(x);
    }
    let y = match reference {
        true => built.reference(&input)?,
        false => built.layer.forward_t(&input, true)?,
    };
    let weights = waves(y.dims(), 0.9, DType::F32, y.device())?;
    let grads = (&y * weights)?.sum_all()?.backward()?;
    for var in [&built.weight].into_iter().chain(&built.bias) {
        assert!(grads.get(var).is_none(), "the base gets a gradient");
    }
    let of = |var: &Var| grads.get(var).cloned().expect("a gradient");
    Ok((y, vars.iter().map(of).collect()))
}

/// The reference runs on the CPU: stock Candle's gradients of convolutions are wrong on Metal.
#[test]
fn values_and_gradients_are_those_of_the_whole_matrix() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            for config in [config(), dora()] {
                let what = format!("{shape:?} DoRA {} {:?}", config.use_dora, device.location());
                let built = build(shape, &config, DType::F32, device)?;
                let on_cpu = build(shape, &config, DType::F32, &Device::Cpu)?;
                for built in [&built, &on_cpu] {
                    built.stir("default")?;
                }
                let (y, ours) = gradients(&built, false)?;
                let (expected, theirs) = gradients(&on_cpu, true)?;
                assert_close(&y, &expected, 2e-5, &what)?;
                let count =
                    2 + usize::from(config.use_dora) + usize::from(shape != Shape::Embedding);
                assert_eq!((ours.len(), theirs.len()), (count, count), "{what}");
                for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let what = format!("{what}, gradient {i}");
                    let told = values(theirs)?.iter().any(|g| g.abs() > 1e-2);
                    assert!(told, "{what} says nothing");
                    assert_close(ours, theirs, 5e-5, &what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn sixteen_bits() -> Result<()> {
    for device in devices() {
        for (dtype, bound) in [(DType::F16, 8e-3), (DType::BF16, 6e-2)] {
            for shape in SHAPES {
                for config in [config(), dora()] {
                    let what = format!("{shape:?} {dtype:?} DoRA {}", config.use_dora);
                    let exact = build(shape, &config, DType::F32, device)?;
                    let built = build(shape, &config, dtype, device)?;
                    for built in [&exact, &built] {
                        built.stir("default")?;
                    }
                    let expected = exact.eval()?.to_dtype(dtype)?;
                    assert_close(&built.eval()?, &expected, bound, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// An adapter in f32 beside a base of 16 bits is trained in f32.
#[test]
fn an_adapter_may_be_more_precise_than_its_base() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            let built = build_with(shape, &dora(), (DType::BF16, DType::F32), device)?;
            built.stir("default")?;
            let exact = build(shape, &dora(), DType::F32, device)?;
            exact.stir("default")?;
            let y = built.eval()?;
            let what = format!("{shape:?}");
            assert_close(&y, &exact.eval()?.to_dtype(DType::BF16)?, 6e-2, &what)?;
            let grads = y.to_dtype(DType::F32)?.sum_all()?.backward()?;
            for var in built.adapters.adapter_vars() {
                assert_eq!(var.dtype(), DType::F32);
                let grad = grads.get(&var).expect("a gradient");
                assert_eq!(grad.dtype(), DType::F32);
                assert!(values(grad)?.iter().any(|g| *g != 0.0));
            }
        }
    }
    Ok(())
}

/// The base's weight lies a low-rank step away from the target's: the adapter alone finds that step.
#[test]
fn training_finds_a_low_rank_change() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            for config in [config(), dora()] {
                let built = build(shape, &config, DType::F32, device)?;
                built.stir("default")?;
                let target = built.eval()?.detach();
                let built = build(shape, &config, DType::F32, device)?;
                let before = values(&built.weight)?;

                let params = ParamsAdamW {
                    lr: 0.03,
                    weight_decay: 0.0,
                    ..Default::default()
                };
                let mut adam = AdamW::new(built.adapters.adapter_vars(), params)?;
                let loss = || {
                    (built.layer.forward_t(&built.x, true)? - &target)?
                        .sqr()?
                        .mean_all()
                };
                let start = loss()?.to_scalar::<f32>()?;
                // A software device takes its time.
                let (steps, share) = if device.is_cpu() {
                    (120, 0.05)
                } else {
                    (12, 0.8)
                };
                for _ in 0..steps {
                    adam.backward_step(&loss()?)?;
                }
                let end = loss()?.to_scalar::<f32>()?;
                let what = format!("{shape:?} DoRA {}", config.use_dora);
                assert!(
                    end < share * start,
                    "{what}: the loss went from {start} to {end}"
                );
                assert_eq!(
                    values(&built.weight)?,
                    before,
                    "{what}: the base has changed"
                );
            }
        }
    }
    Ok(())
}
