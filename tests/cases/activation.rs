use super::{Arg, Fill, OpCase, Reject};
use candle_core::{DType, Tensor, Var};
use candle_fused::ops::activation::{self, activation_inplace, reference, Act};

const OP: &str = "activation";

const ACTS: [Act; 9] = [
    Act::Relu,
    Act::Relu2,
    Act::LeakyRelu(0.01),
    Act::Gelu,
    Act::GeluErf,
    Act::Silu,
    Act::Sigmoid,
    Act::Tanh,
    Act::Softplus,
];

pub fn cases() -> Vec<OpCase> {
    ACTS.map(|act| {
        OpCase::new(
            OP,
            act.name(),
            vec![Arg::matrix("x", Fill::Signal)],
            move |t| activation::activation(&t[0], act),
            move |t| reference(&t[0], act),
        )
        .in_place(move |t| activation_inplace(&t[0], act))
    })
    .into()
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject {
            op: OP,
            what: "integers",
            call: |device| {
                let x = Tensor::zeros(3, DType::U32, device)?;
                activation::silu(&x).map(drop)
            },
            says: &["U32", "f32, f16 or bf16"],
        },
        Reject {
            op: OP,
            what: "integers in place",
            call: |device| {
                let x = Tensor::zeros(3, DType::I64, device)?;
                activation_inplace(&x, Act::Relu)
            },
            says: &["I64", "f32, f16 or bf16"],
        },
        Reject {
            op: OP,
            what: "in place on a variable",
            call: |device| {
                let x = Var::zeros(3, DType::F32, device)?;
                activation_inplace(&x, Act::Silu)
            },
            says: &["in place", "tracks gradients"],
        },
        Reject {
            op: OP,
            what: "in place on a tensor of a graph",
            call: |device| {
                let x = Var::zeros(3, DType::F32, device)?;
                activation_inplace(&x.affine(2.0, 0.0)?, Act::Silu)
            },
            says: &["in place", "tracks gradients"],
        },
    ]
}
