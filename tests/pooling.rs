//! Pooling and resizing: stock Candle's values, gradients that it has none for, and a small network of them.

use crate::devices::devices;
use candle_core::utils::barrier_pool;
use candle_core::{DType, Device, Module, ModuleT, Result, Tensor, Var};
use candle_fused::ops::{self, Pool2dParams};
use candle_fused::reference::{pool2d, upsample};
use candle_fused::FusedTensorOps;
use candle_nn::{VarBuilder, VarMap};
use std::sync::Mutex;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn waves(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    let wave = |i| (i as f32 * 0.37).sin() * 3.0 + (i % 7) as f32 * 0.1;
    let values: Vec<f32> = (0..count).map(wave).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// Waves with NaNs at the beginning of windows and elsewhere, infinities, and a plane of nothing else.
fn specials(dtype: DType) -> Result<Tensor> {
    let mut values = waves(&[2, 3, 11, 13], DType::F32)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    for i in [0, 5, 27, 40, 41, 100, 300, 420] {
        values[i] = f32::NAN;
    }
    for i in [9, 60, 200, 201] {
        values[i] = f32::INFINITY;
        values[i + 22] = f32::NEG_INFINITY;
    }
    values[5 * 143..].fill(f32::NEG_INFINITY);
    values[4 * 143..5 * 143].fill(f32::NAN);
    Tensor::from_vec(values, (2, 3, 11, 13), &Device::Cpu)?.to_dtype(dtype)
}

fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()
}

#[track_caller]
fn assert_same(got: &Tensor, want: &Tensor, tolerance: f64) -> Result<()> {
    assert_eq!(got.dims(), want.dims());
    for (i, (a, b)) in values(got)?.into_iter().zip(values(want)?).enumerate() {
        let near = a == b || (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(near || (a.is_nan() && b.is_nan()), "{i}: {a} for {b}");
    }
    Ok(())
}

/// A pixel's own size, on average.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-6,
        // Stock rounds after each addition.
        DType::F16 => 2e-2,
        _ => 2e-1,
    }
}

#[test]
fn values_are_those_of_stock() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let x = specials(dtype)?;
            let here = x.to_device(device)?;
            for (kernel, stride) in [
                ((2, 2), (2, 2)),
                ((3, 3), (2, 2)),
                ((3, 2), (1, 3)),
                ((11, 13), (1, 1)),
                ((1, 1), (4, 5)),
            ] {
                let params = Pool2dParams::new(kernel).with_stride(stride);
                let want = x.max_pool2d_with_stride(kernel, stride)?;
                assert_same(&ops::max_pool2d(&here, params)?, &want, 0.0)?;
                let want = x.avg_pool2d_with_stride(kernel, stride)?;
                assert_same(&ops::avg_pool2d(&here, params)?, &want, rounding(dtype))?;
            }
            for (h, w) in [
                (22, 26),
                (11, 13),
                (23, 40),
                (5, 4),
                (1, 1),
                (49, 13),
                (33, 39),
            ] {
                let want = x.upsample_nearest2d(h, w)?;
                assert_same(&ops::upsample_nearest2d(&here, h, w)?, &want, 0.0)?;
                for align_corners in [false, true] {
                    let want = x.upsample_bilinear2d(h, w, align_corners)?;
                    let got = ops::upsample_bilinear2d(&here, h, w, align_corners)?;
                    assert_same(&got, &want, rounding(dtype))?;
                }
            }
            let want = x.upsample_bilinear2d_with_scale(1.3, 2.6, false)?;
            let got = ops::upsample_bilinear2d_with_scale(&here, 1.3, 2.6, false)?;
            assert_same(&got, &want, rounding(dtype))?;
            let want = x.flatten_to(1)?.upsample_nearest1d(17)?;
            let got = ops::upsample_nearest1d(&here.flatten_to(1)?, 17)?;
            assert_same(&got, &want, 0.0)?;
        }
    }
    Ok(())
}

