use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::only;
use super::{zeros, Arg, Dims, Fill, Grid, Kind, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::{
    upsample_bilinear2d, upsample_bilinear2d_with_scale, upsample_nearest1d, upsample_nearest2d,
    UpsampleBilinear2d, UpsampleNearest2d,
};
use candle_fused::reference::upsample::{reference_bilinear, reference_nearest};

const OP: &str = "upsample";

/// The number of images, and their columns.
const SIZES: Grid = &[
    &[0, 3],
    &[1, 1],
    &[1, 5],
    &[12, 4],
    &[2, 33],
    &[13, 17],
    &[3, 700],
];
const CHANNELS: usize = 2;
const HEIGHT: usize = 5;
const X: Arg = Arg::new("x", Fill::Signal, |size| {
    vec![size.rows(), CHANNELS, HEIGHT, size.cols()]
});
const TRAIN: &[Kind] = &[Kind::Forward, Kind::Train];

/// A size as a function of x's.
type Resize = fn([usize; 2]) -> [usize; 2];

const DOUBLE: Resize = |[h, w]| [2 * h, 2 * w];
const LARGER: Resize = |[h, w]| [h + 2, 2 * w + 1];
const SMALLER: Resize = |[h, w]| [h - 2, w.div_ceil(3)];
const ACROSS: Resize = |[h, w]| [3 * h, w.div_ceil(2)];
const SAME: Resize = |size| size;

pub fn cases() -> Vec<OpCase> {
    let grid = |case: OpCase| case.grid(SIZES).sizes([]);
    let mut cases = vec![
        nearest("nearest_double", X, DOUBLE),
        nearest("nearest_larger", X, LARGER),
        nearest("nearest_smaller", X, SMALLER),
        nearest("nearest_across", X, ACROSS),
        nearest("nearest_same", X, SAME),
        sequence(),
        bilinear("bilinear_double", X, DOUBLE, false),
        bilinear("bilinear_double_corners", X, DOUBLE, true),
        bilinear("bilinear_larger", X, LARGER, false),
        bilinear("bilinear_smaller", X, SMALLER, false),
        bilinear("bilinear_across_corners", X, ACROSS, true),
        bilinear("bilinear_same", X, SAME, false),
        by_scale(),
    ];
    cases = cases.into_iter().map(grid).collect();
    const UNET: Dims = |_| vec![1, 128, 64, 64];
    const SMALL: Dims = |_| vec![1, 64, 16, 16];
    let (large, small) = (
        Arg::new("x", Fill::Signal, UNET),
        Arg::new("x", Fill::Signal, SMALL),
    );
    let quick = |label| only(label).run(TRAIN).quick();
    // Stock's gradient of bilinear interpolation is an error.
    let no_stock = |case: OpCase| OpCase {
        stock_trains: false,
        ..case
    };
    cases.extend([
        nearest("upsample_nearest2d", large, DOUBLE).at(quick("128c64to128")),
        no_stock(nearest("upsample_nearest2d", small, LARGER).at(only("64c16to33").run(TRAIN))),
        no_stock(bilinear("upsample_bilinear2d", large, DOUBLE, false).at(quick("128c64to128"))),
    ]);
    cases
}

fn size(x: &Tensor, to: Resize) -> Result<[usize; 2]> {
    let (_, _, height, width) = x.dims4()?;
    Ok(to([height, width]))
}

fn nearest(name: &str, x: Arg, to: Resize) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[x],
        move |t| {
            let [height, width] = size(&t[0], to)?;
            upsample_nearest2d(&t[0], height, width)
        },
        move |t| reference_nearest(&t[0], size(&t[0], to)?),
    )
    .stock(move |t| {
        let [height, width] = size(&t[0], to)?;
        t[0].upsample_nearest2d(height, width)
    })
    .reduction()
}

fn sequence() -> OpCase {
    let x = Arg::new("x", Fill::Signal, |size| {
        vec![size.rows(), CHANNELS, 3 * size.cols()]
    });
    OpCase::new(
        OP,
        "nearest1d",
        &[x],
        |t| upsample_nearest1d(&t[0], t[0].dims()[2] * 5 / 2),
        |t| reference_nearest(&t[0].unsqueeze(2)?, [1, t[0].dims()[2] * 5 / 2])?.squeeze(2),
    )
    .stock(|t| t[0].upsample_nearest1d(t[0].dims()[2] * 5 / 2))
    .reduction()
}

