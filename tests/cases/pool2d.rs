use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::only;
use super::{zeros, Arg, Dims, Fill, Grid, Kind, Measured, OpCase, Reject};
use candle_core::{Result, Tensor, ToUsize2, D};
use candle_fused::ops::{avg_pool2d, max_pool2d, AvgPool2d, MaxPool2d, Pool2dParams};
use candle_fused::reference::pool2d::{reference_avg, reference_max};

const OP: &str = "pool2d";

/// The number of images, and their columns. The smallest has no maximum twice, where a slope by differences would be wrong.
const SIZES: Grid = &[&[0, 3], &[1, 4], &[12, 6], &[2, 40], &[13, 33], &[3, 1100]];
/// As [`SIZES`], for windows that are everywhere.
const DENSE: Grid = &[&[1, 1], &[12, 6], &[2, 40], &[13, 33]];
const CHANNELS: usize = 2;
const HEIGHT: usize = 7;
const X: Arg = Arg::new("x", Fill::Signal, |size| {
    vec![size.rows(), CHANNELS, HEIGHT, size.cols()]
});

fn new(kernel: impl ToUsize2) -> Pool2dParams {
    Pool2dParams::new(kernel)
}

const TRAIN: &[Kind] = &[Kind::Forward, Kind::Train];

pub fn cases() -> Vec<OpCase> {
    let overlapping = new(3).with_stride(2).with_padding(1);
    let mut cases = vec![
        max("max_overlapping", X, overlapping),
        max("max_side_by_side", X, new((2, 1))),
        max("max_dense", X, new(3).with_stride(1).with_padding(1)).grid(DENSE),
        max("max_apart", X, new((2, 1)).with_stride((3, 4))),
        max(
            "max_of_rows",
            X,
            new((7, 3)).with_stride((1, 2)).with_padding((3, 0)),
        ),
        avg("avg_overlapping", X, overlapping),
        avg("avg_side_by_side", X, new((2, 1))),
        avg("avg_dense", X, new(3).with_stride(1).with_padding(1)),
        avg("avg_apart", X, new((2, 1)).with_stride((3, 4))),
        avg("avg_of_pixels", X, overlapping.with_pixels_counted_alone()),
        avg(
            "avg_of_rows",
            X,
            new((7, 3))
                .with_stride((1, 3))
                .with_padding((3, 1))
                .with_pixels_counted_alone(),
        ),
    ];
    cases = cases.into_iter().map(|case| case.sizes([])).collect();
    cases.extend(measured());
    cases
}

/// The shapes of models.
#[rustfmt::skip]
fn measured() -> Vec<OpCase> {
    let overlapping = new(3).with_stride(2);
    const STEM: Dims = |_| vec![1, 64, 112, 112];
    const LAST: Dims = |_| vec![8, 512, 7, 7];
    const IMAGE: Dims = |_| vec![1, 64, 224, 224];
    let x = |dims| Arg::new("x", Fill::Signal, dims);
    let quick = |label| only(label).run(TRAIN).quick();
    vec![
        at(max("max_pool2d", x(STEM), overlapping), quick("64c3x3s2_112"), false),
        at(max("max_pool2d", x(STEM), overlapping.with_padding(1)), only("64c3x3s2p1_112").run(TRAIN), false),
        at(max("max_pool2d", x(IMAGE), new(2)), only("64c2x2_224").run(TRAIN), false),
        at(max("max_pool2d", x(STEM), new(3).with_stride(1)), only("64c3x3s1_112").run(TRAIN), false),
        at(avg("avg_pool2d", x(LAST), new(7)), quick("b8_512c7x7_7"), true),
        at(avg("avg_pool2d", x(STEM), new(2)), only("64c2x2_112").run(TRAIN), true),
        at(avg("avg_pool2d", x(STEM), overlapping), only("64c3x3s2_112").run(TRAIN), false),
    ]
}

/// Of one shape. Stock trains means of windows that lie side by side alone: its gradients of maxima are others.
fn at(case: OpCase, size: Measured, stock_trains: bool) -> OpCase {
    OpCase {
        stock_trains,
        ..case.at(size)
    }
}

