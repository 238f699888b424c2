//! Convolutions that stock Candle, the reference of the other layers, can't be one for.

use super::*;
use crate::devices::devices;

#[test]
fn groups_and_dilation() -> Result<()> {
    let cases = [
        Conv2dConfig {
            groups: 2,
            padding: 1,
            ..Default::default()
        },
        Conv2dConfig {
            dilation: 2,
            stride: 2,
            ..Default::default()
        },
    ];
    for device in devices() {
        for conv in cases {
            let weight = waves(&[6, 4 / conv.groups, 3, 3], 1.0, DType::F32, device)?;
            let base = Conv2d::new(weight.clone(), None, conv);
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
            let layer = LoraConv2d::new(
                base.clone(),
                &LoraConfig {
                    rank: 2,
                    alpha: 3.0,
                    ..config()
                },
                vb,
            )?;
            let adapter = layer.adapters().adapter("default").expect("the adapter");
            for var in adapter.vars() {
                var.set(&waves(var.dims(), 4.0, DType::F32, device)?)?;
            }
            // B's groups laid out as one dense matrix [6, 2], zero off its blocks.
            let b = adapter.b().flatten_from(1)?;
            let dense = match conv.groups {
                1 => b,
                _ => {
                    let zero = b.narrow(0, 0, 3)?.zeros_like()?;
                    let top = Tensor::cat(&[&b.narrow(0, 0, 3)?, &zero], 1)?;
                    let bottom = Tensor::cat(&[&zero, &b.narrow(0, 3, 3)?], 1)?;
                    Tensor::cat(&[top, bottom], 0)?
                }
            };
            let delta =
                (dense.matmul(&adapter.a().flatten_from(1)?)? * 1.5)?.reshape((6, 4, 3, 3))?;
            let x = waves(&[2, 4, 9, 8], 0.1, DType::F32, device)?;
            let ungrouped = Conv2dConfig { groups: 1, ..conv };
            let expected =
                (base.forward(&x)? + Conv2d::new(delta, None, ungrouped).forward(&x)?)?;
            assert_close(&layer.forward(&x)?, &expected, 2e-5, &format!("{conv:?}"))?;
        }
    }
    Ok(())
}

/// Stock Candle convolves no bf16 on the CPU.
#[test]
fn bf16_is_f32_rounded() -> Result<()> {
    let conv = Conv2dConfig {
        groups: 2,
        padding: 1,
        stride: 2,
        ..Default::default()
    };
    let run = |dtype, device: &Device| {
        let var = |dims: &[usize], phase| {
            Var::from_tensor(&waves(dims, phase, DType::BF16, device)?.to_dtype(dtype)?)
        };
        let (weight, bias) = (var(&[6, 2, 3, 3], 1.0)?, var(&[6], 2.0)?);
        let (w, b) = (weight.as_tensor().clone(), bias.as_tensor().clone());
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, dtype, device);
        let config = LoraConfig {
            rank: 2,
            ..config()
        };
        let layer = LoraConv2d::new(Conv2d::new(w, Some(b), conv), &config, vb)?;
        for var in layer.adapter_vars() {
            let values = waves(var.dims(), 4.0, DType::BF16, device)?;
            var.set(&values.to_dtype(dtype)?)?;
        }
        let x = var(&[2, 4, 8, 7], 0.1)?;
        let y = layer.forward(&x)?;
        let grads = y.to_dtype(DType::F32)?.sum_all()?.backward()?;
        assert!(grads.get(&weight).is_none() && grads.get(&bias).is_none());
        let vars = layer.adapter_vars().into_iter().chain([x]);
        let grads = vars.map(|var| grads.get(&var).expect("a gradient").clone());
        Ok::<_, candle_core::Error>(grads.chain([y]).collect::<Vec<_>>())
    };
    for device in devices() {
        let (ours, exact) = (run(DType::BF16, device)?, run(DType::F32, device)?);
        for (ours, exact) in ours.iter().zip(exact) {
            let what = format!("{:?} on {:?}", ours.shape(), device.location());
            assert_close(ours, &exact.to_dtype(DType::BF16)?, 3e-2, &what)?;
        }
    }
    Ok(())
}

/// The loss is linear in each argument, so that a difference of any width is its gradient.
#[test]
fn gradients() -> Result<()> {
    let plain = Conv2dConfig::default();
    let cases = [
        (
            Conv2dConfig {
                stride: 2,
                padding: 1,
                ..plain
            },
            [8, 5],
        ),
        (
            Conv2dConfig {
                groups: 2,
                padding: 1,
                ..plain
            },
            [5, 4],
        ),
        (
            Conv2dConfig {
                dilation: 2,
                stride: 3,
                ..plain
            },
            [10, 9],
        ),
    ];
    for device in devices() {
        for (conv, [height, width]) in cases {
            let weight = waves(&[6, 4 / conv.groups, 3, 3], 1.0, DType::F32, device)?;
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
            let config = LoraConfig {
                rank: 2,
                ..config()
            };
            let layer = LoraConv2d::new(Conv2d::new(weight, None, conv), &config, vb)?;
            let x = Var::from_tensor(&waves(&[2, 4, height, width], 0.1, DType::F32, device)?)?;
            let loss = || {
                let y = layer.forward_t(&x, true)?;
                (&y * waves(y.dims(), 0.9, DType::F32, device)?)?.sum_all()
            };
            for var in layer.adapter_vars() {
                var.set(&waves(var.dims(), 4.0, DType::F32, device)?)?;
            }
            let grads = loss()?.backward()?;
            for (i, var) in layer.adapter_vars().iter().chain([&x]).enumerate() {
                let grad = values(grads.get(var).expect("a gradient"))?;
                let start = values(var)?;
                let set = |values: Vec<f64>| {
                    let values = Tensor::from_vec(values, var.shape(), &Device::Cpu)?;
                    var.set(&values.to_dtype(DType::F32)?.to_device(device)?)
                };
                for element in (0..start.len()).step_by(start.len() / 4 + 1) {
                    let at = |step: f64| -> Result<f64> {
                        let mut moved = start.clone();
                        moved[element] += step;
                        set(moved)?;
                        Ok(values(&loss()?)?[0])
                    };
                    let expected = at(0.5)? - at(-0.5)?;
                    let (got, bound) = (grad[element], 2e-4 * expected.abs().max(1.0));
                    let what = format!("{conv:?}, gradient {i}, element {element}");
                    assert!(
                        (got - expected).abs() < bound,
                        "{what}: {got} for {expected}"
                    );
                }
                set(start)?;
            }
        }
    }
    Ok(())
}
