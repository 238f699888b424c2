//! What convolutions refuse: always an error, and one that says what came and what is accepted.

use super::window;
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{
    conv1d, conv2d, conv2d_with, conv_transpose1d, conv_transpose2d, linear, matmul_act, Act,
    Conv2d, Conv2dParams, ConvAlgo, ConvTranspose2d,
};
use candle_nn::ConvTranspose2dConfig;

fn zeros(dims: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::zeros(dims, DType::F32, device)
}

/// The call is refused, in these words.
fn refused(result: Result<Tensor>, says: &[&str]) {
    let error = match result {
        Ok(_) => panic!("accepted, without {says:?}"),
        Err(error) => error.to_string(),
    };
    for word in says {
        assert!(error.contains(word), "no {word:?} in {error}");
    }
}

#[test]
fn windows() -> Result<()> {
    for device in devices() {
        let (x, w) = (zeros(&[1, 4, 5, 6], device)?, zeros(&[6, 4, 3, 3], device)?);
        let conv = |window: Conv2dParams| conv2d(&x, &w, None, window, Act::Identity);
        refused(
            conv(window(0, 0, 1, 1)),
            &["conv2d", "got stride [0, 0]", "expected 1 or more"],
        );
        refused(
            conv(window(1, 0, 0, 1)),
            &["conv2d", "dilation [0, 0]", "expected 1 or more"],
        );
        refused(
            conv(window(1, 0, 1, 0)),
            &["conv2d", "0 groups", "expected 1 or more"],
        );
        refused(
            conv(window(1, 0, 1, 3)),
            &["conv2d", "4 channels", "[6, 4, 3, 3]", "expected"],
        );
        refused(
            conv(window(1, 0, 1, 2)),
            &["conv2d", "2 groups", "expected"],
        );
        refused(
            conv(window(1, 0, 3, 1)),
            &["conv2d", "[3, 3]", "at most the [5, 6]"],
        );
        let huge = window(1, usize::MAX, 1, 1);
        refused(conv(huge), &["conv2d", "padding"]);
        refused(conv(window(1, 0, usize::MAX, 1)), &["conv2d", "dilation"]);
        let empty = zeros(&[6, 4, 0, 3], device)?;
        let plain = Conv2dParams::default();
        refused(
            conv2d(&x, &empty, None, plain, Act::Identity),
            &["conv2d", "[6, 4, 0, 3]", "1 by 1 or more"],
        );
    }
    Ok(())
}

#[test]
fn shapes() -> Result<()> {
    let plain = Conv2dParams::default();
    for device in devices() {
        let of = |dims: &[usize]| zeros(dims, device);
        let (x, w) = (of(&[1, 4, 5, 6])?, of(&[6, 4, 3, 3])?);
        let id = Act::Identity;
        refused(
            conv2d(&of(&[4, 5, 6])?, &w, None, plain, id),
            &["conv2d: got x", "[4, 5, 6]", "rank 4"],
        );
        refused(
            conv2d(&x, &of(&[6, 4, 3])?, None, plain, id),
            &["conv2d: got weight", "[6, 4, 3]", "rank 4"],
        );
        refused(
            conv2d(&x, &w, Some(&of(&[4])?), plain, id),
            &["conv2d: got bias", "[4]", "expected [6]"],
        );
        refused(
            conv2d(&x, &w, Some(&of(&[6, 1])?), plain, id),
            &["conv2d: got bias", "[6, 1]"],
        );
        refused(
            conv1d(&x, &w, None, Default::default(), id),
            &["conv1d: got x", "[1, 4, 5, 6]", "rank 3"],
        );
        let (line, kernel) = (of(&[1, 4, 6])?, of(&[6, 4, 3])?);
        refused(
            conv1d(&line, &kernel, Some(&of(&[4])?), Default::default(), id),
            &["conv1d: got bias", "[4]", "expected [6]"],
        );
        let config = ConvTranspose2dConfig::default();
        refused(
            conv_transpose2d(&x, &w, None, config, id),
            &["conv_transpose2d", "4 channels", "[6, 4, 3, 3]", "expected"],
        );
        let padding = ConvTranspose2dConfig {
            padding: 9,
            ..config
        };
        let w = of(&[4, 6, 3, 3])?;
        refused(
            conv_transpose2d(&x, &w, None, padding, id),
            &["conv_transpose2d", "padding [9, 9]", "at least one pixel"],
        );
        refused(
            conv_transpose2d(&x, &w, Some(&of(&[4])?), config, id),
            &["conv_transpose2d: got bias", "[4]", "expected [6]"],
        );
        refused(
            conv_transpose1d(&line, &w, None, Default::default(), id),
            &["conv_transpose1d: got weight", "rank 3"],
        );
    }
    Ok(())
}

#[test]
fn dtypes_and_devices() -> Result<()> {
    let plain = Conv2dParams::default();
    for device in devices() {
        let (x, w) = (zeros(&[1, 4, 5, 6], device)?, zeros(&[6, 4, 3, 3], device)?);
        let half = w.to_dtype(DType::F16)?;
        refused(
            conv2d(&x, &half, None, plain, Act::Identity),
            &["conv2d: got weight", "F16", "F32"],
        );
        let integers = Tensor::zeros((1, 4, 5, 6), DType::U32, device)?;
        refused(
            conv2d(&integers, &w, None, plain, Act::Identity),
            &["conv2d: got dtype U32", "expected f32, f16 or bf16"],
        );
        if !device.is_cpu() {
            let here = w.to_device(&Device::Cpu)?;
            refused(
                conv2d(&x, &here, None, plain, Act::Identity),
                &["conv2d: got weight", "Cpu", "Metal"],
            );
        }
    }
    Ok(())
}

