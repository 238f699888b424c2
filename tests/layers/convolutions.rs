//! Convolutions: stock's variables and outputs, and a weight that is prepared once or changes.

use super::exact::{assert_exact, check, exactly, values};
use super::*;
use candle_core::{Error, Var};
use candle_fused::ops::Conv2d as Op;
use candle_fused::ops::{self, Act, Conv2dParams, ConvAlgo};
use candle_nn::{Optimizer, SGD};
use nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig};

const PADDED: Conv2dConfig = Conv2dConfig {
    padding: 1,
    stride: 1,
    dilation: 1,
    groups: 1,
    cudnn_fwd_algo: None,
};

#[test]
fn conv2d() -> Result<()> {
    let strided = Conv2dConfig {
        stride: 2,
        groups: 2,
        ..PADDED
    };
    for config in [Conv2dConfig::default(), PADDED, strided] {
        check(
            &format!("{config:?}"),
            &[2, 4, 7, 6],
            |vb| candle_nn::conv2d(4, 6, 3, config, vb),
            |vb| nn::conv2d(4, 6, 3, config, vb),
        )?;
        check(
            &format!("{config:?} without bias"),
            &[2, 4, 7, 6],
            |vb| candle_nn::conv2d_no_bias(4, 6, 3, config, vb),
            |vb| nn::conv2d_no_bias(4, 6, 3, config, vb),
        )?;
    }
    Ok(())
}

#[test]
fn conv1d() -> Result<()> {
    let config = Conv1dConfig {
        padding: 2,
        stride: 2,
        dilation: 2,
        groups: 2,
        cudnn_fwd_algo: None,
    };
    check(
        "Conv1d",
        &[2, 4, 11],
        |vb| candle_nn::conv1d(4, 6, 3, config, vb),
        |vb| nn::conv1d(4, 6, 3, config, vb),
    )?;
    check(
        "Conv1d without bias",
        &[2, 4, 11],
        |vb| candle_nn::conv1d_no_bias(4, 6, 3, config, vb),
        |vb| nn::conv1d_no_bias(4, 6, 3, config, vb),
    )
}

#[test]
fn conv_transpose1d() -> Result<()> {
    let config = ConvTranspose1dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        dilation: 1,
        groups: 2,
    };
    check(
        "ConvTranspose1d",
        &[2, 4, 7],
        |vb| candle_nn::conv_transpose1d(4, 6, 3, config, vb),
        |vb| nn::conv_transpose1d(4, 6, 3, config, vb),
    )?;
    check(
        "ConvTranspose1d without bias",
        &[2, 4, 7],
        |vb| candle_nn::conv_transpose1d_no_bias(4, 6, 3, config, vb),
        |vb| nn::conv_transpose1d_no_bias(4, 6, 3, config, vb),
    )
}

#[test]
fn conv_transpose2d() -> Result<()> {
    let config = ConvTranspose2dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        dilation: 1,
    };
    check(
        "ConvTranspose2d",
        &[2, 4, 5, 4],
        |vb| candle_nn::conv_transpose2d(4, 3, 3, config, vb),
        |vb| nn::conv_transpose2d(4, 3, 3, config, vb),
    )?;
    check(
        "ConvTranspose2d without bias",
        &[2, 4, 5, 4],
        |vb| candle_nn::conv_transpose2d_no_bias(4, 3, 3, config, vb),
        |vb| nn::conv_transpose2d_no_bias(4, 3, 3, config, vb),
    )
}

/// Weight and bias of a convolution of 3 by 3.
fn parts(device: &Device) -> Result<(Tensor, Tensor)> {
    let weight = (waves(&[6, 4, 3, 3], DType::F32, device)? * 0.1)?;
    Ok((weight, waves(&[6], DType::F32, device)?))
}

