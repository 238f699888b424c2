use super::activation::{name, ACTS};
use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{ONE_M, SIXTEEN_M, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::{
    geglu, geglu_packed, glu, glu_inplace, glu_packed, reglu, reglu_packed, swiglu, swiglu_packed,
    Act, Glu, GluPacked,
};
use candle_fused::reference::glu::{reference, reference_packed};

const OP: &str = "glu";

pub fn cases() -> Vec<OpCase> {
    let mut cases = vec![
        two("swiglu", swiglu, Act::Silu).sizes([TINY, ONE_M, SIXTEEN_M]),
        two("geglu", geglu, Act::GeluTanh),
        two("reglu", reglu, Act::Relu),
        two(
            "geglu_erf",
            |gate, up| glu(gate, up, Act::GeluErf),
            Act::GeluErf,
        ),
        packed("swiglu_packed", swiglu_packed, Act::Silu).stock(|t| candle_nn::ops::swiglu(&t[0])),
        packed("geglu_packed", geglu_packed, Act::GeluTanh),
        packed("reglu_packed", reglu_packed, Act::Relu),
    ];
    for act in ACTS {
        let name = format!("glu_{}", name(act));
        cases.push(two(&name, move |gate, up| glu(gate, up, act), act).variant());
    }
    cases
}

fn two(
    name: &str,
    fused: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    act: Act,
) -> OpCase {
    let args = [
        Arg::matrix("gate", Fill::Signal),
        Arg::matrix("up", Fill::Signal),
    ];
    OpCase::new(
        OP,
        name,
        &args,
        move |t| fused(&t[0], &t[1]),
        move |t| reference(&t[0], &t[1], act),
    )
    .in_place(move |t| glu_inplace(&t[0], &t[1], act))
}

fn packed(name: &str, fused: fn(&Tensor) -> Result<Tensor>, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[Arg::new("x", Fill::Signal, |size| {
            vec![size.rows(), 2 * size.cols()]
        })],
        move |t| fused(&t[0]),
        move |t| reference_packed(&t[0], act),
    )
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let act = Act::GeluTanh;
    Ok(forms! {
        Glu(act) => CustomOp2 InplaceOp2;
        GluPacked(act) => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "an up of another shape", &["up", "[3]", "[4]"], |d| {
            swiglu(&zeros(4, d)?, &zeros(3, d)?).map(drop)
        }),
        Reject::new(
            OP,
            "an up of another shape, in place",
            &["up", "[1, 4]", "[4]"],
            |d| glu_inplace(&zeros(4, d)?, &zeros((1, 4), d)?, Act::Silu),
        ),
        Reject::new(OP, "an odd packed dim", &["5", "even"], |d| {
            swiglu_packed(&zeros((2, 5), d)?).map(drop)
        }),
        Reject::new(OP, "a packed scalar", &["packed", "even"], |d| {
            glu_packed(&zeros((), d)?, Act::Relu).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        geglu(&w.x, &w.three);
        geglu_packed(&w.odd);
        glu(&w.x, &w.three, w.act);
        glu_inplace(&w.x, &w.three, w.act);
        glu_packed(&w.odd, w.act);
        glu_packed(&w.scalar, w.act);
        reglu(&w.x, &w.three);
        reglu_packed(&w.odd);
        swiglu(&w.x, &w.three);
        swiglu_packed(&w.odd);
    }
}
