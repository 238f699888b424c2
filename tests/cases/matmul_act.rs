use super::activation::{name, ACTS};
use super::form::Form;
use super::linear::{bias, weight, SIZES};
use super::refused::{Refused, Wrong};
use super::size::{size, ONE_M, ONE_ROW, TINY};
use super::{zeros, Arg, Fill, Grid, Kind, Measured, OpCase, Reject};
use candle_core::{DType, Result};
use candle_fused::ops::{linear_act, matmul_act, Act, MatmulAct};
use candle_fused::reference::matmul_act::reference;

const OP: &str = "matmul_act";
const X: Arg = Arg::matrix("x", Fill::Signal);

/// Without long sums, whose last digits a bent activation's derivative is too sensitive to.
const SHORT: Grid = &[
    &[3, 0],
    &[0, 3],
    &[1, 1],
    &[1, 64],
    &[2, 31],
    &[7, 33],
    &[9, 33],
    &[512, 5],
    &[33, 65],
];

const TRAIN: &[Kind] = &[Kind::Forward, Kind::Train];
const FEW: [Measured; 2] = [TINY.run(&[Kind::Forward]), ONE_ROW];
/// Of y as wide as x.
const SQUARES: [Measured; 8] = [
    size("1x1", &[1, 1]),
    TINY.slow(),
    size("64x64", &[64, 64]).run(TRAIN).quick(),
    size("256x256", &[256, 256]).of(&[DType::F32]),
    ONE_M.run(TRAIN).of(&[DType::F32]),
    ONE_M
        .run(&[Kind::Forward])
        .of(&[DType::F16, DType::BF16])
        .slow(),
    ONE_ROW,
    size("4x16x1024", &[4, 16, 1024]).of(&[DType::F32]),
];
/// The number of products in a stack, and the columns of each.
const HEADS: [Measured; 3] = [
    size("8x32", &[256, 64])
        .run(TRAIN)
        .of(&[DType::F32])
        .quick(),
    size("8x32", &[256, 64]).of(&[DType::F16]),
    size("2", &[2, 512]).of(&[DType::F32]),
];
/// The same of rows.
const VECTORS: [Measured; 2] = [
    size("3x5", &[3, 5]).of(&[DType::F32]),
    size("8x32", &[256, 64]).of(&[DType::F32, DType::F16]),
];

/// `[cols, outputs]`
const fn y<const OUTPUTS: usize>() -> Arg {
    Arg::new("y", Fill::Signal, |size| vec![size.cols(), OUTPUTS])
}

pub fn cases() -> Vec<OpCase> {
    let plain = OpCase::new(
        OP,
        "matmul",
        &[X, y::<7>()],
        |t| matmul_act(&t[0], &t[1], None, Act::Identity),
        |t| reference(&t[0], &t[1], None, Act::Identity),
    );
    let linear = OpCase::new(
        OP,
        "linear_relu",
        &[X, weight::<33>(), bias::<33>()],
        |t| linear_act(&t[0], &t[1], Some(&t[2]), Act::Relu),
        |t| reference(&t[0], &t[1].t()?, Some(&t[2]), Act::Relu),
    );
    let mut cases = vec![
        plain.product(SIZES).sizes(FEW),
        linear.product(SIZES).sizes(FEW),
        with_bias("matmul_gelu", X, y::<33>(), bias::<33>(), Act::GeluTanh)
            .product(SHORT)
            .sizes([size("3x5", &[3, 5]), TINY]),
        square("square_gelu", Act::GeluTanh),
        square("square_relu", Act::Relu),
        stack::<5, 7>("stack_relu", Act::Relu)
            .product(STACKS)
            .sizes(FEW),
        stack::<128, 128>("heads_gelu", Act::GeluTanh)
            .product(&[&[2, 17]])
            .sizes(HEADS),
        stack::<1, 128>("vectors_gelu", Act::GeluTanh)
            .product(&[&[3, 17]])
            .sizes(VECTORS),
    ];
    for act in ACTS {
        let name = format!("act_{}", name(act));
        let case = with_bias(&name, X, y::<33>(), bias::<33>(), act);
        cases.push(case.product(&[&[2, 3]]).variant());
    }
    cases
}

fn with_bias(name: &str, x: Arg, y: Arg, bias: Arg, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[x, y, bias],
        move |t| matmul_act(&t[0], &t[1], Some(&t[2]), act),
        move |t| reference(&t[0], &t[1], Some(&t[2]), act),
    )
}

/// y as wide as x, which is what models and benches have.
fn square(name: &str, act: Act) -> OpCase {
    let y = Arg::new("y", Fill::Signal, |size| vec![size.cols(), size.cols()]);
    let bias = Arg::vector("bias", Fill::Addend);
    with_bias(name, X, y, bias, act)
        .product(&[&[1, 1], &[1, 64], &[10, 33], &[67, 33]])
        .sizes(SQUARES)
}

/// As many products as there are rows, each of `[M, cols]` and `[cols, N]`.
fn stack<const M: usize, const N: usize>(name: &str, act: Act) -> OpCase {
    let x = Arg::new("x", Fill::Signal, |size| vec![size.rows(), M, size.cols()]);
    let y = Arg::new("y", Fill::Signal, |size| vec![size.rows(), size.cols(), N]);
    with_bias(name, x, y, bias::<N>(), act)
}

const STACKS: Grid = &[
    &[3, 0],
    &[0, 3],
    &[1, 1],
    &[2, 33],
    &[3, 129],
    &[40, 5],
    &[300, 31],
];

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let act = Act::GeluTanh;
    Ok(forms! {
        MatmulAct(act) => CustomOp2 CustomOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "other inner dims",
            &["[2, 4]", "[3, 5]", "[.., 4, n]"],
            |d| matmul_act(&zeros((2, 4), d)?, &zeros((3, 5), d)?, None, Act::Relu).map(drop),
        ),
        Reject::new(
            OP,
            "leading dims that don't broadcast",
            &["[2, 3, 4]", "[3, 4, 5]", "broadcast"],
            |d| {
                matmul_act(
                    &zeros((2, 3, 4), d)?,
                    &zeros((3, 4, 5), d)?,
                    None,
                    Act::Relu,
                )
                .map(drop)
            },
        ),
        Reject::new(OP, "a vector", &["[4]", "[.., m, k]"], |d| {
            matmul_act(&zeros(4, d)?, &zeros((4, 5), d)?, None, Act::Relu).map(drop)
        }),
        Reject::new(OP, "a scalar", &["[]", "[.., k, n]"], |d| {
            matmul_act(&zeros((2, 4), d)?, &zeros((), d)?, None, Act::Relu).map(drop)
        }),
        Reject::new(
            OP,
            "a bias of another length",
            &["bias", "[4]", "[5]"],
            |d| {
                let bias = zeros(4, d)?;
                matmul_act(
                    &zeros((2, 4), d)?,
                    &zeros((4, 5), d)?,
                    Some(&bias),
                    Act::Relu,
                )
                .map(drop)
            },
        ),
        Reject::new(
            "linear_act",
            "a weight of other columns",
            &["[5, 3]", "4"],
            |d| linear_act(&zeros((2, 4), d)?, &zeros((5, 3), d)?, None, Act::Relu).map(drop),
        ),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        linear_act(&w.x, &w.wide, None, w.act);
        linear_act(&w.x, &w.weight, Some(&w.three), w.act);
        matmul_act(&w.x, &w.weight, None, w.act);
        matmul_act(&w.three, &w.weight, None, w.act);
    }
}
