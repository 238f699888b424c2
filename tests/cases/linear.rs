use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{only, BATCH, ONE_ROW, TINY};
use super::{zeros, Arg, Fill, Grid, Kind, Measured, OpCase, Reject};
use candle_core::{DType, Result};
use candle_fused::ops::{frozen_linear, linear, Linear};
use candle_fused::reference::linear::reference;

const OP: &str = "linear";
const X: Arg = Arg::matrix("x", Fill::Signal);

/// Rows on both sides of where GEMV ends and of a tile, columns on both sides of every vector width. The last ones are
/// for the CPU.
pub const SIZES: Grid = &[
    &[3, 0],
    &[0, 3],
    &[1, 1],
    &[1, 64],
    &[2, 31],
    &[7, 33],
    &[8, 513],
    &[9, 33],
    &[17, 36],
    &[64, 65],
    &[512, 5],
    &[33, 129],
    &[1, 8192],
    &[3, 4097],
    &[512, 129],
];

/// With few outputs, and with so many that stock takes long.
pub const MEASURED: [Measured; 3] = [
    TINY,
    ONE_ROW,
    BATCH
        .run(&[Kind::Forward, Kind::Train])
        .of(&[DType::F32])
        .slow(),
];

/// `[outputs, cols]`
pub const fn weight<const OUTPUTS: usize>() -> Arg {
    Arg::new("weight", Fill::Signal, |size| vec![OUTPUTS, size.cols()])
}

pub const fn bias<const OUTPUTS: usize>() -> Arg {
    Arg::new("bias", Fill::Addend, |_| vec![OUTPUTS])
}

pub fn cases() -> Vec<OpCase> {
    let cases = vec![
        OpCase::new(
            OP,
            "linear",
            &[X, weight::<33>(), bias::<33>()],
            |t| linear(&t[0], &t[1], Some(&t[2])),
            |t| reference(&t[0], &t[1], Some(&t[2])),
        ),
        OpCase::new(
            OP,
            "linear_no_bias",
            &[X, weight::<7>()],
            |t| linear(&t[0], &t[1], None),
            |t| reference(&t[0], &t[1], None),
        ),
        OpCase::new(
            OP,
            "frozen_linear",
            &[X, weight::<64>().constant(), bias::<64>().constant()],
            |t| frozen_linear(&t[0], &t[1], Some(&t[2])),
            |t| reference(&t[0], &t[1], Some(&t[2])),
        ),
    ];
    let cases = cases.into_iter();
    let cases = cases.map(|case| case.product(SIZES).sizes(MEASURED));
    cases.chain([decoder_step()]).collect()
}

/// One row with a square layer.
fn decoder_step() -> OpCase {
    let x = Arg::new("x", Fill::Signal, |_| vec![1, 4096]);
    let w = Arg::new("weight", Fill::Signal, |_| vec![4096, 4096]);
    let case = OpCase::new(
        OP,
        "linear_no_bias",
        &[x, w],
        |t| linear(&t[0], &t[1], None),
        |t| reference(&t[0], &t[1], None),
    );
    case.reduction().at(only("1x4096x4096").quick())
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    Ok(forms! {
        Linear { scale: 1.0 } => CustomOp2 CustomOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "a weight of other columns", &["[5, 3]", "4"], |d| {
            linear(&zeros((2, 4), d)?, &zeros((5, 3), d)?, None).map(drop)
        }),
        Reject::new(OP, "a stack of weights", &["[1, 5, 4]", "[out, 4]"], |d| {
            linear(&zeros((2, 4), d)?, &zeros((1, 5, 4), d)?, None).map(drop)
        }),
        Reject::new(OP, "a scalar x", &["rank 0"], |d| {
            frozen_linear(&zeros((), d)?, &zeros((5, 1), d)?, None).map(drop)
        }),
        Reject::new(
            OP,
            "a bias of another length",
            &["bias", "[4]", "[5]"],
            |d| {
                let bias = zeros(4, d)?;
                frozen_linear(&zeros((2, 4), d)?, &zeros((5, 4), d)?, Some(&bias)).map(drop)
            },
        ),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        frozen_linear(&w.x, &w.wide, None);
        frozen_linear(&w.integers, &w.weight, None);
        linear(&w.x, &w.wide, None);
        linear(&w.x, &w.weight, Some(&w.three));
    }
}
