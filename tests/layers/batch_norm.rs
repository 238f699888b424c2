//! Batch norm in training: outputs, running statistics and gradients are those of the stock layer, step after step.

use super::exact::values;
use super::*;
use candle_core::Var;
use nn::BatchNormConfig;

const CHANNELS: usize = 3;

type Forward = Box<dyn Fn(&Tensor, bool) -> Result<Tensor>>;

/// A layer, the variables it was made of, and what it does.
struct Trained {
    vars: VarMap,
    forward: Forward,
}

fn trained<L: ModuleT + 'static>(
    device: &Device,
    make: impl Fn(VarBuilder) -> Result<L>,
) -> Result<Trained> {
    let vars = VarMap::new();
    let layer = make(VarBuilder::from_varmap(&vars, DType::F32, device))?;
    for (name, var) in vars.data().lock().unwrap().iter() {
        let shift = if name == "running_var" { 4.0 } else { 0.1 };
        var.set(&waves(&[CHANNELS], DType::F32, device)?.affine(0.3, shift)?)?;
    }
    let forward = Box::new(move |x: &Tensor, train| layer.forward_t(x, train));
    Ok(Trained { vars, forward })
}

impl Trained {
    /// One step of gradient descent: the output and the gradient of x.
    fn step(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let x = Var::from_tensor(x)?;
        let y = (self.forward)(&x, true)?;
        let loss = ((y.sqr()? * 0.3)? + (&y * waves(y.dims(), DType::F32, y.device())?)?)?;
        let grads = loss.mean_all()?.backward()?;
        for (name, var) in self.vars.data().lock().unwrap().iter() {
            match grads.get(var) {
                Some(grad) => var.set(&(var.as_tensor() - (grad * 0.5)?)?)?,
                None => assert!(name.starts_with("running"), "no gradient to {name}"),
            }
        }
        Ok([y.detach(), grads.get(&x).expect("a gradient to x").clone()])
    }

    fn variables(&self) -> Vec<(String, Tensor)> {
        let vars = self.vars.data().lock().unwrap();
        let mut vars: Vec<_> = vars
            .iter()
            .map(|(name, var)| (name.clone(), var.as_tensor().clone()))
            .collect();
        vars.sort_by(|a, b| a.0.cmp(&b.0));
        vars
    }
}

#[test]
fn steps_are_stocks() -> Result<()> {
    let config = BatchNormConfig::default();
    let configs = [
        config,
        BatchNormConfig {
            affine: false,
            momentum: 0.3,
            ..config
        },
        BatchNormConfig {
            remove_mean: false,
            eps: 1e-3,
            ..config
        },
        BatchNormConfig { eps: 0.0, ..config },
    ];
    for device in devices() {
        for config in configs {
            for shape in [&[6, CHANNELS][..], &[2, CHANNELS, 5, 7], &[4, CHANNELS, 2]] {
                let stock = trained(device, |vb| candle_nn::batch_norm(CHANNELS, config, vb))?;
                let ours = trained(device, |vb| nn::batch_norm(CHANNELS, config, vb))?;
                for step in 0..4 {
                    let what = format!("{config:?} {shape:?}, step {step}");
                    let x = waves(shape, DType::F32, device)?.affine(0.5 + step as f64, 1.0)?;
                    let ([y, dx], [stock_y, stock_dx]) = (ours.step(&x)?, stock.step(&x)?);
                    assert_close(&y, &stock_y, &what)?;
                    assert_close(&dx, &stock_dx, &format!("{what}, gradient to x"))?;
                    for (ours, stock) in ours.variables().iter().zip(stock.variables()) {
                        assert_eq!(ours.0, stock.0, "{what}");
                        assert_close(&ours.1, &stock.1, &format!("{what}, {}", ours.0))?;
                    }
                    let [y, stock_y] = [(ours.forward)(&x, false)?, (stock.forward)(&x, false)?];
                    assert_close(&y, &stock_y, &format!("{what}, in evaluation"))?;
                }
            }
        }
    }
    Ok(())
}

