//! What convolutions refuse: always an error, and one that says what came and what is accepted.

use super::window;
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::conv2d::{Conv2d, ConvTranspose2d, Geometry, WeightGrad};
use candle_fused::ops::{
    conv1d, conv2d, conv_transpose1d, conv_transpose2d, linear, matmul_act, Act, ConvAlgo, Window,
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
        let conv = |window: Window| conv2d(&x, &w, None, window, Act::Identity);
        refused(
            conv(window(0, 0, 1, 1)),
            &["conv2d", "stride [0, 0]", "1 or more accepted"],
        );
        refused(
            conv(window(1, 0, 0, 1)),
            &["conv2d", "dilation [0, 0]", "1 or more accepted"],
        );
        refused(
            conv(window(1, 0, 1, 0)),
            &["conv2d", "0 groups", "1 or more accepted"],
        );
        refused(
            conv(window(1, 0, 1, 3)),
            &["conv2d", "4 channels", "[6, 4, 3, 3]", "accepted"],
        );
        refused(
            conv(window(1, 0, 1, 2)),
            &["conv2d", "2 groups", "accepted"],
        );
        refused(
            conv(window(1, 0, 3, 1)),
            &["conv2d", "[3, 3]", "[5, 6]", "smaller"],
        );
        let huge = window(1, usize::MAX, 1, 1);
        refused(conv(huge), &["conv2d", "padding"]);
        refused(conv(window(1, 0, usize::MAX, 1)), &["conv2d", "dilation"]);
        let empty = zeros(&[6, 4, 0, 3], device)?;
        let plain = Window::default();
        refused(
            conv2d(&x, &empty, None, plain, Act::Identity),
            &["conv2d", "[6, 4, 0, 3]", "1 by 1 or more"],
        );
    }
    Ok(())
}

#[test]
fn shapes() -> Result<()> {
    let plain = Window::default();
    for device in devices() {
        let of = |dims: &[usize]| zeros(dims, device);
        let (x, w) = (of(&[1, 4, 5, 6])?, of(&[6, 4, 3, 3])?);
        let id = Act::Identity;
        refused(
            conv2d(&of(&[4, 5, 6])?, &w, None, plain, id),
            &["conv2d: x", "[4, 5, 6]", "rank 4"],
        );
        refused(
            conv2d(&x, &of(&[6, 4, 3])?, None, plain, id),
            &["conv2d: weight", "[6, 4, 3]", "rank 4"],
        );
        refused(
            conv2d(&x, &w, Some(&of(&[4])?), plain, id),
            &["conv2d: bias", "[4]", "[6] accepted"],
        );
        refused(
            conv2d(&x, &w, Some(&of(&[6, 1])?), plain, id),
            &["conv2d: bias", "[6, 1]"],
        );
        refused(
            conv1d(&x, &w, None, Default::default(), id),
            &["conv1d: x", "[1, 4, 5, 6]", "rank 3"],
        );
        let (line, kernel) = (of(&[1, 4, 6])?, of(&[6, 4, 3])?);
        refused(
            conv1d(&line, &kernel, Some(&of(&[4])?), Default::default(), id),
            &["conv1d: bias", "[4]", "[6] accepted"],
        );
        let config = ConvTranspose2dConfig::default();
        refused(
            conv_transpose2d(&x, &w, None, config, id),
            &["conv_transpose2d", "4 channels", "[6, 4, 3, 3]", "accepted"],
        );
        let padding = ConvTranspose2dConfig {
            padding: 9,
            ..config
        };
        let w = of(&[4, 6, 3, 3])?;
        refused(
            conv_transpose2d(&x, &w, None, padding, id),
            &["conv_transpose2d", "[9, 9]", "leaves nothing"],
        );
        refused(
            conv_transpose2d(&x, &w, Some(&of(&[4])?), config, id),
            &["conv_transpose2d: bias", "[4]", "[6] accepted"],
        );
        refused(
            conv_transpose1d(&line, &w, None, Default::default(), id),
            &["conv_transpose1d: weight", "rank 3"],
        );
    }
    Ok(())
}

