mod shapes;

pub use shapes::cases as at_shapes;

use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::conv2d::{reference, transposed_reference, Window};
use candle_fused::ops::{activation, conv1d, conv2d, conv_transpose2d, Act};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig};

const OP: &str = "conv2d";

/// So many images of so many columns.
const SIZES: [(usize, usize); 6] = [(0, 3), (1, 1), (3, 5), (2, 9), (12, 4), (1, 33)];

const CHANNELS: usize = 4;
const HEIGHT: usize = 5;
const X: Arg = Arg::new("x", Fill::Signal, |rows, cols| {
    vec![rows, CHANNELS, HEIGHT, cols]
});

const fn weight(shape: fn(usize, usize) -> Vec<usize>) -> Arg {
    Arg::new("weight", Fill::Signal, shape)
}

const fn bias<const OUTPUTS: usize>() -> Arg {
    Arg::new("bias", Fill::Addend, |_, _| vec![OUTPUTS])
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
            weight(|_, _| vec![6, CHANNELS, 3, 3]),
            Some(bias::<6>()),
            config(1, 1, 1),
            Act::Silu,
        ),
        image(
            "conv2d_depthwise",
            weight(|_, _| vec![CHANNELS, 1, 3, 3]),
            Some(bias::<CHANNELS>()),
            config(1, 1, CHANNELS),
            Act::Gelu,
        ),
        image(
            "conv2d_pointwise",
            weight(|_, _| vec![7, CHANNELS, 1, 1]),
            Some(bias::<7>()),
            config(0, 1, 1),
            Act::GeluErf,
        ),
        image(
            "conv2d_strided",
            weight(|_, _| vec![5, CHANNELS, 3, 3]),
            None,
            config(1, 2, 1),
            Act::Identity,
        ),
        sequence(),
        transposed(),
    ];
    cases.into_iter().map(|case| case.product(&SIZES)).collect()
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
        move |t| reference(&t[0], &t[1], t.get(2), config.into(), act),
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
    let x = Arg::new("x", Fill::Signal, |rows, cols| vec![rows, CHANNELS, cols]);
    let w = weight(|_, _| vec![6, CHANNELS, 5]);
    OpCase::new(
        OP,
        "conv1d",
        &[x, w, bias::<6>()],
        move |t| conv1d(&t[0], &t[1], Some(&t[2]), config, Act::Tanh),
        move |t| {
            let (x, w) = (t[0].unsqueeze(2)?, t[1].unsqueeze(2)?);
            let window = Window::from(config);
            reference(&x, &w, Some(&t[2]), window, Act::Tanh)?.squeeze(2)
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
    let w = weight(|_, _| vec![CHANNELS, 3, 3, 3]);
    OpCase::new(
        OP,
        "conv_transpose2d",
        &[X, w, bias::<3>()],
        move |t| conv_transpose2d(&t[0], &t[1], Some(&t[2]), config, Act::Silu),
        move |t| {
            let window = Window::from(config);
            transposed_reference(&t[0], &t[1], Some(&t[2]), window, [1; 2], Act::Silu)
        },
    )
    .stock(move |t| {
        let z = t[0].conv_transpose2d(&t[1], 1, 1, 2, 1)?;
        finish(z, Some(&t[2]), Act::Silu)
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
                conv2d(&x, &w, None, Window::default(), Act::Silu).map(drop)
            },
        ),
        Reject::new(OP, "a kernel larger than x", &["[7, 7]", "[5, 5]"], |d| {
            let (x, w) = (zeros((1, 4, 5, 5), d)?, zeros((6, 4, 7, 7), d)?);
            conv2d(&x, &w, None, Window::default(), Act::Silu).map(drop)
        }),
    ]
}