/// One value for each channel has no variance to learn: stock's is NaN then, and so is ours.
#[test]
fn one_value_is_learnt_as_stock_learns_it() -> Result<()> {
    let device = &Device::Cpu;
    let stock = trained(device, |vb| candle_nn::batch_norm(CHANNELS, 1e-5, vb))?;
    let ours = trained(device, |vb| nn::batch_norm(CHANNELS, 1e-5, vb))?;
    let x = waves(&[1, CHANNELS], DType::F32, device)?;
    for trained in [&stock, &ours] {
        (trained.forward)(&x, true)?;
    }
    for (ours, stock) in ours.variables().iter().zip(stock.variables()) {
        let bits =
            |t: &Tensor| Result::Ok(values(t)?.into_iter().map(f64::to_bits).collect::<Vec<_>>());
        match ours.0.as_str() {
            "running_var" => assert!(values(&ours.1)?
                .iter()
                .chain(&values(&stock.1)?)
                .all(|x| x.is_nan())),
            name => assert_eq!(bits(&ours.1)?, bits(&stock.1)?, "{name}"),
        }
    }
    Ok(())
}

/// x of 16 bits, with statistics in f32: stock trains so, but has no evaluation for it.
#[test]
fn sixteen_bits_have_statistics_in_f32() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            let statistics = || -> Result<[Tensor; 2]> {
                let wave = waves(&[CHANNELS], DType::F32, device)?;
                Ok([wave.affine(0.1, 0.0)?, wave.affine(0.1, 2.0)?])
            };
            let vector = |a: f64| {
                waves(&[CHANNELS], DType::F32, device)?
                    .affine(0.2, a)?
                    .to_dtype(dtype)
            };
            let ([mean, var], weight, bias) = (statistics()?, vector(1.0)?, vector(0.0)?);
            let ours = nn::BatchNorm::new(CHANNELS, mean, var, weight.clone(), bias.clone(), 1e-5)?;
            let [mean, var] = statistics()?;
            let stock = candle_nn::BatchNorm::new(CHANNELS, mean, var, weight, bias, 1e-5)?;
            let x = waves(&[2, CHANNELS, 4, 5], dtype, device)?;
            let what = format!("{dtype:?}");
            assert_close(&ours.forward_train(&x)?, &stock.forward_train(&x)?, &what)?;
            assert_close(ours.running_mean(), stock.running_mean(), &what)?;
            assert_close(ours.running_var(), stock.running_var(), &what)?;
            let wide = nn::BatchNorm::new_no_bias(
                CHANNELS,
                ours.running_mean().detach(),
                ours.running_var().detach(),
                1e-5,
            )?;
            let y = wide.forward_t(&x, false)?;
            assert_eq!(y.dtype(), dtype);
            let exact = wide.forward_t(&x.to_dtype(DType::F32)?, false)?;
            assert_close(&y, &exact.to_dtype(dtype)?, &what)?;
        }
    }
    Ok(())
}

/// Images whose channels are neighbours in memory, and other views.
#[test]
fn views_are_read_rightly() -> Result<()> {
    for device in devices() {
        for shape in [[2, 5, 7, CHANNELS], [2, 1, 3, CHANNELS]] {
            let x = waves(&shape, DType::F32, device)?;
            let padded = Tensor::cat(&[&x, &(&x * 2.0)?], 3)?;
            let last = x.permute((0, 3, 1, 2))?;
            let views = [
                last.clone(),
                padded.narrow(3, 1, CHANNELS)?.permute((0, 3, 1, 2))?,
                last.transpose(2, 3)?,
            ];
            for view in views {
                let copy = view.force_contiguous()?;
                let layers = || trained(device, |vb| nn::batch_norm(CHANNELS, 1e-5, vb));
                let (a, b) = (layers()?, layers()?);
                for train in [true, false] {
                    let [a, b] = [(a.forward)(&view, train)?, (b.forward)(&copy, train)?];
                    assert_eq!(values(&a)?, values(&b)?, "{shape:?}");
                }
                // The gradient that reaches what is behind the view.
                let dx = |view: bool| {
                    let x = Var::from_tensor(&copy.permute((0, 2, 3, 1))?.force_contiguous()?)?;
                    let turned = x.permute((0, 3, 1, 2))?;
                    let turned = if view {
                        turned
                    } else {
                        turned.force_contiguous()?
                    };
                    let y = (layers()?.forward)(&turned, true)?;
                    let weights = waves(y.dims(), DType::F32, device)?;
                    let grads = (y * weights)?.sum_all()?.backward()?;
                    values(grads.get(&x).expect("a gradient"))
                };
                assert_eq!(dx(true)?, dx(false)?, "{shape:?}");
            }
        }
    }
    Ok(())
}

