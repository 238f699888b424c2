//! Transposed convolutions against the gradient by which they are defined.

use super::{reference, signal, values, Conv, Expected, ACTS, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{conv_transpose1d, conv_transpose2d, Act, Conv2dParams};
use candle_nn::{ConvTranspose1dConfig, ConvTranspose2dConfig};

/// x, w, bias and what comes of them. Here the convolution's y is x.
fn example(conv: &Conv, dtype: DType) -> Result<([Tensor; 3], Expected)> {
    let inputs = [
        signal(&conv.y, 1, dtype)?,
        (signal(&conv.w, 2, dtype)? / 8.0)?,
        (signal(&conv.x[1..2], 3, dtype)? / 2.0)?,
    ];
    let [x, w, bias] = &inputs;
    let mut sums = reference::grad_x(conv, &values(w)?, &values(x)?);
    sums.add_bias(&values(bias)?, conv.x[2] * conv.x[3]);
    Ok((inputs, Expected::new(sums, conv.x)))
}

fn at(inputs: &[Tensor; 3], device: &Device) -> Result<[Tensor; 3]> {
    let [x, w, bias] = inputs;
    let at = |t: &Tensor| t.to_device(device);
    Ok([at(x)?, at(w)?, at(bias)?])
}

#[test]
fn of_images() -> Result<()> {
    for device in devices() {
        let mut count = 0;
        for stride in [1, 2, 3] {
            for padding in [0, 1, 2] {
                for output_padding in [0, 1, 4] {
                    for dilation in [1, 2] {
                        for kernel in [1, 2, 3, 5] {
                            count += 1;
                            // Every value of every axis is in each seventh.
                            if !device.is_cpu() && count % 7 != 0 {
                                continue;
                            }
                            let config = ConvTranspose2dConfig {
                                padding,
                                output_padding,
                                stride,
                                dilation,
                            };
                            let dtype = DTYPES[count % 3];
                            image(config, kernel, dtype, ACTS[count % 10], device)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn image(
    config: ConvTranspose2dConfig,
    kernel: usize,
    dtype: DType,
    act: Act,
    device: &Device,
) -> Result<()> {
    // Few channels and more, which other algorithms are better at.
    let (c_out, c_in) = if kernel.is_multiple_of(2) {
        (3, 4)
    } else {
        (9, 8)
    };
    let (y, w) = ([2, c_out, 5, 6], [c_out, c_in, kernel, kernel]);
    let conv = Conv::transposed(y, w, config.into(), [config.output_padding; 2]);
    let (inputs, expected) = example(&conv, dtype)?;
    let [x, w, bias] = at(&inputs, device)?;
    let z = conv_transpose2d(&x, &w, Some(&bias), config, act)?;
    let what = format!("{dtype:?} {act:?} {config:?}, kernel of {kernel}");
    expected
        .by(&conv, Default::default())
        .after(act)?
        .check(&z, what)
}

/// Groups, for which Candle has a configuration in one dim only.
#[test]
fn of_sequences() -> Result<()> {
    for device in devices() {
        for (groups, stride, padding, output_padding, dilation) in [
            (1, 1, 0, 0, 1),
            (1, 2, 1, 1, 2),
            (2, 3, 2, 2, 1),
            (6, 2, 0, 1, 1),
        ] {
            for dtype in DTYPES {
                let config = ConvTranspose1dConfig {
                    padding,
                    output_padding,
                    stride,
                    dilation,
                    groups,
                };
                let (y, w) = ([2, 6, 1, 13], [6, 2, 1, 5]);
                let conv = Conv::transposed(y, w, config.into(), [0, output_padding]);
                let (inputs, expected) = example(&conv, dtype)?;
                let [x, w, bias] = at(&inputs, device)?;
                let (x, w) = (x.squeeze(2)?, w.squeeze(2)?);
                let z = conv_transpose1d(&x, &w, Some(&bias), config, Act::GeluTanh)?;
                let what = format!("{dtype:?} {config:?}");
                let expected = expected.after(Act::GeluTanh)?;
                expected.check(&z.unsqueeze(2)?, what)?;
            }
        }
    }
    Ok(())
}

/// Past the tiles of a device, and several blocks of a CPU.
#[test]
fn past_tiles() -> Result<()> {
    for device in devices() {
        let (y, w) = match device.is_cpu() {
            true => ([2, 70, 15, 17], [70, 67, 3, 3]),
            false => ([1, 37, 7, 6], [37, 35, 3, 3]),
        };
        for (stride, padding) in [(1, 1), (2, 1)] {
            let config = ConvTranspose2dConfig {
                padding,
                stride,
                ..Default::default()
            };
            let conv = Conv::transposed(y, w, config.into(), [0; 2]);
            for dtype in DTYPES {
                let (inputs, expected) = example(&conv, dtype)?;
                let [x, w, bias] = at(&inputs, device)?;
                let z = conv_transpose2d(&x, &w, Some(&bias), config, Act::Relu)?;
                let expected = expected.by(&conv, Default::default()).after(Act::Relu)?;
                expected.check(&z, format!("{dtype:?} {conv:?}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn gradients() -> Result<()> {
    for device in devices() {
        for (stride, padding, output_padding, dilation) in
            [(1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 4, 2), (2, 2, 0, 1)]
        {
            let config = ConvTranspose2dConfig {
                padding,
                output_padding,
                stride,
                dilation,
            };
            let window = Conv2dParams::from(config);
            let conv = Conv::transposed([2, 3, 5, 4], [3, 4, 3, 3], window, [output_padding; 2]);
            check_gradients(&conv, device, |[x, w, bias]| {
                conv_transpose2d(x, w, Some(bias), config, Act::Identity)
            })?;
        }
    }
    Ok(())
}

#[test]
fn gradients_of_groups() -> Result<()> {
    for device in devices() {
        for (groups, stride, padding) in [(2, 1, 0), (2, 3, 2), (6, 2, 1)] {
            let config = ConvTranspose1dConfig {
                padding,
                stride,
                groups,
                ..Default::default()
            };
            let conv = Conv::transposed([2, 6, 1, 7], [6, 2, 1, 5], config.into(), [0; 2]);
            check_gradients(&conv, device, |[x, w, bias]| {
                let (x, w) = (x.squeeze(2)?, w.squeeze(2)?);
                conv_transpose1d(&x, &w, Some(bias), config, Act::Identity)?.unsqueeze(2)
            })?;
        }
    }
    Ok(())
}

fn check_gradients(
    conv: &Conv,
    device: &Device,
    call: impl Fn(&[Tensor; 3]) -> Result<Tensor>,
) -> Result<()> {
    let (inputs, _) = example(conv, DType::F32)?;
    let [x, w, bias] = at(&inputs, device)?;
    let var = |t: Tensor| -> Result<Tensor> { Ok(Var::from_tensor(&t)?.into_inner()) };
    let args = [var(x)?, var(w)?, var(bias)?];
    let g = signal(&conv.x, 5, DType::F32)?;
    let grads = (call(&args)? * g.to_device(device)?)?.backward()?;
    let [x, w, bias] = &args;
    let got = |t: &Tensor| grads.get(t).expect("a gradient").clone();
    let (gs, xs, ws) = (values(&g)?, values(x)?, values(w)?);
    let flipped = Conv {
        // The bias belongs to what was x.
        y: conv.x,
        ..*conv
    };
    let dbias = reference::grad_bias(&flipped, &gs);
    for (name, sums, t, dims) in [
        ("x", reference::forward(conv, &gs, &ws), x, &conv.y[..]),
        ("w", reference::grad_w(conv, &gs, &xs), w, &conv.w),
        ("bias", dbias, bias, &conv.x[1..2]),
    ] {
        let want = Expected::new(sums, dims).by(conv, Default::default());
        want.check(&got(t), format!("gradient to {name}, {conv:?}"))?;
    }
    Ok(())
}