fn bilinear(name: &str, x: Arg, to: Resize, align_corners: bool) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[x],
        move |t| {
            let [height, width] = size(&t[0], to)?;
            upsample_bilinear2d(&t[0], height, width, align_corners)
        },
        move |t| reference_bilinear(&t[0], size(&t[0], to)?, align_corners, None),
    )
    .stock(move |t| {
        let [height, width] = size(&t[0], to)?;
        t[0].upsample_bilinear2d(height, width, align_corners)
    })
    .reduction()
}

fn by_scale() -> OpCase {
    OpCase::new(
        OP,
        "bilinear_by_scale",
        &[X],
        |t| upsample_bilinear2d_with_scale(&t[0], 1.7, 2.3, false),
        |t| {
            let to: Resize = |size| [0, 1].map(|i| (size[i] as f64 * [1.7, 2.3][i]) as usize);
            reference_bilinear(&t[0], size(&t[0], to)?, false, Some([1.7, 2.3]))
        },
    )
    .stock(|t| t[0].upsample_bilinear2d_with_scale(1.7, 2.3, false))
    .reduction()
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let of = |size, scale| UpsampleBilinear2d {
        size,
        align_corners: false,
        scale,
    };
    Ok(forms! {
        UpsampleNearest2d { size: [7, 3] } => CustomOp1;
        UpsampleNearest2d { size: [0, 3] } => CustomOp1;
        UpsampleNearest2d { size: [1 << 60, 1 << 60] } => CustomOp1;
        UpsampleNearest2d { size: [1 << 31, 1 << 20] } => CustomOp1;
        UpsampleBilinear2d { align_corners: true, ..of([7, 3], None) } => CustomOp1;
        UpsampleBilinear2d { align_corners: true, ..of([1, 1], None) } => CustomOp1;
        UpsampleBilinear2d { ..of([9, 4], Some([1e-300, 1e300])) } => CustomOp1;
        UpsampleBilinear2d { ..of([9, 4], Some([0.0, -1.0])) } => CustomOp1;
        UpsampleBilinear2d { ..of([1 << 40, 1], None) } => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            "upsample_nearest2d",
            "three dims",
            &["[4, 5, 5]", "[batch, channels, height, width]"],
            |d| upsample_nearest2d(&zeros((4, 5, 5), d)?, 7, 7).map(drop),
        ),
        Reject::new(
            "upsample_nearest1d",
            "four dims",
            &["[1, 4, 5, 5]", "[batch, channels, length]"],
            |d| upsample_nearest1d(&zeros((1, 4, 5, 5), d)?, 7).map(drop),
        ),
        Reject::new(
            "upsample_bilinear2d",
            "an image without pixels",
            &["[1, 4, 0, 5]", "a pixel"],
            |d| upsample_bilinear2d(&zeros((1, 4, 0, 5), d)?, 7, 7, false).map(drop),
        ),
        Reject::new(
            "upsample_bilinear2d_with_scale",
            "a negative scale",
            &["-1", "positive"],
            |d| {
                upsample_bilinear2d_with_scale(&zeros((1, 4, 5, 5), d)?, 2.0, -1.0, false).map(drop)
            },
        ),
        Reject::new("upsample_nearest2d", "an absurd size", &["memory"], |d| {
            upsample_nearest2d(&zeros((1, 4, 5, 5), d)?, 1 << 28, 1 << 28).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        upsample_bilinear2d(&w.sequence, 7, 7, true);
        upsample_bilinear2d_with_scale(&w.sequence, 2.0, 2.0, true);
        upsample_bilinear2d_with_scale(&w.image, f64::NAN, 2.0, true);
        upsample_nearest1d(&w.image, 7);
        upsample_nearest1d(&w.none, 7);
        upsample_nearest2d(&w.sequence, 7, 7);
    }
}