fn max(name: &str, x: Arg, params: Pool2dParams) -> OpCase {
    let case = OpCase::new(
        OP,
        name,
        &[x],
        move |t| max_pool2d(&t[0], params),
        move |t| reference_max(&t[0], params),
    );
    case.stock(move |t| {
        let (x, kernel, stride) = padded(&t[0], params, Tensor::pad_with_same)?;
        x.max_pool2d_with_stride(kernel, stride)
    })
    .reduction()
    .grid(SIZES)
}

fn avg(name: &str, x: Arg, params: Pool2dParams) -> OpCase {
    let case = OpCase::new(
        OP,
        name,
        &[x],
        move |t| avg_pool2d(&t[0], params),
        move |t| reference_avg(&t[0], params),
    );
    case.stock(move |t| {
        let (x, kernel, stride) = padded(&t[0], params, Tensor::pad_with_zeros)?;
        x.avg_pool2d_with_stride(kernel, stride)
    })
    .reduction()
    .grid(SIZES)
}

type Pad = fn(&Tensor, D, usize, usize) -> Result<Tensor>;
type Pair = (usize, usize);

/// x as stock's pooling gets it, with its kernel and stride.
fn padded(x: &Tensor, params: Pool2dParams, pad: Pad) -> Result<(Tensor, Pair, Pair)> {
    let [[height, width], [down, along], [above, left]] =
        [params.kernel, params.stride, params.padding];
    let x = match params.padding {
        [0, 0] => x.clone(),
        _ => pad(&pad(x, D::Minus1, left, left)?, D::Minus2, above, above)?,
    };
    Ok((x, (height, width), (down, along)))
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let plain = Pool2dParams::new(2);
    let padded = Pool2dParams::new(3).with_stride(1).with_padding(1);
    let absurd = Pool2dParams::new(1 << 60).with_padding(1 << 59);
    let none = Pool2dParams::new(0);
    Ok(forms! {
        MaxPool2d(plain) => CustomOp1;
        MaxPool2d(padded) => CustomOp1;
        MaxPool2d(absurd) => CustomOp1;
        MaxPool2d(none) => CustomOp1;
        MaxPool2d(padded.with_stride(1 << 60)) => CustomOp1;
        MaxPool2d(padded.with_padding(usize::MAX)) => CustomOp1;
        AvgPool2d(plain) => CustomOp1;
        AvgPool2d(padded.with_pixels_counted_alone()) => CustomOp1;
        AvgPool2d(absurd) => CustomOp1;
        AvgPool2d(padded.with_stride(0)) => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            "max_pool2d",
            "three dims",
            &["[4, 5, 5]", "[batch, channels, height, width]"],
            |d| max_pool2d(&zeros((4, 5, 5), d)?, Pool2dParams::new(2)).map(drop),
        ),
        Reject::new(
            "max_pool2d",
            "a kernel larger than x",
            &["[6, 6]", "[5, 5]"],
            |d| max_pool2d(&zeros((1, 4, 5, 5), d)?, Pool2dParams::new(6)).map(drop),
        ),
        Reject::new(
            "avg_pool2d",
            "a stride of 0",
            &["stride [0, 0]", "1 or more"],
            |d| {
                avg_pool2d(
                    &zeros((1, 4, 5, 5), d)?,
                    Pool2dParams::new(2).with_stride(0),
                )
                .map(drop)
            },
        ),
        Reject::new(
            "avg_pool2d",
            "windows of padding alone",
            &["padding [2, 2]", "[1, 1]"],
            |d| {
                avg_pool2d(
                    &zeros((1, 4, 5, 5), d)?,
                    Pool2dParams::new(3).with_padding(2),
                )
                .map(drop)
            },
        ),
        Reject::new("max_pool2d", "an image without pixels", &["[0, 5]"], |d| {
            let params = Pool2dParams::new(2).with_padding(1);
            max_pool2d(&zeros((1, 4, 0, 5), d)?, params).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        avg_pool2d(&w.sequence, Pool2dParams::new(2));
        avg_pool2d(&w.image, Pool2dParams::new(6));
        max_pool2d(&w.scalar, Pool2dParams::new(2));
        max_pool2d(&w.image, Pool2dParams::new(0));
    }
}
