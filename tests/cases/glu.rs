use super::activation::ACTS;
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{Result, Tensor};
use candle_fused::ops::glu::{
    geglu, geglu_packed, glu, glu_inplace, glu_packed, reference, reference_packed, reglu,
    reglu_packed, swiglu, swiglu_packed,
};
use candle_fused::ops::Act;

const OP: &str = "glu";

pub fn cases() -> Vec<OpCase> {
    let mut cases = vec![
        two("swiglu", swiglu, Act::Silu),
        two("geglu", geglu, Act::Gelu),
        two("reglu", reglu, Act::Relu),
        two(
            "geglu_erf",
            |gate, up| glu(gate, up, Act::GeluErf),
            Act::GeluErf,
        ),
        packed("swiglu_packed", swiglu_packed, Act::Silu).stock(|t| candle_nn::ops::swiglu(&t[0])),
        packed("geglu_packed", geglu_packed, Act::Gelu),
        packed("reglu_packed", reglu_packed, Act::Relu),
    ];
    for act in ACTS {
        let name = format!("glu_{}", act.name());
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
        &[Arg::new("x", Fill::Signal, |rows, cols| {
            vec![rows, 2 * cols]
        })],
        move |t| fused(&t[0]),
        move |t| reference_packed(&t[0], act),
    )
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
        Reject::new(OP, "a packed scalar", &["rank 0", "rank 1"], |d| {
            glu_packed(&zeros((), d)?, Act::Relu).map(drop)
        }),
    ]
}