#[test]
fn activations_follow() -> Result<()> {
    for device in devices() {
        let (weight, bias) = parts(device)?;
        let x = waves(&[2, 4, 7, 6], DType::F32, device)?;
        let line = |t: &Tensor| t.narrow(2, 0, 1)?.squeeze(2)?.contiguous();
        let (x1, w1) = (line(&x)?, line(&weight)?);
        let (x_t, w_t) = (x.narrow(1, 0, 2)?, weight.reshape((2, 12, 3, 3))?);
        let (b, b_t) = (Some(bias), Some(waves(&[12], DType::F32, device)?));
        let exact = |t: &Option<Tensor>| t.as_ref().map(exactly).transpose();
        let stock: [&dyn Module; 3] = [
            &candle_nn::Conv2d::new(exactly(&weight)?, exact(&b)?, PADDED),
            &candle_nn::Conv1d::new(exactly(&w1)?, exact(&b)?, Conv1dConfig::default()),
            &candle_nn::ConvTranspose2d::new(exactly(&w_t)?, exact(&b_t)?, Default::default()),
        ];
        let act = Act::GeluTanh;
        let ours: [&dyn Module; 3] = [
            &nn::Conv2d::new(weight, b.clone(), PADDED).with_act(act),
            &nn::Conv1d::new(w1, b, Conv1dConfig::default()).with_act(act),
            &nn::ConvTranspose2d::new(w_t, b_t, Default::default()).with_act(act),
        ];
        for ((ours, stock), x) in ours.iter().zip(stock).zip([x, x1, x_t]) {
            let exact = stock.forward(&exactly(&x)?)?.gelu()?;
            assert_exact(&ours.forward(&x)?, &exact, "without gradients")?;
            let x = Var::from_tensor(&x)?;
            assert_exact(&ours.forward(&x)?, &exact, "with gradients")?;
        }
    }
    Ok(())
}

#[test]
fn stock_layers_convert() -> Result<()> {
    for device in devices() {
        let (weight, bias) = parts(device)?;
        let stock = candle_nn::Conv2d::new(weight, Some(bias), PADDED);
        let ours = nn::conv::Conv2d::from(stock.clone());
        assert_eq!(ours.config(), stock.config());
        assert_eq!(values(ours.weight())?, values(stock.weight())?);
        assert_eq!(ours.bias().map(Tensor::dims), Some([6].as_slice()));
        assert_eq!((ours.act(), ours.algo()), (Act::Identity, ConvAlgo::Auto));
    }
    Ok(())
}

#[test]
fn a_prepared_weight_gives_the_same_bits() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let (weight, bias) = parts(device)?;
            let (weight, bias) = (weight.to_dtype(dtype)?, bias.to_dtype(dtype)?);
            let algo = ConvAlgo::Winograd;
            let layer = nn::Conv2d::new(weight.clone(), Some(bias.clone()), PADDED).with_algo(algo);
            let clone = layer.clone().with_act(Act::Relu);
            for size in [[8, 8], [5, 9], [8, 8]] {
                let x = waves(&[2, 4, size[0], size[1]], dtype, device)?;
                for (layer, act) in [(&layer, Act::Identity), (&clone, Act::Relu)] {
                    let plain = ops::conv2d_with(&x, &weight, Some(&bias), PADDED, act, algo)?;
                    assert_eq!(values(&layer.forward(&x)?)?, values(&plain)?);
                    // Its gradient to x, as well.
                    let (x, y) = (Var::from_tensor(&x)?, Var::from_tensor(&x)?);
                    let plain = ops::conv2d_with(&y, &weight, Some(&bias), PADDED, act, algo)?;
                    let ours = layer.forward(&x)?.sum_all()?.backward()?;
                    let plain = plain.sum_all()?.backward()?;
                    let grad = |grads: &candle_core::backprop::GradStore, var: &Var| {
                        values(grads.get(var).expect("a gradient"))
                    };
                    assert_eq!(grad(&ours, &x)?, grad(&plain, &y)?);
                }
            }
            // A layer's text has no numbers in it.
            assert!(format!("{layer:?}").len() < 600, "{layer:?}");
        }
    }
    Ok(())
}

