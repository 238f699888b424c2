use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{ONE_M, SIXTEEN_M, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::Result;
use candle_fused::ops::{
    dropout, dropout_add, dropout_inplace, relu_dropout, relu_dropout_inplace, Act, Dropout,
    DropoutAdd,
};
use candle_fused::reference::dropout::{reference, reference_add};

const OP: &str = "dropout";
const P: f32 = 0.25;
const SEED: u64 = 0x1234_5678_9abc_def0;
const X: Arg = Arg::matrix("x", Fill::Signal);

pub fn cases() -> Vec<OpCase> {
    let add = &[X, Arg::matrix("residual", Fill::Addend)];
    let cases = vec![
        OpCase::new(
            OP,
            "dropout",
            &[X],
            |t| dropout(&t[0], P, SEED),
            |t| reference(&t[0], Act::Identity, P, SEED),
        )
        .stock_with_gradients(|t| candle_nn::ops::dropout(&t[0], P))
        .in_place(|t| dropout_inplace(&t[0], P, SEED))
        .sizes([TINY, ONE_M, SIXTEEN_M]),
        OpCase::new(
            OP,
            "relu_dropout",
            &[X],
            |t| relu_dropout(&t[0], P, SEED),
            |t| reference(&t[0], Act::Relu, P, SEED),
        )
        .stock_with_gradients(|t| candle_nn::ops::dropout(&t[0].relu()?, P))
        .in_place(|t| relu_dropout_inplace(&t[0], P, SEED)),
        OpCase::new(
            OP,
            "dropout_add",
            add,
            |t| dropout_add(&t[0], &t[1], P, SEED),
            |t| reference_add(&t[0], &t[1], P, SEED),
        )
        .stock_with_gradients(|t| candle_nn::ops::dropout(&t[0], P)? + &t[1]),
    ];
    cases.into_iter().map(OpCase::random).collect()
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    Ok(forms! {
        Dropout { relu: true, p: 0.5, seed: 1 } => CustomOp1 InplaceOp1;
        Dropout { relu: false, p: f32::NAN, seed: 1 } => CustomOp1 InplaceOp1;
        DropoutAdd { p: 0.5, seed: 1 } => CustomOp2;
        DropoutAdd { p: 2.0, seed: 1 } => CustomOp2;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "p = 1", &["p = 1", "0 ≤ p < 1"], |d| {
            dropout(&zeros(3, d)?, 1.0, 0).map(drop)
        }),
        Reject::new(OP, "a negative p", &["p = -0.1", "0 ≤ p < 1"], |d| {
            relu_dropout(&zeros(3, d)?, -0.1, 0).map(drop)
        }),
        Reject::new(OP, "a NaN p", &["p = NaN", "0 ≤ p < 1"], |d| {
            dropout_inplace(&zeros(3, d)?, f32::NAN, 0)
        }),
        Reject::new(
            OP,
            "p above 1, with a residual",
            &["p = 2", "0 ≤ p < 1"],
            |d| dropout_add(&zeros(3, d)?, &zeros(3, d)?, 2.0, 0).map(drop),
        ),
        Reject::new(
            OP,
            "a residual of another shape",
            &["residual", "[4]", "[3]"],
            |d| dropout_add(&zeros(3, d)?, &zeros(4, d)?, 0.5, 0).map(drop),
        ),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        dropout(&w.x, 2.0, 0);
        dropout(&w.integers, 0.5, 0);
        dropout_add(&w.x, &w.three, 0.5, 0);
        dropout_add(&w.x, &w.x, 2.0, 0);
        dropout_inplace(&w.x, 2.0, 0);
        relu_dropout(&w.x, 2.0, 0);
        relu_dropout_inplace(&w.x, 2.0, 0);
    }
}
