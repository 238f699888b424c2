//! Absurd strides, paddings and dilations: an error, or a result if it is small, but no crash and no endless loop.

use super::signal;
use crate::devices::devices;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{conv1d, conv2d, conv_transpose1d, conv_transpose2d, Act};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig};

const ABSURD: [usize; 5] = [1 << 40, 1 << 60, usize::MAX / 2, usize::MAX - 1, usize::MAX];
/// Small enough for sequences to be computed, and too large for images.
const OF_SEQUENCES: usize = 1 << 12;
const OF_IMAGES: usize = 1 << 20;

/// The settings that a config has, each either small or absurd, in every combination.
fn settings(least: usize) -> impl Iterator<Item = [usize; 4]> {
    [least].into_iter().chain(ABSURD).flat_map(|absurd| {
        (1..16).map(move |bits: usize| {
            let small = [1, 1, 1, 0];
            [0, 1, 2, 3].map(|i| if bits >> i & 1 == 1 { absurd } else { small[i] })
        })
    })
}

/// A function with its name.
type Function<'a> = (&'a str, &'a dyn Fn(&Tensor, &Tensor) -> Result<Tensor>);

/// Calls it with and without gradients. Errors begin with its name.
fn check((name, call): Function, x: &[usize], w: &[usize], device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        if !device.is_cpu() && dtype == DType::F64 {
            continue;
        }
        let tensor = |dims, seed| Var::from_tensor(&signal(dims, seed, dtype)?.to_device(device)?);
        let (x, w) = (tensor(x, 1)?, tensor(w, 2)?);
        for result in [
            call(&x.detach(), &w.detach()).map(drop),
            call(&x, &w).and_then(|y| y.backward()).map(drop),
        ] {
            if let Err(error) = result {
                let error = error.to_string();
                assert!(error.starts_with(&format!("{name}: ")), "{name}: {error}");
            }
        }
    }
    Ok(())
}

#[test]
fn convolutions() -> Result<()> {
    for device in devices() {
        for groups in [1, 4] {
            for [stride, padding, dilation, _] in settings(OF_IMAGES) {
                let config = Conv2dConfig {
                    padding,
                    stride,
                    dilation,
                    groups,
                    cudnn_fwd_algo: None,
                };
                let call = |x: &Tensor, w: &Tensor| conv2d(x, w, None, config, Act::Relu);
                let w = [8, 4 / groups, 3, 2];
                check(("conv2d", &call), &[2, 4, 5, 6], &w, device)?;
            }
            for [stride, padding, dilation, _] in settings(OF_SEQUENCES) {
                let config = Conv1dConfig {
                    padding,
                    stride,
                    dilation,
                    groups,
                    cudnn_fwd_algo: None,
                };
                let call = |x: &Tensor, w: &Tensor| conv1d(x, w, None, config, Act::Relu);
                let w = [4, 4 / groups, 3];
                check(("conv1d", &call), &[1, 4, 6], &w, device)?;
            }
        }
    }
    Ok(())
}

#[test]
fn transposed() -> Result<()> {
    for device in devices() {
        for [stride, padding, dilation, output_padding] in settings(OF_IMAGES) {
            let config = ConvTranspose2dConfig {
                padding,
                output_padding,
                stride,
                dilation,
            };
            let call = |x: &Tensor, w: &Tensor| conv_transpose2d(x, w, None, config, Act::Relu);
            check(
                ("conv_transpose2d", &call),
                &[2, 4, 5, 6],
                &[4, 2, 3, 2],
                device,
            )?;
        }
        for [stride, padding, dilation, output_padding] in settings(OF_SEQUENCES) {
            let config = ConvTranspose1dConfig {
                padding,
                output_padding,
                stride,
                dilation,
                groups: 2,
            };
            let call = |x: &Tensor, w: &Tensor| conv_transpose1d(x, w, None, config, Act::Relu);
            check(("conv_transpose1d", &call), &[1, 4, 3], &[4, 1, 3], device)?;
        }
    }
    Ok(())
}

