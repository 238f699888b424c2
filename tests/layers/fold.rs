//! Norms folded into convolutions.

use super::exact::{exactly, values};
use super::*;
use candle_fused::ops::{Act, ConvAlgo};
use candle_nn::BatchNorm;
use nn::Conv2dConfig;

const CHANNELS: usize = 6;

fn conv(dtype: DType, bias: bool, device: &Device) -> Result<nn::Conv2d> {
    let weight = (waves(&[CHANNELS, 2, 3, 3], DType::F32, device)? * 0.1)?.to_dtype(dtype)?;
    let bias = match bias {
        true => Some(waves(&[CHANNELS], dtype, device)?),
        false => None,
    };
    let config = Conv2dConfig {
        padding: 1,
        groups: 2,
        ..Default::default()
    };
    Ok(nn::Conv2d::new(weight, bias, config))
}

/// Of values that `rounded` holds, as `dtype`.
fn norm(
    channels: usize,
    affine: bool,
    [rounded, dtype]: [DType; 2],
    device: &Device,
) -> Result<BatchNorm> {
    let wave = |a, b| {
        let values = waves(&[channels], DType::F32, device)?.affine(a, b)?;
        values.to_dtype(rounded)?.to_dtype(dtype)
    };
    let (mean, var) = (wave(0.2, 0.3)?, wave(0.3, 1.5)?);
    match affine {
        true => BatchNorm::new(channels, mean, var, wave(-0.4, 1.0)?, wave(0.5, 0.0)?, 1e-3),
        false => BatchNorm::new_no_bias(channels, mean, var, 1e-3),
    }
}

/// The largest difference, relative to the largest value.
fn difference(ours: &Tensor, exact: &Tensor) -> Result<f64> {
    let (ours, exact) = (values(ours)?, values(exact)?);
    let size = exact.iter().fold(0f64, |m, x| m.max(x.abs()));
    let pairs = ours.iter().zip(&exact);
    Ok(pairs.fold(0f64, |m, (a, b)| m.max((a - b).abs())) / size)
}

#[test]
fn a_folded_norm_is_a_norm_that_follows() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            // A folded weight is rounded once more.
            let bound = match dtype {
                DType::F32 => 1e-5,
                DType::F16 => 2e-3,
                _ => 2e-2,
            };
            for (bias, affine) in [(true, true), (true, false), (false, true), (false, false)] {
                let what = format!("{dtype:?}, bias {bias}, affine {affine}");
                let conv = conv(dtype, bias, device)?;
                let x = waves(&[2, 4, 7, 8], dtype, device)?;
                let stock = candle_nn::Conv2d::new(
                    exactly(conv.weight())?,
                    conv.bias().map(exactly).transpose()?,
                    *conv.config(),
                );
                let convolved = stock.forward(&exactly(&x)?)?;
                // The norm may be more precise than the convolution.
                for norm_dtype in [dtype, DType::F32] {
                    let exact = norm(CHANNELS, affine, [norm_dtype, DType::F32], &Device::Cpu)?;
                    let exact = exact.forward_t(&convolved, false)?;
                    let norm = norm(CHANNELS, affine, [norm_dtype; 2], device)?;
                    let folded = conv.fold_batch_norm(&norm)?;
                    assert_eq!(folded.weight().dtype(), dtype);
                    let y = folded.forward(&x)?;
                    let off = difference(&y, &exact)?;
                    assert!(off < bound, "{what}: off by {off}");
                    let relu = folded.with_act(Act::Relu).forward(&x)?;
                    assert_eq!(values(&relu)?, values(&y.relu()?)?, "{what}");
                    let absorbed = conv.absorb_bn(&norm)?.forward(&x)?;
                    assert_eq!(values(&absorbed)?, values(&y)?, "{what}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn folding_ends_gradients_and_absorbing_keeps_them() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let conv = nn::conv2d(2, 3, 3, Conv2dConfig::default(), vb.pp("conv"))?
            .with_algo(ConvAlgo::ImplicitGemm);
        let norm = nn::batch_norm(3, 1e-5, vb.pp("norm"))?;
        let x = waves(&[1, 2, 5, 5], DType::F32, device)?;
        let folded = conv.fold_batch_norm(&norm)?;
        assert_eq!(folded.algo(), ConvAlgo::ImplicitGemm);
        assert!(!folded.forward(&x)?.track_op());
        let y = conv.absorb_bn(&norm)?.forward(&x)?;
        let grads = y.sum_all()?.backward()?;
        for (name, var) in vars.data().lock().unwrap().iter() {
            let statistics = name.contains("running");
            assert_eq!(grads.get(var).is_none(), statistics, "{name}");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fold() -> Result<()> {
    let device = &Device::Cpu;
    let conv = conv(DType::F32, true, device)?;
    let refused = |conv: &nn::Conv2d, norm: &BatchNorm| match conv.fold_batch_norm(norm) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    let error = refused(&conv, &norm(5, true, [DType::F32; 2], device)?);
    let says = "Conv2d::fold_batch_norm: got a norm of 5 channels, expected the 6";
    assert!(error.starts_with(says), "{error}");
    let norm = norm(CHANNELS, true, [DType::F32; 2], device)?;
    let error = refused(&conv.with_act(Act::Relu), &norm);
    assert!(
        error.contains("got a layer with Relu before the norm"),
        "{error}"
    );
    Ok(())
}
