mod shapes;

use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::size;
use super::{zeros, Arg, Dims, Fill, Grid, Kind, Measured, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::{
    conv1d, conv2d, conv_transpose2d, Act, Conv2d, Conv2dParams, ConvAlgo, ConvTranspose2d,
};
use candle_fused::reference::activation;
use candle_fused::reference::conv2d::{reference, transposed_reference};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig};

const OP: &str = "conv2d";

/// The number of images, and their columns.
const SIZES: Grid = &[&[0, 3], &[1, 1], &[3, 5], &[2, 9], &[12, 4], &[1, 33]];
/// Of 4 channels and 5 rows.
const MEASURED: [Measured; 2] = [
    size("1x4x5x64", &[1, 64])
        .run(&[Kind::Forward, Kind::Train])
        .quick(),
    size("64x4x5x256", &[64, 256]).run(&[Kind::Forward, Kind::Train]),
];

const CHANNELS: usize = 4;
const HEIGHT: usize = 5;
const X: Arg = Arg::new("x", Fill::Signal, |size| {
    vec![size.rows(), CHANNELS, HEIGHT, size.cols()]
});

const fn weight(shape: Dims) -> Arg {
    Arg::new("weight", Fill::Signal, shape)
}

const fn bias<const OUTPUTS: usize>() -> Arg {
    Arg::new("bias", Fill::Addend, |_| vec![OUTPUTS])
}

fn config(padding: usize, stride: usize, groups: usize) -> Conv2dConfig {
    Conv2dConfig {
        padding,
        stride,
        groups,
        ..Default::default()
    }
}

/// Activations without a kink: where a sum of 16-bit products is 0, its sign is a matter of the order.
pub fn cases() -> Vec<OpCase> {
    let cases = vec![
        image(
            "conv2d_silu",
            weight(|_| vec![6, CHANNELS, 3, 3]),
            Some(bias::<6>()),
            config(1, 1, 1),
            Act::Silu,
        ),
        image(
            "conv2d_depthwise",
            weight(|_| vec![CHANNELS, 1, 3, 3]),
            Some(bias::<CHANNELS>()),
            config(1, 1, CHANNELS),
            Act::GeluTanh,
        ),
        image(
            "conv2d_pointwise",
            weight(|_| vec![7, CHANNELS, 1, 1]),
            Some(bias::<7>()),
            config(0, 1, 1),
            Act::GeluErf,
        ),
        image(
            "conv2d_strided",
            weight(|_| vec![5, CHANNELS, 3, 3]),
            None,
            config(1, 2, 1),
            Act::Identity,
        ),
        sequence(),
        transposed(),
    ];
    let cases = cases.into_iter();
    let cases = cases.map(|case| case.product(SIZES).sizes(MEASURED));
    cases.chain(shapes::cases()).collect()
}

fn image(name: &str, w: Arg, bias: Option<Arg>, config: Conv2dConfig, act: Act) -> OpCase {
    let args: Vec<Arg> = [X, w].into_iter().chain(bias).collect();
    convolution(name, &args, config, act)
}

fn convolution(name: &str, args: &[Arg], config: Conv2dConfig, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        args,
        move |t| conv2d(&t[0], &t[1], t.get(2), config, act),
        move |t| reference(&t.iter().collect::<Vec<_>>(), config.into(), act),
    )
    .stock(move |t| {
        let z = t[0].conv2d(&t[1], config.padding, config.stride, 1, config.groups)?;
        finish(z, t.get(2), act)
    })
}

fn finish(z: Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    let z = match bias {
        Some(bias) => z.broadcast_add(&bias.reshape((1, (), 1, 1))?)?,
        None => z,
    };
    activation::reference(&z, act)
}

fn sequence() -> OpCase {
    let config = Conv1dConfig {
        padding: 2,
        ..Default::default()
    };
    let x = Arg::new("x", Fill::Signal, |size| {
        vec![size.rows(), CHANNELS, size.cols()]
    });
    let w = weight(|_| vec![6, CHANNELS, 5]);
    OpCase::new(
        OP,
        "conv1d",
        &[x, w, bias::<6>()],
        move |t| conv1d(&t[0], &t[1], Some(&t[2]), config, Act::Tanh),
        move |t| {
            let (x, w) = (t[0].unsqueeze(2)?, t[1].unsqueeze(2)?);
            let window = Conv2dParams::from(config);
            reference(&[&x, &w, &t[2]], window, Act::Tanh)?.squeeze(2)
        },
    )
    .stock(|t| {
        let z = t[0].conv1d(&t[1], 2, 1, 1, 1)?.unsqueeze(2)?;
        finish(z, Some(&t[2]), Act::Tanh)?.squeeze(2)
    })
}

fn transposed() -> OpCase {
    let config = ConvTranspose2dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        dilation: 1,
    };
    let w = weight(|_| vec![CHANNELS, 3, 3, 3]);
    OpCase::new(
        OP,
        "conv_transpose2d",
        &[X, w, bias::<3>()],
        move |t| conv_transpose2d(&t[0], &t[1], Some(&t[2]), config, Act::Silu),
        move |t| {
            let window = Conv2dParams::from(config);
            transposed_reference(&[&t[0], &t[1], &t[2]], window, [1; 2], Act::Silu)
        },
    )
    .stock(move |t| {
        let z = t[0].conv_transpose2d(&t[1], 1, 1, 2, 1)?;
        finish(z, Some(&t[2]), Act::Silu)
    })
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let plain = Conv2dParams::default();
    let absurd = Conv2dParams {
        stride: [1 << 60; 2],
        padding: [1 << 60; 2],
        ..plain
    };
    let act = Act::GeluTanh;
    Ok(forms! {
        Conv2d::new(plain, act, ConvAlgo::Auto) => CustomOp2 CustomOp3;
        Conv2d::new(plain, act, ConvAlgo::Winograd) => CustomOp2;
        Conv2d::new(absurd, act, ConvAlgo::Auto) => CustomOp2 CustomOp3;
        ConvTranspose2d { params: plain, output_padding: [0; 2], act } => CustomOp2 CustomOp3;
        ConvTranspose2d { params: absurd, output_padding: [1 << 60; 2], act } => CustomOp2 CustomOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "channels that don't match",
            &["4 channels", "[6, 3, 3, 3]"],
            |d| {
                let (x, w) = (zeros((1, 4, 5, 5), d)?, zeros((6, 3, 3, 3), d)?);
                conv2d(&x, &w, None, Conv2dParams::default(), Act::Silu).map(drop)
            },
        ),
        Reject::new(OP, "a kernel larger than x", &["[7, 7]", "[5, 5]"], |d| {
            let (x, w) = (zeros((1, 4, 5, 5), d)?, zeros((6, 4, 7, 7), d)?);
            conv2d(&x, &w, None, Conv2dParams::default(), Act::Silu).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        conv1d(&w.sequence, &w.filter, None, Conv1dConfig::default(), w.act);
        conv1d(&w.image, &w.kernel, None, Conv1dConfig::default(), w.act);
        conv2d(&w.image, &w.kernel, None, Conv2dConfig::default(), w.act);
        conv2d(&w.sequence, &w.filter, None, Conv2dConfig::default(), w.act);
        conv2d_with(&w.image, &w.kernel, None, Conv2dParams::default(), w.act, ConvAlgo::Auto);
        conv_transpose1d(&w.sequence, &w.filter, None, ConvTranspose1dConfig::default(), w.act);
        conv_transpose2d(&w.image, &w.kernel, None, ConvTranspose2dConfig::default(), w.act);
    }
}