/// Views may have any size, too: of dims that no product of may overflow, and of more elements than memory has bytes.
#[test]
fn views() -> Result<()> {
    for device in devices() {
        let one = Tensor::zeros((1, 1, 1, 1), DType::F32, device)?;
        let none = Tensor::zeros((0, 1, 1, 1), DType::F32, device)?;
        let wide = |n: usize| one.broadcast_as((1, 1, n, n));
        let config = Conv2dConfig::default();
        for (x, w) in [
            (wide(1 << 40)?, wide(1 << 40)?),
            (wide(1 << 20)?, wide(1 << 20)?),
            (none.broadcast_as((0, 1, 1 << 40, 1 << 40))?, one.clone()),
            (one.clone(), none.broadcast_as((0, 1, 1 << 40, 1 << 40))?),
        ] {
            let error = conv2d(&x, &w, None, config, Act::Relu).unwrap_err();
            assert!(error.to_string().starts_with("conv2d: "), "{error}");
            let config = Default::default();
            let error = conv_transpose2d(&x, &w, None, config, Act::Relu).unwrap_err();
            assert!(
                error.to_string().starts_with("conv_transpose2d: "),
                "{error}"
            );
        }
        let groups = ConvTranspose1dConfig {
            groups: 1 << 60,
            ..Default::default()
        };
        let (x, w) = (
            none.squeeze(3)?,
            Tensor::zeros((0, 16, 1), DType::F32, device)?,
        );
        let x = x.reshape((1, 0, 1))?;
        assert!(conv_transpose1d(&x, &w, None, groups, Act::Relu).is_err());
    }
    Ok(())
}

/// Strides far larger than the kernel leave most outputs of a transposed convolution to the bias.
#[test]
fn outputs_that_no_pixel_reaches() -> Result<()> {
    for device in devices() {
        let x = Tensor::new(&[[[2f32, 3.]]], device)?;
        let w = Tensor::new(&[[[1f32, 10.]]], device)?;
        let bias = Tensor::new(&[0.5f32], device)?;
        let stride = 1 << 16;
        let config = ConvTranspose1dConfig {
            stride,
            output_padding: 5,
            ..Default::default()
        };
        let y = conv_transpose1d(&x, &w, Some(&bias), config, Act::Identity)?;
        let y = y.flatten_all()?.to_vec1::<f32>()?;
        let mut want = vec![0.5; stride + 2 + 5];
        (want[0], want[1]) = (2.5, 20.5);
        (want[stride], want[stride + 1]) = (3.5, 30.5);
        assert_eq!(y, want);
    }
    Ok(())
}

/// Padding that is much larger than the image, and no absurd one: the rates of a spatial pyramid on a small image. Only the
/// middle of the kernel meets pixels.
#[test]
fn a_small_image_in_a_large_padding() -> Result<()> {
    let (channels, rate) = (256, 256);
    let config = Conv2dConfig {
        padding: rate,
        dilation: rate,
        ..Default::default()
    };
    for device in devices() {
        let tensor = |dims: &[usize], seed| {
            Var::from_tensor(&signal(dims, seed, DType::F32)?.to_device(device)?)
        };
        let (x, w) = (
            tensor(&[1, channels, 8, 8], 1)?,
            tensor(&[1, channels, 3, 3], 2)?,
        );
        let y = conv2d(&x, &w, None, config, Act::Identity)?;
        let middle = w.narrow(2, 1, 1)?.narrow(3, 1, 1)?;
        let want = middle.broadcast_mul(&x)?.sum_keepdim(1)?;
        let (grads, expected) = (
            y.sqr()?.sum_all()?.backward()?,
            want.sqr()?.sum_all()?.backward()?,
        );
        let of = |grads: &GradStore, var: &Var| grads.get(var).expect("a gradient").clone();
        for (got, want) in [
            (y, want),
            (of(&grads, &x), of(&expected, &x)),
            (of(&grads, &w), of(&expected, &w)),
        ] {
            let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
            let error = (got - want)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(error <= 1e-5 * largest, "{error} of {largest}");
        }
    }
    Ok(())
}