/// Indices of f64, which are not those of whole numbers everywhere.
#[test]
fn the_nearest_pixel_is_that_of_stock() -> Result<()> {
    for input in 1..60 {
        let x = Tensor::arange(0f32, input as f32, &Device::Cpu)?.reshape((1, 1, input))?;
        for output in 0..130 {
            let got = ops::upsample_nearest1d(&x, output)?;
            assert_same(&got, &x.upsample_nearest1d(output)?, 0.0)?;
        }
    }
    Ok(())
}

/// Σ y · g by hand.
fn gradient(x: &Tensor, call: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let x = Var::from_tensor(x)?;
    let y = call(&x)?;
    let g = waves(y.dims(), y.dtype())?.to_device(x.device())?;
    let grads = (y * g)?.sum_all()?.backward()?;
    Ok(grads.get(&x).expect("a gradient").clone())
}

/// Padding is never the maximum, a window of equal pixels gives all to its first one, and a NaN that comes first takes all.
#[test]
fn the_first_maximum_gets_the_gradient() -> Result<()> {
    let nan = f32::NAN;
    for device in devices() {
        let of = |x: [[f32; 3]; 3], params| {
            let x = Tensor::new(&[[x]], device)?;
            let x = Var::from_tensor(&x)?;
            let y = ops::max_pool2d(&x, params)?;
            let g = Tensor::arange(1f32, 1.0 + y.elem_count() as f32, device)?;
            let loss = (y.flatten_all()? * g)?;
            values(loss.backward()?.get(&x).expect("a gradient"))
        };
        let dense = Pool2dParams::new(2).with_stride(1);
        assert_eq!(
            of([[5.; 3]; 3], dense)?,
            [1., 2., 0., 3., 4., 0., 0., 0., 0.]
        );
        let lowest = [[f32::NEG_INFINITY; 3]; 3];
        let padded = Pool2dParams::new(3).with_stride(2).with_padding(1);
        assert_eq!(of(lowest, padded)?, [1., 2., 0., 3., 4., 0., 0., 0., 0.]);
        let mixed = [[nan, 1., 2.], [0., nan, 2.], [7., 7., 7.]];
        assert_eq!(of(mixed, dense)?, [1., 0., 2., 0., 4., 0., 3., 0., 0.]);
        let zeros = [[-0., 0., -1.], [0., -0., -1.], [-1., -1., -1.]];
        assert_eq!(of(zeros, dense)?, [1., 2., 0., 3., 4., 0., 0., 0., 0.]);
    }
    Ok(())
}

/// Bands of a large plane, which share windows, and planes of one column.
#[test]
fn gradients_of_large_planes_are_those_of_the_reference() -> Result<()> {
    for (dims, params) in [
        (
            [1, 2, 500, 301],
            Pool2dParams::new(3).with_stride(2).with_padding(1),
        ),
        (
            [1, 1, 3000, 40],
            Pool2dParams::new((5, 3))
                .with_stride((2, 1))
                .with_padding((2, 1)),
        ),
        (
            [2, 1, 9000, 11],
            Pool2dParams::new((2, 3)).with_stride((5, 4)),
        ),
        (
            [1, 1, 700, 1],
            Pool2dParams::new((9, 1)).with_stride((2, 1)),
        ),
    ] {
        // Many equal numbers, so that there are many maxima.
        let x = (waves(&dims, DType::F32)? * 2.0)?.round()?;
        let got = gradient(&x, |x| ops::max_pool2d(x, params))?;
        let want = gradient(&x, |x| pool2d::reference_max(x, params))?;
        assert_same(&got, &want, 1e-6)?;
        let got = gradient(&x, |x| ops::avg_pool2d(x, params))?;
        let want = gradient(&x, |x| pool2d::reference_avg(x, params))?;
        assert_same(&got, &want, 1e-5)?;
    }
    Ok(())
}

#[test]
fn gradients_have_the_same_bits_on_one_thread() -> Result<()> {
    let x = waves(&[2, 5, 160, 200], DType::BF16)?;
    let params = Pool2dParams::new(3).with_stride(2).with_padding(1);
    let run = || -> Result<Vec<Vec<f64>>> {
        [
            gradient(&x, |x| ops::max_pool2d(x, params)),
            gradient(&x, |x| ops::avg_pool2d(x, params)),
            gradient(&x, |x| ops::upsample_nearest2d(x, 333, 270)),
            gradient(&x, |x| ops::upsample_bilinear2d(x, 320, 400, false)),
        ]
        .into_iter()
        .map(|dx| values(&dx?))
        .collect()
    };
    // Inside the pool everything stays on the worker that asks.
    let alone = Mutex::new(None);
    barrier_pool().execute(|thread| {
        if thread == 0 {
            *alone.lock().unwrap() = Some(run());
        }
    });
    assert_eq!(run()?, alone.into_inner().unwrap().unwrap()?);
    Ok(())
}

