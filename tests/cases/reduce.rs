use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{variant, BATCH, COLS, LOGITS, ROWS, SQUARE, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::{
    max_all, max_last_dim, mean_all, mean_last_dim, sum_all, sum_last_dim, Over, Reduce, Reduction,
};
use candle_fused::reference::reduce::{reference_all, reference_last_dim};

const OP: &str = "reduce";

pub fn cases() -> Vec<OpCase> {
    type Reduce = fn(&Tensor) -> Result<Tensor>;
    type Reference = fn(&Tensor, Reduction) -> Result<Tensor>;
    let case = |name, fused: Reduce, reference: Reference, reduction| {
        OpCase::new(
            OP,
            name,
            &[Arg::matrix("x", Fill::Signal)],
            move |t| fused(&t[0]),
            move |t| reference(&t[0], reduction),
        )
        .reduction()
        .sizes(variant(BATCH))
    };
    let main = [TINY, LOGITS, ROWS, COLS, BATCH, SQUARE];
    vec![
        case(
            "sum_last_dim",
            sum_last_dim,
            reference_last_dim,
            Reduction::Sum,
        )
        .sizes(main),
        case(
            "mean_last_dim",
            mean_last_dim,
            reference_last_dim,
            Reduction::Mean,
        ),
        case(
            "max_last_dim",
            max_last_dim,
            reference_last_dim,
            Reduction::Max,
        )
        .sizes(main),
        case("sum_all", sum_all, reference_all, Reduction::Sum).sizes(main),
        case("mean_all", mean_all, reference_all, Reduction::Mean),
        case("max_all", max_all, reference_all, Reduction::Max),
    ]
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    Ok(forms! {
        Reduce { reduction: Reduction::Sum, over: Over::LastDim } => CustomOp1;
        Reduce { reduction: Reduction::Mean, over: Over::All } => CustomOp1;
        Reduce { reduction: Reduction::Max, over: Over::LastDim } => CustomOp1;
        Reduce { reduction: Reduction::Max, over: Over::All } => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "the last dim of a scalar", &["rank 0", "rank 1"], |d| {
            sum_last_dim(&zeros((), d)?).map(drop)
        }),
        Reject::new(OP, "the maximum of nothing", &["[0]"], |d| {
            max_all(&zeros(0, d)?).map(drop)
        }),
        Reject::new(OP, "the maximum of empty rows", &["[3, 0]"], |d| {
            max_last_dim(&zeros((3, 0), d)?).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        max_all(&w.none);
        max_last_dim(&w.scalar);
        mean_all(&w.integers);
        mean_last_dim(&w.scalar);
        sum_all(&w.integers);
        sum_last_dim(&w.scalar);
        sum_last_dim(&w.integers);
    }
}
