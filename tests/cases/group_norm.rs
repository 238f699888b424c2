use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_fused::ops::group_norm::{group_norm, group_norm_inplace, reference};
use candle_nn::Module;

const OP: &str = "group_norm";
const EPS: f32 = 1e-5;
const CHANNELS: usize = 4;
const X: Arg = Arg::new("x", Fill::Signal, |rows, cols| vec![rows, CHANNELS, cols]);
const WEIGHT: Arg = Arg::new("weight", Fill::Weight, |_, _| vec![CHANNELS]);
const BIAS: Arg = Arg::new("bias", Fill::Addend, |_, _| vec![CHANNELS]);

pub fn cases() -> Vec<OpCase> {
    let cases = vec![
        affine("group_norm", 2),
        affine("group_norm_by_channel", CHANNELS),
        OpCase::new(
            OP,
            "group_norm_no_bias",
            &[X, WEIGHT],
            |t| group_norm(&t[0], 2, Some(&t[1]), None, EPS),
            |t| reference(&t[0], 2, Some(&t[1]), None, EPS),
        )
        .in_place(|t| group_norm_inplace(&t[0], 2, Some(&t[1]), None, EPS)),
        OpCase::new(
            OP,
            "group_norm_plain",
            &[Arg::new("x", Fill::Signal, |rows, cols| {
                vec![rows, CHANNELS, 2, cols]
            })],
            |t| group_norm(&t[0], 1, None, None, EPS),
            |t| reference(&t[0], 1, None, None, EPS),
        )
        .in_place(|t| group_norm_inplace(&t[0], 1, None, None, EPS)),
    ];
    cases.into_iter().map(OpCase::reduction).collect()
}

fn affine(name: &str, groups: usize) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X, WEIGHT, BIAS],
        move |t| group_norm(&t[0], groups, Some(&t[1]), Some(&t[2]), EPS),
        move |t| reference(&t[0], groups, Some(&t[1]), Some(&t[2]), EPS),
    )
    .stock(move |t| {
        let (weight, bias) = (t[1].clone(), t[2].clone());
        candle_nn::GroupNorm::new(weight, bias, CHANNELS, groups, EPS.into())?.forward(&t[0])
    })
    .in_place(move |t| group_norm_inplace(&t[0], groups, Some(&t[1]), Some(&t[2]), EPS))
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
            &["weight", "[5]", "4 channels"],
            |d| group_norm(&zeros((1, 4, 5), d)?, 2, Some(&zeros(5, d)?), None, EPS).map(drop),
        ),
        Reject::new(OP, "eps = 0", &["eps is 0", "positive"], |d| {
            group_norm(&zeros((1, 4, 5), d)?, 2, None, None, 0.0).map(drop)
        }),
    ]
}