#[test]
fn a_variable_is_read_anew() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let layer = nn::conv2d(4, 6, 3, PADDED, vb)?.with_algo(ConvAlgo::Winograd);
        let x = waves(&[1, 4, 8, 8], DType::F32, device)?;
        let mut sgd = SGD::new(vars.all_vars(), 0.01)?;
        let before = layer.forward(&x)?;
        sgd.backward_step(&before.sqr()?.mean_all()?)?;
        let after = layer.forward(&x)?;
        let frozen = nn::Conv2d::new(
            layer.weight().copy()?.detach(),
            layer.bias().map(Tensor::detach),
            PADDED,
        )
        .with_algo(ConvAlgo::Winograd);
        let (before, after) = (values(&before)?, values(&after)?);
        assert!(before != after, "the step changed nothing");
        let new = values(&frozen.forward(&x)?)?;
        assert!(after == new, "not the new weight's outputs");
    }
    Ok(())
}

#[test]
fn errors_name_what_was_given() -> Result<()> {
    let device = &Device::Cpu;
    let (weight, bias) = parts(device)?;
    let x = waves(&[1, 3, 8, 8], DType::F32, device)?;
    let text = |result: Result<Tensor>| match result {
        Ok(_) => Err(Error::msg("accepted")),
        Err(error) => Ok(error.to_string()),
    };
    let layer = nn::Conv2d::new(weight, Some(bias), PADDED);
    let error = text(layer.forward(&x))?;
    assert!(error.starts_with("conv2d: got weight"), "{error}");
    let layer = nn::ConvTranspose1d::new(x, None, ConvTranspose1dConfig::default());
    let error = text(layer.forward(&waves(&[1, 3, 8], DType::F32, device)?))?;
    assert!(
        error.starts_with("conv_transpose1d: got weight of shape"),
        "{error}"
    );
    Ok(())
}

/// What was made of a weight is of no use for another one, nor for itself once it has been overwritten.
#[test]
fn a_kept_weight_is_recognised() -> Result<()> {
    let device = Device::Cpu;
    let random = |dims| Tensor::rand(-1f32, 1., dims, &device);
    let x = random((1, 8, 12, 12))?;
    let op =
        Op::new(Conv2dParams::default(), Act::Identity, ConvAlgo::Winograd).with_weight_cache();
    let plain = Op::new(Conv2dParams::default(), Act::Identity, ConvAlgo::Winograd);
    for outputs in [8, 3, 16, 8] {
        let w = random((outputs, 8, 3, 3))?;
        let (got, want) = (
            x.apply_op2_no_bwd(&w, &op)?,
            x.apply_op2_no_bwd(&w, &plain)?,
        );
        assert_eq!(bits(&got)?, bits(&want)?, "{outputs}");
    }

    // One element more or less is another weight, wherever it is.
    let w = random((8, 8, 3, 3))?;
    for at in [0, 4, 8, 300, 575] {
        let one = Tensor::arange(0u32, 576, &device)?
            .eq(at)?
            .to_dtype(DType::F32)?;
        let other = (&w + one.reshape((8, 8, 3, 3))?)?;
        for w in [&w, &other, &w] {
            let got = x.apply_op2_no_bwd(w, &op)?;
            assert_eq!(bits(&got)?, bits(&x.apply_op2_no_bwd(w, &plain)?)?, "{at}");
        }
    }

    let var = Var::from_tensor(&random((8, 8, 3, 3))?)?;
    let config = Conv2dConfig::default();
    let layer = nn::Conv2d::new(var.as_detached_tensor(), None, config);
    let layer = layer.with_algo(ConvAlgo::Winograd);
    layer.forward(&x)?;
    var.set(&random((8, 8, 3, 3))?)?;
    let want = x.apply_op2_no_bwd(&var.as_detached_tensor(), &plain)?;
    assert_eq!(bits(&layer.forward(&x)?)?, bits(&want)?);
    Ok(())
}

fn bits(t: &Tensor) -> Result<Vec<u32>> {
    let values = t.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}