/// Stock's gradient of `upsample_nearest2d` takes the place of what other uses of x have given.
#[test]
fn another_use_of_x_keeps_its_gradient() -> Result<()> {
    for device in devices() {
        let x = waves(&[1, 2, 3, 4], DType::F32)?.to_device(device)?;
        let x = Var::from_tensor(&x)?;
        let squares = x.sqr()?.sum_all()?;
        let y = (ops::upsample_nearest2d(&x, 6, 8)?.sum_all()? + squares)?;
        let got = y.backward()?.get(&x).expect("a gradient").clone();
        assert_same(&got, &((x.as_tensor() * 2.0)? + 4.0)?, 1e-6)?;
    }
    Ok(())
}

#[test]
fn a_size_of_nothing_gives_no_gradient_but_zeros() -> Result<()> {
    let x = Var::from_tensor(&waves(&[1, 2, 3, 4], DType::F32)?)?;
    let y = ops::upsample_nearest2d(&x, 0, 8)?;
    assert_eq!(y.dims(), [1, 2, 0, 8]);
    let grads = y.backward()?;
    assert_same(grads.get(&x).expect("a gradient"), &x.zeros_like()?, 0.0)
}

/// The methods are Candle's under another name, of integers too.
#[test]
fn methods_take_what_stock_takes() -> Result<()> {
    let x = waves(&[1, 2, 8, 9], DType::F32)?;
    for x in [
        x.clone(),
        x.to_dtype(DType::F64)?,
        x.abs()?.to_dtype(DType::U8)?,
    ] {
        // f64 is not rounded to f32 on its way.
        let enough = if x.dtype() == DType::F64 { 1e-13 } else { 1e-6 };
        assert_same(&x.max_pool2d_fused(2)?, &x.max_pool2d(2)?, 0.0)?;
        let (got, want) = (
            x.max_pool2d_with_stride_fused((3, 2), (1, 2))?,
            x.max_pool2d_with_stride((3, 2), (1, 2))?,
        );
        assert_same(&got, &want, 0.0)?;
        assert_same(&x.avg_pool2d_fused((1, 3))?, &x.avg_pool2d((1, 3))?, enough)?;
        let (got, want) = (
            x.avg_pool2d_with_stride_fused(3, 2)?,
            x.avg_pool2d_with_stride(3, 2)?,
        );
        assert_same(&got, &want, enough)?;
        assert_same(
            &x.upsample_nearest2d_fused(11, 18)?,
            &x.interpolate2d(11, 18)?,
            0.0,
        )?;
        let line = x.flatten_to(1)?;
        assert_same(
            &line.upsample_nearest1d_fused(21)?,
            &line.interpolate1d(21)?,
            0.0,
        )?;
        let (got, want) = (
            x.upsample_bilinear2d_fused(5, 20, true)?,
            x.upsample_bilinear2d(5, 20, true)?,
        );
        assert_same(&got, &want, enough)?;
        let (got, want) = (
            x.upsample_bilinear2d_with_scale_fused(1.5, 2., false)?,
            x.upsample_bilinear2d_with_scale(1.5, 2., false)?,
        );
        assert_same(&got, &want, enough)?;
    }
    Ok(())
}

/// How a network pools and resizes.
struct Resizing {
    max: fn(&Tensor, Pool2dParams) -> Result<Tensor>,
    avg: fn(&Tensor, Pool2dParams) -> Result<Tensor>,
    nearest: fn(&Tensor, [usize; 2]) -> Result<Tensor>,
    bilinear: fn(&Tensor, [usize; 2]) -> Result<Tensor>,
}

