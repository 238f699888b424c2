//! Shapes of models and awkward ones: past every tile, block and thread, windows of unequal sides, nothing at all.

use super::{window, Conv, ACTS, ALGOS, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{
    conv1d, conv2d, conv2d_with, conv_transpose2d, Act, Conv2d, Conv2dParams, ConvAlgo,
};
use candle_nn::Conv1dConfig;

/// f32 by each algorithm, and the other dtypes as `Auto` has it.
fn check(convs: &[Conv], device: &Device) -> Result<()> {
    for (i, conv) in convs.iter().enumerate() {
        for dtype in DTYPES {
            let inputs = conv.inputs(dtype)?;
            let expected = conv.expected(&inputs)?;
            let algos = if dtype == DType::F32 { 5 } else { 1 };
            for algo in &ALGOS[..algos] {
                let act = ACTS[i % ACTS.len()];
                let y = conv.run(&inputs, act, *algo, device)?;
                let what = format!("{dtype:?} {algo:?} {act:?} {conv:?}");
                expected.by(conv, *algo).after(act)?.check(&y, what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_models() -> Result<()> {
    let convs = [
        Conv::new([1, 3, 64, 64], [64, 3, 7, 7], window(2, 3, 1, 1)),
        Conv::new([1, 64, 56, 56], [64, 64, 3, 3], window(1, 1, 1, 1)),
        Conv::new([2, 37, 29, 31], [41, 37, 3, 3], window(1, 1, 1, 1)),
        Conv::new([2, 256, 14, 14], [64, 256, 1, 1], window(1, 0, 1, 1)),
        Conv::new([2, 128, 28, 28], [128, 1, 3, 3], window(1, 1, 1, 128)),
        Conv::new([1, 32, 28, 28], [64, 8, 3, 3], window(2, 1, 1, 4)),
        Conv::new([1, 19, 17, 15], [130, 19, 3, 3], window(1, 2, 2, 1)),
    ];
    let reduced = std::env::var("CANDLE_FUSED_TEST_GRID").as_deref() == Ok("reduced");
    for device in devices().iter().filter(|device| device.is_cpu()) {
        check(if reduced { &convs[4..5] } else { &convs }, device)?;
    }
    Ok(())
}

/// Small enough for an emulated device, large enough for several tiles of each kind.
#[test]
fn past_tiles() -> Result<()> {
    for device in devices() {
        check(
            &[
                Conv::new([1, 19, 9, 11], [67, 19, 3, 3], window(1, 1, 1, 1)),
                Conv::new([1, 67, 7, 10], [33, 67, 1, 1], window(1, 0, 1, 1)),
                Conv::new([1, 6, 5, 18], [20, 3, 3, 3], window(1, 1, 1, 2)),
                Conv::new([1, 4, 5, 9], [80, 2, 3, 3], window(1, 1, 1, 2)),
            ],
            device,
        )?;
    }
    Ok(())
}

#[test]
fn unequal_sides() -> Result<()> {
    let uneven = Conv2dParams {
        stride: [2, 1],
        padding: [0, 2],
        dilation: [1, 3],
        groups: 1,
    };
    let convs = [
        Conv::new([2, 3, 11, 14], [5, 3, 4, 3], uneven),
        Conv::new(
            [1, 4, 9, 10],
            [6, 2, 2, 5],
            Conv2dParams {
                groups: 2,
                ..uneven
            },
        ),
        Conv::new(
            [1, 6, 9, 10],
            [6, 1, 3, 2],
            Conv2dParams {
                groups: 6,
                ..uneven
            },
        ),
        // Kernels of one row and of one column.
        Conv::new([2, 4, 5, 40], [3, 4, 1, 9], window(1, 0, 1, 1)),
        Conv::new([2, 4, 40, 5], [3, 4, 9, 1], window(3, 0, 1, 1)),
        // Of one pixel, with and without padding.
        Conv::new([2, 5, 1, 1], [7, 5, 1, 1], window(1, 0, 1, 1)),
        Conv::new([2, 5, 1, 1], [7, 5, 3, 3], window(1, 1, 1, 1)),
        // More padding than image.
        Conv::new([1, 2, 2, 3], [3, 2, 2, 2], window(2, 4, 1, 1)),
        // A stride past the whole image.
        Conv::new([1, 2, 5, 4], [3, 2, 2, 3], window(9, 0, 1, 1)),
    ];
    for device in devices() {
        check(&convs, device)?;
    }
    Ok(())
}

/// Places so far apart that the CPU copies what each of them sees; with blocks of less than an image, and groups.
#[test]
fn wide_gaps() -> Result<()> {
    let convs = [
        Conv::new([2, 3, 5, 5], [52, 3, 3, 3], window(1, 5, 5, 1)),
        Conv::new([2, 4, 6, 4], [120, 2, 3, 2], window(1, 9, 7, 2)),
        Conv::new([1, 40, 33, 33], [66, 40, 3, 3], window(1, 24, 24, 1)),
    ];
    for device in devices() {
        check(if device.is_cpu() { &convs } else { &convs[..1] }, device)?;
    }
    Ok(())
}

#[test]
fn long_rows() -> Result<()> {
    let convs = [
        Conv::new([1, 1, 3, 5000], [2, 1, 3, 3], window(1, 1, 1, 1)),
        Conv::new([1, 2, 3, 700], [2, 1, 3, 3], window(1, 1, 1, 2)),
    ];
    for device in devices() {
        check(if device.is_cpu() { &convs } else { &convs[1..] }, device)?;
    }
    Ok(())
}

#[test]
fn of_one_dim() -> Result<()> {
    let configs = [(0, 1, 1, 1), (2, 1, 2, 1), (1, 2, 1, 2), (3, 3, 1, 6)];
    for device in devices() {
        for (padding, stride, dilation, groups) in configs {
            let config = Conv1dConfig {
                padding,
                stride,
                dilation,
                groups,
                cudnn_fwd_algo: None,
            };
            for dtype in DTYPES {
                let w = [12, 6 / groups, 1, 5];
                let conv = Conv::new([2, 6, 1, 29], w, config.into());
                let inputs = conv.inputs(dtype)?;
                let [x, w, bias] = &inputs;
                let line = |t: &Tensor| t.squeeze(2)?.to_device(device);
                let (x, w, bias) = (line(x)?, line(w)?, bias.to_device(device)?);
                let y = conv1d(&x, &w, Some(&bias), config, Act::Silu)?;
                let want = conv.expected(&inputs)?.after(Act::Silu)?;
                want.check(&y.unsqueeze(2)?, format!("{dtype:?} {config:?}"))?;
            }
        }
    }
    Ok(())
}

/// Without channels the bias is left, and without images, outputs or pixels nothing is.
#[test]
fn of_nothing() -> Result<()> {
    let same = window(1, 1, 1, 1);
    for device in devices() {
        check(
            &[
                Conv::new([2, 0, 5, 4], [3, 0, 3, 3], same),
                Conv::new([0, 2, 5, 4], [3, 2, 3, 3], same),
                Conv::new([2, 2, 5, 4], [0, 2, 3, 3], same),
                Conv::new([2, 2, 0, 4], [3, 2, 1, 1], same),
                Conv::new([2, 4, 0, 4], [4, 1, 1, 1], window(1, 1, 1, 4)),
            ],
            device,
        )?;
        // Candle itself can start no backward from an empty tensor on Metal.
        if !device.is_cpu() {
            continue;
        }
        for (x, w) in [
            ([0, 2, 5, 4], [3, 2, 3, 3]),
            ([2, 2, 0, 4], [3, 2, 1, 1]),
            ([2, 0, 5, 4], [3, 0, 3, 3]),
            ([2, 2, 5, 4], [0, 2, 3, 3]),
        ] {
            let conv = Conv::new(x, w, same);
            let full = |value: f32, dims: [usize; 4]| {
                Tensor::full(value, &dims, &Device::Cpu)?.to_device(device)
            };
            let (x, w, g) = (full(1.0, x)?, full(1.0, w)?, full(1.0, conv.y)?);
            let (x, w) = (Var::from_tensor(&x)?, Var::from_tensor(&w)?);
            let y = conv2d(&x, &w, None, same, Act::Identity)?;
            let grads = (y * g)?.backward()?;
            assert_eq!(grads.get(&x).expect("a gradient").dims(), conv.x);
            let dw = grads.get(&w).expect("a gradient");
            assert_eq!(dw.dims(), conv.w);
            assert!(super::values(dw)?.iter().all(|v| *v == 0.0), "{conv:?}");
        }
    }
    Ok(())
}

/// A blur of ones: 27 terms of 0.1 inside, 18 at an edge, 12 in a corner.
#[test]
fn golden() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones((1, 3, 5, 6), DType::F32, device)?;
        let w = Tensor::full(0.1f32, (1, 3, 3, 3), device)?;
        for algo in ALGOS {
            let conv = Conv::new([1, 3, 5, 6], [1, 3, 3, 3], window(1, 1, 1, 1));
            let bias = Tensor::zeros(1, DType::F32, device)?;
            let inputs = [x.clone(), w.clone(), bias];
            let y = conv.run(&inputs, Act::Identity, algo, device)?;
            for (i, got) in super::values(&y)?.into_iter().enumerate() {
                let inside = |at: usize, size: usize| usize::from(at > 0 && at + 1 < size);
                let want = [1.2, 1.8, 2.7][inside(i / 6, 5) + inside(i % 6, 6)];
                assert!((got - want).abs() < 2e-5, "{algo:?}: {got} for {want}");
            }
        }
        let config = candle_nn::Conv2dConfig::default();
        let y = conv2d(&x, &w, None, config, Act::Identity)?;
        let stock = x.conv2d(&w, 0, 1, 1, 1)?;
        assert_eq!(y.dims(), stock.dims());
    }
    Ok(())
}

#[test]
fn algorithms_have_a_default() {
    assert_eq!(ConvAlgo::default(), ConvAlgo::Auto);
}

/// Strides past the image, over columns of one pixel, and with kernels of one element that see little of it.
#[test]
fn strides_that_pass_over_pixels() -> Result<()> {
    let by = |stride, padding| Conv2dParams {
        stride,
        padding,
        ..Conv2dParams::default()
    };
    let convs = [
        Conv::new([1, 1, 8, 1], [1, 1, 1, 1], by([1, 2], [0, 0])),
        Conv::new([2, 3, 1, 9], [4, 3, 1, 1], by([5, 1], [0, 0])),
        Conv::new([1, 2, 13, 17], [5, 2, 1, 1], by([4, 5], [3, 7])),
        Conv::new([1, 2, 13, 17], [5, 2, 1, 1], by([2, 16], [2, 0])),
        Conv::new([1, 3, 12, 11], [4, 3, 1, 3], by([5, 2], [1, 1])),
        Conv::new([1, 3, 20, 19], [4, 3, 3, 3], by([7, 9], [0, 1])),
        Conv::new([1, 1, 3, 2], [2, 1, 3, 1], by([1 << 40, 3], [0, 0])),
        Conv::new(
            [1, 9, 14, 15],
            [5, 9, 3, 3],
            Conv2dParams {
                padding: [12, 13],
                dilation: [12, 13],
                ..Conv2dParams::default()
            },
        ),
    ];
    for device in devices() {
        check(&convs, device)?;
    }
    Ok(())
}

/// Stock's own gradients of these fail.
#[test]
fn f64_trains() -> Result<()> {
    let conv = Conv::new([1, 2, 5, 6], [3, 2, 3, 3], window(2, 1, 1, 1));
    let inputs = conv.inputs(DType::F64)?;
    let [x, w, bias] = inputs.each_ref().map(Var::from_tensor);
    let (x, w, bias) = (x?, w?, bias?);
    let y = conv2d(&x, &w, Some(&bias), conv.window, Act::Identity)?;
    conv.expected(&inputs)?.check(&y, "f64")?;
    let grads = y.sum_all()?.backward()?;
    assert!([&x, &w, &bias].iter().all(|v| grads.get(v).is_some()));
    let mps = conv.run(&inputs, Act::Identity, ConvAlgo::Mps, &Device::Cpu);
    assert!(mps.unwrap_err().to_string().contains("Mps"));
    Ok(())
}

/// f64 is computed by the reference, which takes views of every layout.
#[test]
fn f64_trains_on_views() -> Result<()> {
    let conv = Conv::new([2, 3, 5, 6], [3, 3, 3, 3], window(2, 1, 1, 1));
    let plain = Conv::new([2, 3, 5, 6], [3, 3, 3, 3], window(1, 0, 1, 1));
    for conv in [conv, plain] {
        let inputs = conv.inputs(DType::F64)?;
        let stored = |t: &Tensor| Var::from_tensor(&t.transpose(2, 3)?.contiguous()?);
        let (x, w) = (stored(&inputs[0])?, stored(&inputs[1])?);
        let (tx, tw) = (x.transpose(2, 3)?, w.transpose(2, 3)?);
        let y = conv2d(&tx, &tw, Some(&inputs[2]), conv.window, Act::Identity)?;
        conv.expected(&inputs)?.check(&y, "f64 of views")?;
        let grads = y.backward()?;
        assert!([&x, &w].iter().all(|v| grads.get(v).is_some()));
        let z = conv_transpose2d(&tx, &tw, None, Default::default(), Act::Identity)?;
        let grads = z.backward()?;
        assert!([&x, &w].iter().all(|v| grads.get(v).is_some()));
        let (line, kernel) = (tx.get(0)?.transpose(0, 1)?, tw.get(0)?.transpose(0, 1)?);
        let (line, kernel) = (line.narrow(1, 0, 3)?, kernel.narrow(1, 0, 3)?);
        conv1d(&line, &kernel, None, Default::default(), Act::Identity)?.backward()?;
    }
    Ok(())
}

/// As far off as [`ConvAlgo::Winograd`] says that it is at most: single taps on pixels that are all as large, whose transforms
/// cancel the most.
#[test]
fn winograd_is_within_its_bound() -> Result<()> {
    let mut state = 1u32;
    let mut pixel = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let size = 1.0 - (state >> 20) as f32 / 1e6;
        if state >> 31 == 0 {
            size
        } else {
            -size
        }
    };
    for round in 0..2000 {
        let x: Vec<f32> = (0..36).map(|_| pixel()).collect();
        let (row, col) = (round % 9 / 3, round % 3);
        let tap = 0.938f32;
        let mut w = [0f32; 36];
        for output in 0..4 {
            w[output * 9 + row * 3 + col] = tap;
        }
        let y = conv2d_with(
            &Tensor::from_slice(&x, (1, 1, 6, 6), &Device::Cpu)?,
            &Tensor::from_slice(&w, (4, 1, 3, 3), &Device::Cpu)?,
            None,
            window(1, 0, 1, 1),
            Act::Identity,
            ConvAlgo::Winograd,
        )?;
        for y in y.squeeze(0)?.to_vec3::<f32>()? {
            for (i, y) in y.into_iter().enumerate() {
                for (j, y) in y.into_iter().enumerate() {
                    let want = f64::from(tap) * f64::from(x[(i + row) * 6 + j + col]);
                    let error = (f64::from(y) - want).abs() / f64::from(tap);
                    assert!(error <= 1e-4, "{error}");
                }
            }
        }
    }
    Ok(())
}

/// Winograd's sums have other last bits than a product's, by which one can tell what has run.
#[test]
fn algorithms_are_those_that_are_asked_for() -> Result<()> {
    let bits = |conv: &Conv, inputs: &[Tensor; 3], algo| -> Result<Vec<u32>> {
        let y = conv.run(inputs, Act::Identity, algo, &Device::Cpu)?;
        let y = y.flatten_all()?.to_vec1::<f32>()?;
        Ok(y.into_iter().map(f32::to_bits).collect())
    };
    for (conv, auto) in [
        (
            Conv::new([1, 64, 56, 56], [64, 64, 3, 3], window(1, 1, 1, 1)),
            ConvAlgo::Winograd,
        ),
        (
            Conv::new([1, 64, 14, 14], [64, 64, 3, 3], window(2, 1, 1, 1)),
            ConvAlgo::ImplicitGemm,
        ),
        (
            Conv::new([1, 8, 14, 14], [8, 1, 3, 3], window(1, 1, 1, 8)),
            ConvAlgo::Direct,
        ),
    ] {
        let inputs = conv.inputs(DType::F32)?;
        let [x, w, _] = &inputs;
        let runs = |algo| Conv2d::new(conv.window, Act::Identity, algo).algorithm(x, w);
        assert_eq!(runs(ConvAlgo::Auto)?, auto, "{conv:?}");
        assert_eq!(
            bits(&conv, &inputs, ConvAlgo::Auto)?,
            bits(&conv, &inputs, auto)?
        );
        let differ = bits(&conv, &inputs, ConvAlgo::Winograd)?
            != bits(&conv, &inputs, ConvAlgo::ImplicitGemm)?;
        let winograd = runs(ConvAlgo::Winograd)?;
        assert_eq!(differ, winograd == ConvAlgo::Winograd, "{conv:?}");
    }
    Ok(())
}
