use super::{Arg, Fill, OpCase};
use candle_fused::ops::activation::{activation, activation_inplace, reference, Act};

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
    let case = |act: Act| {
        OpCase::new(
            "activation",
            act.name(),
            &[Arg::matrix("x", Fill::Signal)],
            move |t| activation(&t[0], act),
            move |t| reference(&t[0], act),
        )
        .in_place(move |t| activation_inplace(&t[0], act))
    };
    ACTS.map(case).into()
}