#[test]
fn dtypes_and_devices() -> Result<()> {
    let plain = Window::default();
    for device in devices() {
        let (x, w) = (zeros(&[1, 4, 5, 6], device)?, zeros(&[6, 4, 3, 3], device)?);
        let half = w.to_dtype(DType::F16)?;
        refused(
            conv2d(&x, &half, None, plain, Act::Identity),
            &["conv2d: weight", "F16", "F32"],
        );
        let integers = Tensor::zeros((1, 4, 5, 6), DType::U32, device)?;
        refused(
            conv2d(&integers, &w, None, plain, Act::Identity),
            &["conv2d", "U32", "f32, f16 or bf16 accepted"],
        );
        if !device.is_cpu() {
            let here = w.to_device(&Device::Cpu)?;
            refused(
                conv2d(&x, &here, None, plain, Act::Identity),
                &["conv2d: weight", "Cpu", "Metal"],
            );
        }
    }
    Ok(())
}

/// Who applies an op without its function is refused as well.
#[test]
fn ops_check_their_shapes() -> Result<()> {
    let plain = Window::default();
    for device in devices() {
        let of = |dims: &[usize]| zeros(dims, device);
        let half = |t: &Tensor| t.to_dtype(DType::F16);
        let (x, w) = (of(&[1, 4, 5, 6])?, of(&[6, 4, 3, 3])?);
        let geometry = Geometry::new("test", x.layout(), w.layout(), plain)?;
        let (y, small) = (of(&[1, 6, 3, 4])?, of(&[1, 6, 2, 2])?);
        let conv = Conv2d::new(plain, Act::Relu, ConvAlgo::Auto);
        let transposed = ConvTranspose2d::new(geometry, Act::Identity);
        let wrong = [
            x.apply_op2_no_bwd(&of(&[6, 5, 3, 3])?, &conv),
            x.apply_op2_no_bwd(&of(&[6, 4, 7, 3])?, &conv),
            x.apply_op3_no_bwd(&w, &of(&[5])?, &conv),
            of(&[4, 5, 6])?.apply_op2_no_bwd(&w, &conv),
            small.apply_op2_no_bwd(&w, &transposed),
            y.apply_op2_no_bwd(&of(&[6, 4, 3, 2])?, &transposed),
            y.apply_op3_no_bwd(&w, &of(&[6])?, &transposed),
            x.apply_op2_no_bwd(&small, &WeightGrad(geometry)),
            of(&[1, 4, 5, 5])?.apply_op2_no_bwd(&y, &WeightGrad(geometry)),
            // And dtypes.
            x.apply_op2_no_bwd(&half(&w)?, &conv),
            x.apply_op3_no_bwd(&w, &half(&of(&[6])?)?, &conv),
            half(&y)?.apply_op2_no_bwd(&w, &transposed),
            x.apply_op2_no_bwd(&half(&y)?, &WeightGrad(geometry)),
        ];
        for (i, result) in wrong.into_iter().enumerate() {
            assert!(result.is_err(), "shapes {i} are accepted");
        }
        // Nor may a geometry made by hand lead out of x, or anywhere.
        let made = [
            Geometry {
                output: [9, 9],
                ..geometry
            },
            Geometry {
                stride: [0, 1],
                ..geometry
            },
            Geometry {
                stride: [1 << 62, 4],
                output: [1, 1],
                ..geometry
            },
            Geometry {
                dilation: [1, 0],
                ..geometry
            },
        ];
        for geometry in made {
            let [rows, cols] = geometry.output;
            let y = of(&[1, 6, rows, cols])?;
            for result in [
                x.apply_op2_no_bwd(&y, &WeightGrad(geometry)),
                y.apply_op2_no_bwd(&w, &ConvTranspose2d::new(geometry, Act::Identity)),
            ] {
                assert!(result.is_err(), "{geometry:?} is accepted");
            }
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
            let window = Window {
                padding,
                ..Window::default()
            };
            conv2d(x, &one, None, window, Act::Identity)
        };
        let says = &["conv2d", "shape [1, 1, 1, ", "memory"];
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
            &["matmul_act", "[3, 12297829382473034411]", "memory"],
        );
        let tall = zeros(&[1, 1], device)?.broadcast_as((0xAAAA_AAAA_AAAA_AAAB, 1))?;
        refused(linear(&tall, &column, None), &["linear", "memory"]);
    }
    Ok(())
}
