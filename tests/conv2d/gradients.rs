//! Gradients to x, weight and bias against the loops, of all dtypes.

use super::{reference, signal, values, window, Conv, Expected, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{conv2d, Act, Conv2dParams};
use candle_fused::reference::activation;

fn convs() -> Vec<Conv> {
    let uneven = Conv2dParams {
        stride: [1, 2],
        padding: [2, 1],
        dilation: [2, 1],
        groups: 1,
    };
    vec![
        Conv::new([2, 5, 9, 7], [6, 5, 3, 3], window(1, 1, 1, 1)),
        Conv::new([3, 4, 8, 5], [3, 4, 1, 1], window(1, 0, 1, 1)),
        // Strides that leave pixels at the end unread.
        Conv::new([2, 3, 10, 9], [4, 3, 3, 3], window(2, 0, 1, 1)),
        Conv::new([2, 3, 11, 9], [4, 3, 2, 2], window(3, 1, 2, 1)),
        // Pixels between the windows.
        Conv::new([1, 2, 9, 9], [3, 2, 2, 2], window(3, 0, 1, 1)),
        Conv::new([2, 4, 8, 7], [6, 2, 3, 3], window(1, 1, 1, 2)),
        Conv::new([2, 6, 9, 8], [6, 1, 5, 5], window(1, 2, 1, 6)),
        Conv::new([2, 3, 9, 8], [6, 1, 3, 3], window(2, 1, 1, 3)),
        Conv::new([2, 3, 9, 10], [4, 3, 3, 4], uneven),
        Conv::new([1, 2, 11, 12], [2, 2, 7, 7], window(2, 3, 1, 1)),
        Conv::new([1, 18, 6, 5], [20, 9, 3, 3], window(2, 1, 1, 2)),
    ]
}

/// Larger ones, past tiles and blocks, and with many positions to sum over.
fn large(device: &Device) -> Vec<Conv> {
    match device.is_cpu() {
        true => vec![
            Conv::new([2, 37, 29, 31], [41, 37, 3, 3], window(1, 1, 1, 1)),
            Conv::new([2, 33, 28, 28], [66, 33, 3, 3], window(2, 1, 1, 1)),
            Conv::new([4, 64, 14, 14], [65, 64, 1, 1], window(1, 0, 1, 1)),
            Conv::new([3, 48, 28, 28], [48, 1, 3, 3], window(1, 1, 1, 48)),
        ],
        false => vec![
            Conv::new([2, 9, 7, 6], [34, 9, 3, 3], window(1, 1, 1, 1)),
            Conv::new([1, 3, 33, 35], [4, 3, 2, 3], window(1, 1, 1, 1)),
            Conv::new([1, 2, 33, 35], [34, 2, 2, 2], window(1, 0, 1, 1)),
            Conv::new([2, 4, 17, 16], [4, 1, 3, 3], window(1, 1, 1, 4)),
            Conv::new([1, 4, 33, 35], [6, 2, 2, 2], window(1, 0, 1, 2)),
        ],
    }
}

fn var(t: &Tensor, device: &Device) -> Result<Tensor> {
    Ok(Var::from_tensor(&t.to_device(device)?)?.into_inner())
}

fn check(conv: &Conv, dtype: DType, device: &Device) -> Result<()> {
    let inputs = conv.inputs(dtype)?;
    let [x, w, bias] = &inputs;
    let g = signal(&conv.y, 4, dtype)?;
    let (vx, vw, vb) = (var(x, device)?, var(w, device)?, var(bias, device)?);
    let y = conv2d(&vx, &vw, Some(&vb), conv.window, Act::Identity)?;
    let grads = (y * g.to_device(device)?)?.backward()?;
    let (xs, ws, gs) = (values(x)?, values(w)?, values(&g)?);
    let dx = Expected::new(reference::grad_x(conv, &ws, &gs), conv.x);
    let dw = Expected::new(reference::grad_w(conv, &xs, &gs), conv.w);
    let dbias = Expected::new(reference::grad_bias(conv, &gs), &conv.w[..1]);
    let dx = dx.by(conv, Default::default());
    for (name, t, want) in [("x", &vx, dx), ("w", &vw, dw), ("bias", &vb, dbias)] {
        let got = grads.get(t).expect("a gradient");
        assert_eq!(got.dtype(), dtype);
        want.check(got, format!("gradient to {name}, {dtype:?} {conv:?}"))?;
    }
    Ok(())
}

#[test]
fn agree() -> Result<()> {
    for device in devices() {
        for conv in convs() {
            for dtype in DTYPES {
                check(&conv, dtype, device)?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_large_ones_agree() -> Result<()> {
    for device in devices() {
        for conv in large(device) {
            for dtype in DTYPES {
                check(&conv, dtype, device)?;
            }
        }
    }
    Ok(())
}

/// x, w and g may be stored in any order of their dims: stock's backward on Metal fails to see that.
#[test]
fn of_transposed_kernels() -> Result<()> {
    for device in devices() {
        let conv = Conv::new([2, 3, 6, 7], [4, 3, 3, 2], window(1, 1, 1, 1));
        let [x, w, bias] = conv.inputs(DType::F32)?;
        let g = signal(&conv.y, 4, DType::F32)?;
        let stored = |t: &Tensor| var(&t.transpose(0, 1)?.contiguous()?, device);
        let (vx, vw) = (stored(&x)?, stored(&w)?);
        let g_stored = g.transpose(1, 3)?.contiguous()?.to_device(device)?;
        let bias = bias.to_device(device)?;
        let (tx, tw) = (vx.transpose(0, 1)?, vw.transpose(0, 1)?);
        let y = conv2d(&tx, &tw, Some(&bias), conv.window, Act::Identity)?;
        let grads = (y * g_stored.transpose(1, 3)?)?.backward()?;
        let (xs, ws, gs) = (values(&x)?, values(&w)?, values(&g)?);
        for (t, sums, dims) in [
            (&vx, reference::grad_x(&conv, &ws, &gs), conv.x),
            (&vw, reference::grad_w(&conv, &xs, &gs), conv.w),
        ] {
            let got = grads.get(t).expect("a gradient").transpose(0, 1)?;
            Expected::new(sums, dims).check(&got, "transposed")?;
        }
        assert!(grads.get(&bias).is_none());
    }
    Ok(())
}

/// What needs no gradient gets none.
#[test]
fn of_some_alone() -> Result<()> {
    for device in devices() {
        let conv = Conv::new([2, 3, 6, 7], [4, 3, 3, 2], window(1, 1, 1, 1));
        let inputs = conv.inputs(DType::F32)?;
        for alone in 0..3 {
            let mut args = Vec::new();
            for (i, t) in inputs.iter().enumerate() {
                args.push(match i == alone {
                    true => var(t, device)?,
                    false => t.to_device(device)?,
                });
            }
            let y = conv2d(&args[0], &args[1], Some(&args[2]), conv.window, Act::Silu)?;
            let grads = y.backward()?;
            for (i, t) in args.iter().enumerate() {
                assert_eq!(grads.get(t).is_some(), i == alone, "argument {i}");
            }
        }
    }
    Ok(())
}

/// act(conv(x)) trains as the two ops do one after the other.
#[test]
fn through_activations() -> Result<()> {
    for device in devices() {
        let conv = Conv::new([2, 3, 6, 7], [4, 3, 3, 2], window(2, 1, 1, 1));
        for act in [Act::Silu, Act::GeluTanh, Act::Relu] {
            let inputs = conv.inputs(DType::F32)?;
            let g = signal(&conv.y, 4, DType::F32)?;
            let [x, w, bias] = &inputs;
            let (vx, vw, vb) = (var(x, device)?, var(w, device)?, var(bias, device)?);
            let y = conv2d(&vx, &vw, Some(&vb), conv.window, act)?;
            let grads = (y * g.to_device(device)?)?.backward()?;
            // dz = g·act′(z) by Candle's autograd in f64.
            let z = conv.expected(&inputs)?.values;
            let z = Tensor::from_vec(z, &conv.y, &Device::Cpu)?;
            let z = Var::from_tensor(&z)?;
            let y = (activation::reference(&z, act)? * g.to_dtype(DType::F64)?)?;
            let dz = values(y.backward()?.get(&z).expect("a gradient"))?;
            let (xs, ws) = (values(x)?, values(w)?);
            for (name, t, sums, dims) in [
                ("x", &vx, reference::grad_x(&conv, &ws, &dz), &conv.x[..]),
                ("w", &vw, reference::grad_w(&conv, &xs, &dz), &conv.w),
                ("bias", &vb, reference::grad_bias(&conv, &dz), &conv.w[..1]),
            ] {
                let mut want = Expected::new(sums, dims);
                // dz itself has errors of f32.
                want.slack.iter_mut().for_each(|slack| *slack *= 2.0);
                let got = grads.get(t).expect("a gradient");
                want.check(got, format!("gradient to {name} through {act:?}"))?;
            }
        }
    }
    Ok(())
}
