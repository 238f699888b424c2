use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, ALL};
use super::{zeros, Arg, Fill, Kind, Measured, OpCase, Reject};
use candle_core::Result;
use candle_fused::ops::{group_norm, group_norm_inplace, GroupNorm};
use candle_fused::reference::group_norm::reference;
use candle_nn::Module;

const OP: &str = "group_norm";
const EPS: f32 = 1e-5;
const CHANNELS: usize = 4;
const X: Arg = Arg::new("x", Fill::Signal, |size| {
    vec![size.rows(), CHANNELS, size.cols()]
});
const WEIGHT: Arg = Arg::new("weight", Fill::Weight, |_| vec![CHANNELS]);
/// Of 4 channels.
const SIZES: [Measured; 5] = [
    size("1x4x64", &[1, 64])
        .run(&[Kind::Forward, Kind::Train])
        .quick(),
    size("2048x4x128", &[2048, 128]),
    size("1x4x262144", &[1, 262144]),
    size("64x4x4096", &[64, 4096]).run(ALL).quick(),
    size("64x4x16384", &[64, 16384]),
];
const BIAS: Arg = Arg::new("bias", Fill::Addend, |_| vec![CHANNELS]);

pub fn cases() -> Vec<OpCase> {
    let cases = vec![
        affine("group_norm", 2).sizes(SIZES),
        wide(),
        affine("group_norm_by_channel", CHANNELS).sizes([size("64x4x4096", &[64, 4096]).run(ALL)]),
        OpCase::new(
            OP,
            "group_norm_no_bias",
            &[X, WEIGHT],
            |t| group_norm(&t[0], 2, Some(&t[1]), None, EPS),
            |t| reference(&t[0], 2, [Some(&t[1]), None], EPS),
        )
        .in_place(|t| group_norm_inplace(&t[0], 2, Some(&t[1]), None, EPS))
        .sizes(SIZES),
        OpCase::new(
            OP,
            "group_norm_plain",
            &[Arg::new("x", Fill::Signal, |size| {
                vec![size.rows(), CHANNELS, 2, size.cols()]
            })],
            |t| group_norm(&t[0], 1, None, None, EPS),
            |t| reference(&t[0], 1, [None, None], EPS),
        )
        .in_place(|t| group_norm_inplace(&t[0], 1, None, None, EPS))
        .sizes([size("64x4x2x2048", &[64, 2048])]),
    ];
    cases.into_iter().map(OpCase::reduction).collect()
}

/// More channels in a group than a threadgroup has threads.
fn wide() -> OpCase {
    const CHANNELS: usize = 512;
    let x = Arg::new("x", Fill::Signal, |size| {
        vec![size.rows(), CHANNELS, size.cols()]
    });
    let vector = |name, fill| Arg::new(name, fill, |_| vec![CHANNELS]);
    OpCase::new(
        OP,
        "group_norm_wide",
        &[
            x,
            vector("weight", Fill::Weight),
            vector("bias", Fill::Addend),
        ],
        |t| group_norm(&t[0], 2, Some(&t[1]), Some(&t[2]), EPS),
        |t| reference(&t[0], 2, [Some(&t[1]), Some(&t[2])], EPS),
    )
    .in_place(|t| group_norm_inplace(&t[0], 2, Some(&t[1]), Some(&t[2]), EPS))
    .grid(&[&[1, 1], &[2, 2], &[3, 1]])
    .sizes([])
}

fn affine(name: &str, groups: usize) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X, WEIGHT, BIAS],
        move |t| group_norm(&t[0], groups, Some(&t[1]), Some(&t[2]), EPS),
        move |t| reference(&t[0], groups, [Some(&t[1]), Some(&t[2])], EPS),
    )
    .stock(move |t| {
        let (weight, bias) = (t[1].clone(), t[2].clone());
        candle_nn::GroupNorm::new(weight, bias, CHANNELS, groups, EPS.into())?.forward(&t[0])
    })
    .in_place(move |t| group_norm_inplace(&t[0], groups, Some(&t[1]), Some(&t[2]), EPS))
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let eps = 1e-5;
    Ok(forms! {
        GroupNorm { num_groups: 2, eps } => CustomOp1 CustomOp2 CustomOp3 InplaceOp1 InplaceOp2 InplaceOp3;
        GroupNorm { num_groups: 0, eps } => CustomOp1 CustomOp2 CustomOp3 InplaceOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "groups that do not divide the channels",
            &["3", "4 channels"],
            |d| group_norm(&zeros((1, 4, 5), d)?, 3, None, None, EPS).map(drop),
        ),
        Reject::new(OP, "no groups", &["0 groups", "4 channels"], |d| {
            group_norm_inplace(&zeros((1, 4, 5), d)?, 0, None, None, EPS)
        }),
        Reject::new(OP, "a vector", &["[4]", "[batch, channels, ..]"], |d| {
            group_norm(&zeros(4, d)?, 2, None, None, EPS).map(drop)
        }),
        Reject::new(
            OP,
            "a weight of another length",
            &["weight", "[5]", "[4]", "channels"],
            |d| group_norm(&zeros((1, 4, 5), d)?, 2, Some(&zeros(5, d)?), None, EPS).map(drop),
        ),
        Reject::new(OP, "eps = 0", &["eps", "0", "positive"], |d| {
            group_norm(&zeros((1, 4, 5), d)?, 2, None, None, 0.0).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        group_norm(&w.x, 3, None, None, 1e-5);
        group_norm(&w.x, 2, Some(&w.three), None, 1e-5);
        group_norm_inplace(&w.x, 3, None, None, 1e-5);
    }
}
