use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, variant, ALL, BATCH, COLS, LOGITS, ROWS, SQUARE, TINY};
use super::{zeros, Arg, Fill, Grid, Measured, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::{
    max, max_all, max_last_dim, mean, mean_all, mean_last_dim, sum, sum_all, sum_last_dim, Over,
    Reduce, Reduction,
};
use candle_fused::reference::reduce::{reference_all, reference_dims, reference_last_dim};

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
    let mut cases = vec![
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
    ];
    cases.extend(over_dims());
    cases
}

/// The sizes of four dims: each of the kernels' ways, their parts of vectors, and runs that are cut into blocks on Metal.
const DIMS: Grid = &[
    &[2, 3, 4, 5],
    &[1, 1, 1, 1],
    &[3, 1, 5, 1],
    &[2, 300, 3, 7],
    &[3, 7, 20, 33],
    &[1, 400, 1, 3],
];
/// As [`DIMS`], the smallest first: the slope by differences is only right where no maximum is there twice.
const MAXIMA: Grid = &[
    &[2, 2, 1, 2],
    &[1, 1, 1, 1],
    &[2, 300, 3, 7],
    &[3, 7, 20, 33],
];
/// Those of a convolutional model, channels first or last.
const IMAGES: [Measured; 2] = [
    size("16x384x14x14", &[16, 384, 14, 14]).run(ALL).quick(),
    size("16x56x56x96", &[16, 56, 56, 96]),
];

fn over_dims() -> Vec<OpCase> {
    type Fused = fn(&Tensor, &'static [usize]) -> Result<Tensor>;
    let case = |name, fused: Fused, reduction, dims: &'static [usize]| {
        OpCase::new(
            OP,
            name,
            &[Arg::matrix("x", Fill::Signal)],
            move |t| fused(&t[0], dims),
            move |t| reference_dims(&t[0], dims, reduction),
        )
        .reduction()
        .grid(DIMS)
        .sizes(IMAGES)
    };
    vec![
        case("sum_of_channels", sum, Reduction::Sum, &[0, 2, 3]),
        case("sum_of_rows", sum, Reduction::Sum, &[1, 2]).sizes([]),
        case("sum_of_two_runs", sum, Reduction::Sum, &[0, 2]).sizes([]),
        case("sum_over_none", sum, Reduction::Sum, &[]).sizes([]),
        case("mean_of_pixels", mean, Reduction::Mean, &[2, 3]),
        case("mean_over_channels", mean, Reduction::Mean, &[1]),
        case("max_over_channels", max, Reduction::Max, &[1]).grid(MAXIMA),
        case("max_of_pixels", max, Reduction::Max, &[2, 3])
            .grid(MAXIMA)
            .sizes([]),
        case("max_of_channels", max, Reduction::Max, &[0, 2, 3])
            .grid(MAXIMA)
            .sizes([]),
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
        Reject::new(OP, "a dim that x lacks", &["sum", "2"], |d| {
            sum(&zeros((3, 4), d)?, 2).map(drop)
        }),
        Reject::new(OP, "a dim twice", &["mean"], |d| {
            mean(&zeros((3, 4), d)?, (1, 1)).map(drop)
        }),
        Reject::new(OP, "the maximum of empty columns", &["[0, 3]"], |d| {
            max(&zeros((0, 3), d)?, 0).map(drop)
        }),
        Reject::new(OP, "the maximum of empty rows", &["[3, 0]"], |d| {
            max_last_dim(&zeros((3, 0), d)?).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        max(&w.none, 0);
        max(&w.integers, 0);
        max_keepdim(&w.integers, 0);
        mean(&w.integers, 0);
        mean_keepdim(&w.integers, 0);
        sum(&w.integers, 0);
        sum(&w.scalar, 0);
        sum_keepdim(&w.integers, 0);
        max_all(&w.none);
        max_last_dim(&w.scalar);
        mean_all(&w.integers);
        mean_last_dim(&w.scalar);
        sum_all(&w.integers);
        sum_last_dim(&w.scalar);
        sum_last_dim(&w.integers);
    }
}
