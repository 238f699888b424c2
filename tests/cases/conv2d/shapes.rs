//! Convolutions at the shapes of models, without a bias unless it says so.

use super::super::size::only;
use super::super::{Dims, Kept, Kind, Measured};
use super::{bias, config, convolution, weight, Arg, Fill, OpCase, OP};
use candle_fused::ops::{conv1d, conv_transpose2d, Act};
use candle_fused::ops::{Conv2d, ConvAlgo};
use candle_fused::reference::conv2d::{reference, transposed_reference};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig};

const X_64C: Dims = dims![1, 64, 56, 56];
const X_256C: Dims = dims![1, 256, 14, 14];
const W_64C: Dims = dims![64, 64, 3, 3];
const W_256C: Dims = dims![256, 256, 3, 3];

#[rustfmt::skip]
pub fn cases() -> Vec<OpCase> {
    let (valid, same) = (config(0, 1, 1), config(1, 1, 1));
    let cases = vec![
        image(only("tiny").quick(), dims![1, 3, 8, 8], dims![4, 3, 3, 3], same),
        image(only("stem7x7s2").quick(), dims![1, 3, 224, 224], dims![64, 3, 7, 7], config(3, 2, 1)),
        image(only("3to64_3x3_800x600"), dims![1, 3, 600, 800], dims![64, 3, 3, 3], same),
        image(only("64c3x3_56").run(&[Kind::Forward, Kind::Train]).quick(), X_64C, W_64C, same),
        image(only("b8_64c3x3_56"), dims![8, 64, 56, 56], W_64C, same),
        image(only("128c3x3_28"), dims![1, 128, 28, 28], dims![128, 128, 3, 3], same),
        image(only("256c3x3_14").quick(), X_256C, W_256C, same),
        image(only("512c3x3_7"), dims![1, 512, 7, 7], dims![512, 512, 3, 3], same),
        image(only("dw128_3x3_56").quick(), dims![1, 128, 56, 56], dims![128, 1, 3, 3], config(1, 1, 128)),
        image(only("dw128_3x3s2_56"), dims![1, 128, 56, 56], dims![128, 1, 3, 3], config(1, 2, 128)),
        image(only("g32_128c3x3_28"), dims![1, 128, 28, 28], dims![128, 4, 3, 3], config(1, 1, 32)),
        image(only("1x1_256to64_56").quick(), dims![1, 256, 56, 56], dims![64, 256, 1, 1], valid),
        image(only("1x1_64to256_56"), X_64C, dims![256, 64, 1, 1], valid),
        image(only("1x1_1024c_7"), dims![1, 1024, 7, 7], dims![1024, 1024, 1, 1], valid),
        image(only("1x1_1024c_14"), dims![1, 1024, 14, 14], dims![1024, 1024, 1, 1], valid),
        relu(only("64c3x3_56_relu"), X_64C, W_64C, same),
        prepared(only("64c3x3_56_prepared"), X_64C, W_64C, same),
        prepared(only("256c3x3_14_prepared"), X_256C, W_256C, same),
        sequence(only("80to384k3_1500"), dims![1, 80, 1500], dims![384, 80, 3]),
        transposed(only("64to32k4s2_28"), dims![1, 64, 28, 28], dims![64, 32, 4, 4]),
    ];
    cases.into_iter().map(OpCase::reduction).collect()
}

fn args(x: Dims, w: Dims) -> [Arg; 2] {
    [Arg::new("x", Fill::Signal, x), weight(w)]
}

fn image(size: Measured, x: Dims, w: Dims, config: Conv2dConfig) -> OpCase {
    convolution("conv2d", &args(x, w), config, Act::Identity).at(size)
}

fn relu(size: Measured, x: Dims, w: Dims, config: Conv2dConfig) -> OpCase {
    let [x, w] = args(x, w);
    convolution("conv2d", &[x, w, bias::<64>()], config, Act::Relu).at(size)
}

/// As a layer does in inference: what is made of the weight is kept.
fn prepared(size: Measured, x: Dims, w: Dims, config: Conv2dConfig) -> OpCase {
    let kept = Kept::new();
    let op = move || Ok(Conv2d::new(config, Act::Identity, ConvAlgo::Auto).with_weight_cache());
    OpCase::new(
        OP,
        "conv2d",
        &args(x, w).map(Arg::constant),
        move |t| t[0].apply_op2_no_bwd(&t[1], &kept.of(&t[1], op)?),
        move |t| reference(&[&t[0], &t[1]], config.into(), Act::Identity),
    )
    .stock(move |t| t[0].conv2d(&t[1], config.padding, config.stride, 1, config.groups))
    .at(size)
}

fn sequence(size: Measured, x: Dims, w: Dims) -> OpCase {
    let config = Conv1dConfig {
        padding: 1,
        ..Default::default()
    };
    OpCase::new(
        OP,
        "conv1d",
        &args(x, w),
        move |t| conv1d(&t[0], &t[1], None, config, Act::Identity),
        move |t| {
            let (x, w) = (t[0].unsqueeze(2)?, t[1].unsqueeze(2)?);
            reference(&[&x, &w], config.into(), Act::Identity)?.squeeze(2)
        },
    )
    .stock(|t| t[0].conv1d(&t[1], 1, 1, 1, 1))
    .at(size)
}

fn transposed(size: Measured, x: Dims, w: Dims) -> OpCase {
    let config = ConvTranspose2dConfig {
        padding: 1,
        stride: 2,
        ..Default::default()
    };
    OpCase::new(
        OP,
        "conv_transpose2d",
        &args(x, w),
        move |t| conv_transpose2d(&t[0], &t[1], None, config, Act::Identity),
        move |t| transposed_reference(&[&t[0], &t[1]], config.into(), [0; 2], Act::Identity),
    )
    .stock(|t| t[0].conv_transpose2d(&t[1], 1, 0, 2, 1))
    .at(size)
}