const FUSED: Resizing = Resizing {
    max: ops::max_pool2d,
    avg: ops::avg_pool2d,
    nearest: |x, [h, w]| ops::upsample_nearest2d(x, h, w),
    bilinear: |x, [h, w]| ops::upsample_bilinear2d(x, h, w, false),
};

const COMPOSED: Resizing = Resizing {
    max: pool2d::reference_max,
    avg: pool2d::reference_avg,
    nearest: upsample::reference_nearest,
    bilinear: |x, size| upsample::reference_bilinear(x, size, false, None),
};

/// The stem of a ResNet, then down and up again as in a UNet, with a connection across.
fn loss(vb: VarBuilder, x: &Tensor, by: &Resizing) -> Result<Tensor> {
    let conv = |i, o, name: &str| {
        let config = candle_nn::Conv2dConfig {
            padding: 1,
            ..Default::default()
        };
        candle_fused::nn::conv2d(i, o, 3, config, vb.pp(name))
    };
    let norm = candle_nn::batch_norm(4, 1e-5, vb.pp("norm"))?;
    let x = conv(3, 4, "stem")?.forward(x)?;
    let x = norm.forward_t(&x, true)?.relu()?;
    let pooled = (by.max)(&x, Pool2dParams::new(3).with_stride(2).with_padding(1))?;
    let across = conv(4, 4, "across")?.forward(&pooled)?;
    let low = (by.avg)(&across, Pool2dParams::new(2).with_padding(1))?;
    let low = conv(4, 4, "low")?.forward(&low)?;
    let (_, _, height, width) = across.dims4()?;
    let up = ((by.nearest)(&low, [height, width])? + across)?;
    let up = conv(4, 2, "up")?.forward(&up)?;
    (by.bilinear)(&up, [11, 17])?.sqr()?.mean_all()
}

#[test]
fn a_small_network_gets_the_gradients_of_its_composed_form() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let x = waves(&[2, 3, 10, 15], DType::F32)?.to_device(device)?;
        loss(vb.clone(), &x, &FUSED)?;
        let mut named: Vec<_> = vars.data().lock().unwrap().clone().into_iter().collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        for (i, (_, var)) in named.iter().enumerate() {
            let start = waves(var.dims(), DType::F32)?.to_device(device)?;
            var.set(&(start * (0.1 + 0.01 * i as f64))?)?;
        }
        let got = loss(vb.clone(), &x, &FUSED)?.backward()?;
        let want = loss(vb, &x, &COMPOSED)?.backward()?;
        // The norm takes the bias before it away: its gradient is rounding beside the others.
        let trained = named.iter().filter(|(name, _)| !name.contains("running"));
        let mut seen = 0f64;
        for (name, var) in trained.rev() {
            let (got, want) = (got.get(var), want.get(var));
            let got = got.unwrap_or_else(|| panic!("no gradient to {name}"));
            let want = want.expect("the composed form reaches all");
            let largest = values(want)?.into_iter().fold(0f64, |m, v| m.max(v.abs()));
            seen = seen.max(largest);
            let bound = 1e-4 * largest.max(1e-2 * seen);
            for (a, b) in values(got)?.into_iter().zip(values(want)?) {
                assert!((a - b).abs() <= bound, "{name}: {a} for {b}");
            }
        }
    }
    Ok(())
}

/// A window that is the whole of a wide image, and one that reaches far over it.
#[test]
fn wide_windows_have_one_maximum() -> Result<()> {
    let row = waves(&[1, 1, 1, 90_000], DType::F32)?;
    let largest = f64::from(row.max_all()?.to_scalar::<f32>()?);
    for params in [
        Pool2dParams::new((1, 90_000)),
        Pool2dParams::new((1, 99_999)).with_padding((0, 20_000)),
    ] {
        let x = Var::from_tensor(&row)?;
        let y = ops::max_pool2d(&x, params)?;
        assert!(values(&y)?.contains(&largest));
        let dx = values(y.backward()?.get(&x).expect("a gradient"))?;
        assert_eq!(dx.iter().sum::<f64>(), y.elem_count() as f64);
        let first = values(&row)?.iter().position(|&v| v == largest);
        assert!(dx[first.expect("the largest")] > 0.0);
    }
    Ok(())
}
