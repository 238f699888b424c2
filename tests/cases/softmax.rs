use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::D;
use candle_fused::ops::softmax::{
    log_softmax, log_softmax_last_dim_inplace, masked_softmax, masked_softmax_inplace, reference,
    reference_log, reference_masked, softmax, softmax_last_dim, softmax_last_dim_inplace, Mask,
};

const OP: &str = "softmax";
const SCALE: f32 = 0.125;
const X: Arg = Arg::matrix("x", Fill::Signal);
/// For a softmax over the middle dim.
const STACK: Arg = Arg::new("x", Fill::Signal, |rows, cols| vec![2, cols, rows]);

pub fn cases() -> Vec<OpCase> {
    let mask = Arg::new("mask", Fill::Mask, |_, cols| vec![1, cols]);
    let cases = vec![
        OpCase::new(
            OP,
            "softmax_last_dim",
            &[X],
            |t| softmax_last_dim(&t[0]),
            |t| reference(&t[0], t[0].rank() - 1),
        )
        .stock(|t| candle_nn::ops::softmax_last_dim(&t[0]))
        .in_place(|t| softmax_last_dim_inplace(&t[0])),
        OpCase::new(
            OP,
            "log_softmax",
            &[X],
            |t| log_softmax(&t[0], D::Minus1),
            |t| reference_log(&t[0], t[0].rank() - 1),
        )
        .in_place(|t| log_softmax_last_dim_inplace(&t[0])),
        OpCase::new(
            OP,
            "softmax_middle_dim",
            &[STACK],
            |t| softmax(&t[0], 1),
            |t| reference(&t[0], 1),
        ),
        OpCase::new(
            OP,
            "log_softmax_middle_dim",
            &[STACK],
            |t| log_softmax(&t[0], 1),
            |t| reference_log(&t[0], 1),
        ),
        unmasked("scaled_softmax", Mask::None),
        unmasked("causal_softmax", Mask::Causal).hiding(),
        additive("masked_softmax", mask),
        additive("masked_softmax_by_matrix", Arg::matrix("mask", Fill::Mask)),
    ];
    // The backward starts from the outputs, which have been rounded.
    let cases = cases.into_iter().map(OpCase::reduction);
    cases.map(OpCase::stepwise_gradients).collect()
}

fn unmasked(name: &str, mask: Mask<'static>) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X],
        move |t| masked_softmax(&t[0], SCALE, mask),
        move |t| reference_masked(&t[0], SCALE, mask),
    )
    .in_place(move |t| masked_softmax_inplace(&t[0], SCALE, mask))
}

fn additive(name: &str, mask: Arg) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X, mask],
        |t| masked_softmax(&t[0], SCALE, Mask::Additive(&t[1])),
        |t| reference_masked(&t[0], SCALE, Mask::Additive(&t[1])),
    )
    .in_place(|t| masked_softmax_inplace(&t[0], SCALE, Mask::Additive(&t[1])))
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "a dim that x lacks", &["2", "[3, 4]"], |d| {
            softmax(&zeros((3, 4), d)?, 2).map(drop)
        }),
        Reject::new(OP, "a log over a dim that x lacks", &["1", "[3]"], |d| {
            log_softmax(&zeros(3, d)?, 1).map(drop)
        }),
        Reject::new(OP, "a scalar", &[], |d| {
            softmax_last_dim(&zeros((), d)?).map(drop)
        }),
        Reject::new(OP, "a scalar in place", &[], |d| {
            softmax_last_dim_inplace(&zeros((), d)?)
        }),
        Reject::new(OP, "a masked scalar", &["rank 0", "rank 1"], |d| {
            masked_softmax(&zeros((), d)?, SCALE, Mask::None).map(drop)
        }),
        Reject::new(
            OP,
            "causal rows without queries",
            &["causal", "[.., queries, keys]"],
            |d| masked_softmax(&zeros(4, d)?, SCALE, Mask::Causal).map(drop),
        ),
        Reject::new(
            OP,
            "a mask that does not broadcast",
            &["mask", "[3]", "[2, 4]"],
            |d| {
                let (x, mask) = (zeros((2, 4), d)?, zeros(3, d)?);
                masked_softmax(&x, SCALE, Mask::Additive(&mask)).map(drop)
            },
        ),
        Reject::new(
            OP,
            "a mask larger than x",
            &["mask", "[2, 4]", "[4]"],
            |d| {
                let (x, mask) = (zeros(4, d)?, zeros((2, 4), d)?);
                masked_softmax_inplace(&x, SCALE, Mask::Additive(&mask))
            },
        ),
    ]
}