/// A stock layer as ours, which goes on where the stock layer was.
#[test]
fn stock_layers_convert() -> Result<()> {
    let device = &Device::Cpu;
    for remove_mean in [true, false] {
        let config = BatchNormConfig {
            remove_mean,
            eps: 1e-3,
            momentum: 0.4,
            affine: true,
        };
        let stock = |vars: &VarMap| {
            let vb = VarBuilder::from_varmap(vars, DType::F32, device);
            candle_nn::batch_norm(CHANNELS, config, vb)
        };
        let (stays, converts) = (stock(&VarMap::new())?, stock(&VarMap::new())?);
        let ours = nn::BatchNorm::from(converts.clone());
        assert_eq!((ours.eps(), ours.momentum()), (1e-3, 0.4));
        let x = waves(&[4, CHANNELS, 2], DType::F32, device)?;
        assert_close(
            &ours.forward_train(&x)?,
            &stays.forward_train(&x)?,
            "converted",
        )?;
        // The stock layer that was converted has learnt it too.
        for learnt in [ours.running_mean(), converts.running_mean()] {
            assert_close(learnt, stays.running_mean(), "the mean")?;
        }
        for learnt in [ours.clone().running_var(), converts.running_var()] {
            assert_close(learnt, stays.running_var(), "the variance")?;
        }
        // Both fold.
        let weight = waves(&[CHANNELS, 2, 1, 1], DType::F32, device)?;
        let conv = nn::Conv2d::new(weight, None, Default::default());
        let [a, b] = [
            conv.fold_batch_norm(&ours)?,
            conv.fold_batch_norm(&converts)?,
        ];
        assert_eq!(values(a.weight())?, values(b.weight())?);
    }
    Ok(())
}

#[test]
fn what_is_refused() -> Result<()> {
    let device = &Device::Cpu;
    let of = |n: usize| Tensor::ones(n, DType::F32, device);
    let new = |n, mean, weight, eps, momentum| -> Result<nn::BatchNorm> {
        nn::BatchNorm::new_with_momentum(n, of(mean)?, of(3)?, of(weight)?, of(3)?, eps, momentum)
    };
    let norm = new(3, 3, 3, 1e-5, 0.1)?;
    let vb = || VarBuilder::zeros(DType::F32, device);
    let x = |dims: &[usize]| Tensor::ones(dims, DType::F32, device);
    let refused = [
        ("eps = -1", new(3, 3, 3, -1.0, 0.1).map(drop)),
        ("momentum = 2", new(3, 3, 3, 1e-5, 2.0).map(drop)),
        (
            "running_mean of shape [4]",
            new(3, 4, 3, 1e-5, 0.1).map(drop),
        ),
        ("weight of shape [4]", new(3, 3, 4, 1e-5, 0.1).map(drop)),
        (
            "running_mean of shape [3]",
            new(5, 3, 3, 1e-5, 0.1).map(drop),
        ),
        ("eps = -1", nn::batch_norm(3, -1.0, vb()).map(drop)),
        ("x of shape [3]", norm.forward_train(&x(&[3])?).map(drop)),
        (
            "x of shape [2, 4]",
            norm.forward_train(&x(&[2, 4])?).map(drop),
        ),
        (
            "x of shape [2, 4]",
            norm.forward_t(&x(&[2, 4])?, false).map(drop),
        ),
    ];
    for (says, result) in refused {
        let text = result.expect_err(says).to_string();
        let start = format!("BatchNorm: got {says}, expected");
        assert!(text.starts_with(&start), "{text}");
    }
    Ok(())
}

/// The mean of a channel with infinities is infinite, as stock's, or NaN where both are among them; other channels are as without.
#[test]
fn infinities_stay_in_their_channel() -> Result<()> {
    for device in devices() {
        let mut x = vec![0f32; 3 * 40];
        for (i, x) in x.iter_mut().enumerate() {
            *x = (i as f32 * 0.7).sin();
        }
        // The channels of [2, 3, 20] that the places belong to are 0 and 2.
        (x[7], x[45], x[110]) = (f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY);
        let x = Tensor::from_vec(x, (2, 3, 20), device)?;
        let (_, mean, var) = candle_fused::ops::batch_norm_train(&x, None, None, 1e-5)?;
        let (mean, var) = (mean.to_vec1::<f32>()?, var.to_vec1::<f32>()?);
        let stock = x
            .transpose(0, 1)?
            .flatten_from(1)?
            .mean(1)?
            .to_vec1::<f32>()?;
        assert_eq!((mean[0], stock[0]), (f32::INFINITY, f32::INFINITY));
        assert!((mean[1] - stock[1]).abs() < 1e-6);
        assert!(mean[2].is_nan() && stock[2].is_nan());
        assert!(!var[0].is_finite() && var[1].is_finite() && !var[2].is_finite());
    }
    Ok(())
}
