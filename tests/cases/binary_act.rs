use super::activation::{self, ACTS};
use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{COLS, ONE_M, ROWS, SIXTEEN_M, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::Result;
use candle_fused::ops::{
    add_act, add_act_inplace, add_relu, bias_act, mul_act, mul_act_inplace, mul_relu, Act,
    BinaryAct, BinaryOp,
};
use candle_fused::reference::binary_act::reference;

const OP: &str = "binary_act";
const X: Arg = Arg::matrix("x", Fill::Signal);

pub fn cases() -> Vec<OpCase> {
    let mut cases = vec![
        OpCase::new(
            OP,
            "add_relu",
            &[X, Arg::matrix("y", Fill::Addend)],
            |t| add_relu(&t[0], &t[1]),
            |t| reference(&t[0], &t[1], BinaryOp::Add, Act::Relu),
        )
        .in_place(|t| add_act_inplace(&t[0], &t[1], Act::Relu))
        .sizes([TINY, ONE_M, SIXTEEN_M]),
        OpCase::new(
            OP,
            "mul_relu",
            &[X, Arg::matrix("y", Fill::Signal)],
            |t| mul_relu(&t[0], &t[1]),
            |t| reference(&t[0], &t[1], BinaryOp::Mul, Act::Relu),
        )
        .in_place(|t| mul_act_inplace(&t[0], &t[1], Act::Relu)),
        bias("bias_gelu", Act::GeluTanh).sizes([TINY, ROWS, COLS, ONE_M]),
        bias("bias_silu", Act::Silu),
    ];
    cases.push(add("add", Arg::matrix("y", Fill::Addend), Act::Identity));
    cases.push(add("add_tanh", Arg::column("y", Fill::Addend), Act::Tanh));
    cases.push(mul("mul_silu", Arg::matrix("y", Fill::Signal), Act::Silu));
    cases.push(mul(
        "mul_sigmoid_by_vector",
        Arg::vector("y", Fill::Signal),
        Act::Sigmoid,
    ));
    cases.push(mul(
        "mul_gelu_by_column",
        Arg::column("y", Fill::Signal),
        Act::GeluTanh,
    ));
    for act in ACTS {
        let name = activation::name(act);
        let (added, factor) = (
            Arg::matrix("y", Fill::Addend),
            Arg::matrix("y", Fill::Signal),
        );
        cases.push(add(&format!("add_act_{name}"), added, act).variant());
        cases.push(mul(&format!("mul_act_{name}"), factor, act).variant());
    }
    cases
}

fn add(name: &str, y: Arg, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X, y],
        move |t| add_act(&t[0], &t[1], act),
        move |t| reference(&t[0], &t[1], BinaryOp::Add, act),
    )
    .in_place(move |t| add_act_inplace(&t[0], &t[1], act))
}

fn mul(name: &str, y: Arg, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X, y],
        move |t| mul_act(&t[0], &t[1], act),
        move |t| reference(&t[0], &t[1], BinaryOp::Mul, act),
    )
    .in_place(move |t| mul_act_inplace(&t[0], &t[1], act))
}

fn bias(name: &str, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[X, Arg::vector("bias", Fill::Addend)],
        move |t| bias_act(&t[0], &t[1], act),
        move |t| reference(&t[0], &t[1], BinaryOp::Add, act),
    )
    .in_place(move |t| add_act_inplace(&t[0], &t[1], act))
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let act = Act::GeluTanh;
    Ok(forms! {
        BinaryAct { op: BinaryOp::Add, act } => CustomOp2 InplaceOp2;
        BinaryAct { op: BinaryOp::Mul, act: Act::Relu } => CustomOp2 InplaceOp2;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "a y that does not broadcast",
            &["[3]", "[2, 4]", "broadcast"],
            |d| add_relu(&zeros((2, 4), d)?, &zeros(3, d)?).map(drop),
        ),
        Reject::new(OP, "a y that is larger than x", &["[2, 4]", "[4]"], |d| {
            mul_relu(&zeros(4, d)?, &zeros((2, 4), d)?).map(drop)
        }),
        Reject::new(
            OP,
            "a y that does not broadcast, in place",
            &["[2]", "[2, 4]"],
            |d| mul_act_inplace(&zeros((2, 4), d)?, &zeros(2, d)?, Act::Relu),
        ),
        Reject::new("bias_act", "a bias of another length", &["[3]", "4"], |d| {
            bias_act(&zeros((2, 4), d)?, &zeros(3, d)?, Act::GeluTanh).map(drop)
        }),
        Reject::new("bias_act", "a scalar x", &["rank 0", "rank 1"], |d| {
            bias_act(&zeros((), d)?, &zeros(1, d)?, Act::GeluTanh).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        add_act(&w.x, &w.three, w.act);
        add_act(&w.integers, &w.integers, w.act);
        add_act_inplace(&w.x, &w.three, w.act);
        add_relu(&w.x, &w.three);
        bias_act(&w.x, &w.three, w.act);
        bias_act_inplace(&w.x, &w.three, w.act);
        mul_act(&w.x, &w.three, w.act);
        mul_act_inplace(&w.x, &w.three, w.act);
        mul_relu(&w.x, &w.three);
    }
}
