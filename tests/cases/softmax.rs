use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, variant, COLS, HEADS, LOGITS, ROWS, SQUARE, TINY};
use super::{call, zeros, Arg, Call, Fill, Grid, Kind, Measured, OpCase, Reject, Run};
use candle_core::{Result, Tensor, D};
use candle_fused::ops::{
    log_softmax, log_softmax_last_dim_inplace, masked_softmax, masked_softmax_inplace, softmax,
    softmax_last_dim, softmax_last_dim_inplace, Mask, MaskedSoftmax, Softmax,
};
use candle_fused::reference::softmax::{reference, reference_log, reference_masked};

const OP: &str = "softmax";
const SCALE: f32 = 0.125;
const STOCK_SCALE: f64 = SCALE as f64;
const X: Arg = Arg::matrix("x", Fill::Signal);
const MIDDLE: Measured = size("2x128x4096", &[4096, 128]).run(&[Kind::Forward, Kind::Train]);
/// `[batch, heads, queries, keys]`
const SCORES: Arg = Arg::new("x", Fill::Signal, |size| {
    vec![2, 3, size.rows(), size.cols()]
});
/// `[batch, 1, queries, keys]`
const HEADS_MASK: Arg = Arg::new("mask", Fill::Mask, |size| {
    vec![2, 1, size.rows(), size.cols()]
});
/// On both sides of where Metal's kernels change, and at the end of what each may hold.
const WIDTHS: Grid = &[
    &[2, 255],
    &[2, 256],
    &[2, 257],
    &[2, 1000],
    &[2, 1023],
    &[2, 1024],
];
/// Few queries of each head; keys that are a multiple of a vector's four and that aren't.
const SCORE_SIZES: Grid = &[&[0, 3], &[1, 1], &[3, 5], &[5, 8], &[2, 33], &[3, 260]];
/// For a softmax over the middle dim.
const STACK: Arg = Arg::new("x", Fill::Signal, |size| vec![2, size.cols(), size.rows()]);

pub fn cases() -> Vec<OpCase> {
    let mask = Arg::new("mask", Fill::Mask, |size| vec![1, size.cols()]);
    let cases = vec![
        OpCase::new(
            OP,
            "softmax_last_dim",
            &[X],
            |t| softmax_last_dim(&t[0]),
            |t| reference(&t[0], t[0].rank() - 1),
        )
        .stock(|t| candle_nn::ops::softmax_last_dim(&t[0]))
        .sizes([
            TINY,
            LOGITS,
            size("32x1024", &[32, 1024]),
            ROWS,
            COLS,
            HEADS,
            size("512x32000", &[512, 32000]),
            SQUARE.run(&[Kind::Forward, Kind::InPlace]),
        ])
        .in_place(|t| softmax_last_dim_inplace(&t[0])),
        OpCase::new(
            OP,
            "log_softmax",
            &[X],
            |t| log_softmax(&t[0], D::Minus1),
            |t| reference_log(&t[0], t[0].rank() - 1),
        )
        .in_place(|t| log_softmax_last_dim_inplace(&t[0]))
        .sizes([variant(HEADS), vec![LOGITS]].concat()),
        OpCase::new(
            OP,
            "softmax_of_widths",
            &[X],
            |t| softmax_last_dim(&t[0]),
            |t| reference(&t[0], t[0].rank() - 1),
        )
        .in_place(|t| softmax_last_dim_inplace(&t[0]))
        .grid(WIDTHS)
        .sizes([]),
        OpCase::new(
            OP,
            "softmax_middle_dim",
            &[STACK],
            |t| softmax(&t[0], 1),
            |t| reference(&t[0], 1),
        )
        .sizes([MIDDLE]),
        OpCase::new(
            OP,
            "log_softmax_middle_dim",
            &[STACK],
            |t| log_softmax(&t[0], 1),
            |t| reference_log(&t[0], 1),
        )
        .sizes([MIDDLE]),
        unmasked("scaled_softmax", X, Mask::None)
            .stock_fast(|run| Ok(Some(stock(run, None))))
            .sizes(variant(HEADS)),
        unmasked("causal_softmax", X, Mask::Causal)
            .hiding()
            .stock_fast(|run| Ok(Some(stock(run, Some(causal_mask(run)?)))))
            .sizes(variant(HEADS)),
        additive("masked_softmax", X, mask)
            .stock_fast(|run| {
                let softmax = softmax_of(run);
                let masked =
                    move |t: &[Tensor]| softmax((&t[0] * STOCK_SCALE)?.broadcast_add(&t[1])?);
                Ok(Some(call(masked)))
            })
            .sizes(variant(HEADS)),
        // It masks a whole row, which is NaN in stock Candle.
        additive(
            "masked_softmax_by_matrix",
            X,
            Arg::matrix("mask", Fill::Mask),
        )
        .sizes([]),
        // One mask for all heads of a batch, and queries that begin anew in each head.
        additive("masked_softmax_of_heads", SCORES, HEADS_MASK.constant())
            .grid(SCORE_SIZES)
            .sizes([]),
        additive("masked_softmax_of_heads_trained", SCORES, HEADS_MASK)
            .grid(&[&[3, 5], &[2, 33]])
            .sizes([]),
        unmasked("causal_softmax_of_heads", SCORES, Mask::Causal)
            .hiding()
            .grid(SCORE_SIZES)
            .sizes([]),
    ];
    // The backward starts from the outputs, which have been rounded.
    let cases = cases.into_iter().map(OpCase::reduction);
    cases.map(OpCase::stepwise_gradients).collect()
}

