use super::activation::{name, ACTS};
use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{COLS, ONE_M, ROWS, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::Result;
use candle_fused::ops::{affine_act, affine_act_inplace, Act, AffineAct};
use candle_fused::reference::affine_act::reference;

const OP: &str = "affine_act";

pub fn cases() -> Vec<OpCase> {
    let vector = (
        Arg::vector("scale", Fill::Signal),
        Arg::vector("bias", Fill::Addend),
    );
    let matrix = (
        Arg::matrix("scale", Fill::Signal),
        Arg::matrix("bias", Fill::Addend),
    );
    let mixed = (
        Arg::column("scale", Fill::Signal),
        Arg::vector("bias", Fill::Addend),
    );
    let mut cases = vec![
        case("affine", vector, Act::Identity),
        case("affine_silu", vector, Act::Silu).sizes([TINY, ROWS, COLS, ONE_M]),
        case("affine_relu_by_matrix", matrix, Act::Relu),
        case("affine_gelu_by_column", mixed, Act::GeluTanh),
    ];
    cases.extend(ACTS.map(|act| case(&format!("affine_act_{}", name(act)), vector, act).variant()));
    cases
}

fn case(name: &str, (scale, bias): (Arg, Arg), act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[Arg::matrix("x", Fill::Signal), scale, bias],
        move |t| affine_act(&t[0], &t[1], &t[2], act),
        move |t| reference(&t[0], &t[1], &t[2], act),
    )
    .in_place(move |t| affine_act_inplace(&t[0], &t[1], &t[2], act))
    .stepwise_gradients()
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let act = Act::GeluTanh;
    Ok(forms! {
        AffineAct(act) => CustomOp3 InplaceOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "a scale that does not broadcast",
            &["scale", "[3]", "[2, 4]"],
            |d| {
                let (x, y) = (zeros((2, 4), d)?, zeros(4, d)?);
                affine_act(&x, &zeros(3, d)?, &y, Act::Identity).map(drop)
            },
        ),
        Reject::new(
            OP,
            "a bias that does not broadcast",
            &["bias", "[3]", "[2, 4]"],
            |d| {
                let (x, y) = (zeros((2, 4), d)?, zeros(4, d)?);
                affine_act(&x, &y, &zeros(3, d)?, Act::Identity).map(drop)
            },
        ),
        Reject::new(
            OP,
            "a bias larger than x",
            &["bias", "[2, 4]", "[4]"],
            |d| {
                let (x, y) = (zeros(4, d)?, zeros((2, 4), d)?);
                affine_act_inplace(&x, &x.copy()?, &y, Act::Relu)
            },
        ),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        affine_act(&w.x, &w.three, &w.x, w.act);
        affine_act(&w.integers, &w.integers, &w.integers, w.act);
        affine_act_inplace(&w.x, &w.three, &w.three, w.act);
    }
}