/// Errors name the function that was called, also by an algorithm that can't serve.
#[test]
fn algorithms() -> Result<()> {
    for device in devices() {
        let (x, w) = (zeros(&[1, 4, 5, 6], device)?, zeros(&[4, 2, 3, 3], device)?);
        let groups = window(1, 0, 1, 2);
        refused(
            conv2d_with(&x, &w, None, groups, Act::Identity, ConvAlgo::Mps),
            &["conv2d_with: got ConvAlgo::Mps", "expected"],
        );
        refused(
            conv2d_with(
                &x,
                &w,
                None,
                window(0, 0, 1, 2),
                Act::Relu,
                ConvAlgo::Direct,
            ),
            &["conv2d_with: got stride [0, 0]"],
        );
    }
    Ok(())
}

/// Who applies an op without its function is refused as well.
#[test]
fn ops_check_their_arguments() -> Result<()> {
    for device in devices() {
        let of = |dims: &[usize]| zeros(dims, device);
        let half = |t: &Tensor| t.to_dtype(DType::F16);
        let (x, w, y) = (of(&[1, 4, 5, 6])?, of(&[6, 4, 3, 3])?, of(&[1, 6, 3, 4])?);
        let conv = |params: Conv2dParams| Conv2d::new(params, Act::Relu, ConvAlgo::Auto);
        let transposed = |params, ends| ConvTranspose2d::new(params, ends, Act::Identity);
        let plain = Conv2dParams::default();
        let (convolve, transpose) = (conv(plain), transposed(plain, [0, 0]));
        assert!(x.apply_op3_no_bwd(&w, &of(&[6])?, &convolve).is_ok());
        assert!(y.apply_op3_no_bwd(&w, &of(&[4])?, &transpose).is_ok());
        let wrong = [
            x.apply_op2_no_bwd(&of(&[6, 5, 3, 3])?, &convolve),
            x.apply_op2_no_bwd(&of(&[6, 4, 7, 3])?, &convolve),
            x.apply_op2_no_bwd(&of(&[6, 4, 0, 3])?, &convolve),
            x.apply_op3_no_bwd(&w, &of(&[5])?, &convolve),
            x.apply_op3_no_bwd(&w, &of(&[])?, &convolve),
            of(&[4, 5, 6])?.apply_op2_no_bwd(&w, &convolve),
            of(&[])?.apply_op2_no_bwd(&of(&[])?, &convolve),
            of(&[1, 5, 2, 2])?.apply_op2_no_bwd(&w, &transpose),
            of(&[1, 6, 0, 2])?.apply_op2_no_bwd(&w, &transpose),
            y.apply_op2_no_bwd(&of(&[5, 4, 3, 2])?, &transpose),
            y.apply_op2_no_bwd(&of(&[6, 4, 3])?, &transpose),
            y.apply_op3_no_bwd(&w, &of(&[6])?, &transpose),
            // And dtypes.
            x.apply_op2_no_bwd(&half(&w)?, &convolve),
            x.apply_op3_no_bwd(&w, &half(&of(&[6])?)?, &convolve),
            half(&y)?.apply_op2_no_bwd(&w, &transpose),
        ];
        for (i, result) in wrong.into_iter().enumerate() {
            let error = match result {
                Ok(_) => panic!("arguments {i} are accepted"),
                Err(error) => error.to_string(),
            };
            assert!(error.starts_with("conv"), "{i}: {error}");
        }
        for params in [
            window(0, 0, 1, 1),
            window(1, 0, 0, 1),
            window(1, 0, 1, 0),
            window(1, 0, 1, 4),
            window(1, 1 << 60, 1, 1),
            window(1, usize::MAX, usize::MAX, 1),
        ] {
            assert!(x.apply_op2_no_bwd(&w, &conv(params)).is_err(), "{params:?}");
            let op = transposed(params, [usize::MAX; 2]);
            assert!(y.apply_op2_no_bwd(&w, &op).is_err(), "{params:?}");
        }
    }
    Ok(())
}

/// Views and paddings may have any size: what can't be addressed is refused before anything is allocated.
#[test]
fn sizes_that_overflow() -> Result<()> {
    for device in devices() {
        let one = zeros(&[1, 1, 1, 1], device)?;
        let conv = |x: &Tensor, padding: [usize; 2]| {
            let window = Conv2dParams {
                padding,
                ..Conv2dParams::default()
            };
            conv2d(x, &one, None, window, Act::Identity)
        };
        let says = &["conv2d: got a shape of [1, 1, 1, ", "memory"];
        refused(conv(&one, [1, 0x5555_5555_5555_5555]), says);
        let tall = one.broadcast_as((1, 1, 2, 1))?;
        refused(conv(&tall, [(1 << 19) - 1, 1 << 43]), says);
        let square = zeros(&[1, 1, 2, 2], device)?;
        refused(conv(&square, [(1 << 31) - 1; 2]), says);
        let config = ConvTranspose2dConfig {
            output_padding: (1 << 32) - 1,
            ..Default::default()
        };
        let transposed = conv_transpose2d(&one, &one, None, config, Act::Identity);
        refused(transposed, &["conv_transpose2d", "memory"]);

        let column = zeros(&[3, 1], device)?;
        let wide = zeros(&[1, 1], device)?.broadcast_as((1, 0xAAAA_AAAA_AAAA_AAAB))?;
        refused(
            matmul_act(&column, &wide, None, Act::Relu),
            &["matmul_act", "12297829382473034411]", "memory"],
        );
        let tall = zeros(&[1, 1], device)?.broadcast_as((0xAAAA_AAAA_AAAA_AAAB, 1))?;
        refused(linear(&tall, &column, None), &["linear", "memory"]);
    }
    Ok(())
}