fn unmasked(name: &str, x: Arg, mask: Mask<'static>) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[x],
        move |t| masked_softmax(&t[0], SCALE, mask),
        move |t| reference_masked(&t[0], SCALE, mask),
    )
    .in_place(move |t| masked_softmax_inplace(&t[0], SCALE, mask))
}

fn additive(name: &str, x: Arg, mask: Arg) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[x, mask],
        |t| masked_softmax(&t[0], SCALE, Mask::Additive(&t[1])),
        |t| reference_masked(&t[0], SCALE, Mask::Additive(&t[1])),
    )
    .in_place(|t| masked_softmax_inplace(&t[0], SCALE, Mask::Additive(&t[1])))
}

/// Stock's softmax of a row of `compare`: fused, or composed in order to train.
fn softmax_of(run: &Run) -> fn(Tensor) -> Result<Tensor> {
    match run.kind {
        Kind::Train => |scores| candle_nn::ops::softmax(&scores, D::Minus1),
        _ => |scores| candle_nn::ops::softmax_last_dim(&scores),
    }
}

/// The softmax of scaled scores with a mask that a model makes once. Fully masked rows give NaN.
fn stock(run: &Run, mask: Option<Tensor>) -> Call {
    let softmax = softmax_of(run);
    call(move |t| match &mask {
        Some(mask) => softmax((&t[0] * STOCK_SCALE)?.broadcast_add(mask)?),
        None => softmax((&t[0] * STOCK_SCALE)?),
    })
}

/// `[queries, keys]`; the last query sees every key.
fn causal_mask(run: &Run) -> Result<Tensor> {
    let &[.., queries, keys] = run.size.dims() else {
        candle_core::bail!("queries and keys make two dims");
    };
    let mask: Vec<f32> = (0..queries * keys)
        .map(|i| match i % keys + queries <= i / keys + keys {
            true => 0.0,
            false => f32::NEG_INFINITY,
        })
        .collect();
    Tensor::from_vec(mask, (queries, keys), run.device)?.to_dtype(run.dtype)
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    Ok(forms! {
        MaskedSoftmax { scale: 1.0, causal: false } => CustomOp1 CustomOp2 InplaceOp1 InplaceOp2;
        MaskedSoftmax { scale: 1.0, causal: true } => CustomOp1 CustomOp2 InplaceOp1 InplaceOp2;
        Softmax { dim: 0, log: false } => CustomOp1 InplaceOp1;
        Softmax { dim: 1, log: true } => CustomOp1 InplaceOp1;
        Softmax { dim: 7, log: false } => CustomOp1 InplaceOp1;
    })
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

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        log_softmax(&w.x, 2);
        log_softmax(&w.integers, 0);
        log_softmax_last_dim_inplace(&w.scalar);
        masked_softmax(&w.x, 1.0, Mask::Additive(&w.three));
        masked_softmax(&w.scalar, 1.0, Mask::None);
        masked_softmax(&w.three, 1.0, Mask::Causal);
        masked_softmax_inplace(&w.x, 1.0, Mask::Additive(&w.three));
        softmax(&w.x, 2);
        softmax(&w.integers, 0);
        softmax_last_dim(&w.integers);
        softmax_last_dim(&w.scalar);
        softmax_last_dim_inplace(&w.integers);
        softmax_last_dim_inplace(&w.scalar);
    }
}
