use super::{Arg, Fill, OpCase};
use candle_fused::ops::activation::{activation, activation_inplace, reference, Act, Activation};

pub const ACTS: [Act; 10] = [
    Act::Identity,
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
        let case = OpCase::new(
            "activation",
            act.name(),
            &[Arg::matrix("x", Fill::Signal)],
            // The function knows that there is nothing to do; the op can be applied all the same.
            move |t| match act {
                Act::Identity => t[0].apply_op1(Activation(act)),
                act => activation(&t[0], act),
            },
            move |t| reference(&t[0], act),
        )
        .in_place(move |t| activation_inplace(&t[0], act));
        match act {
            Act::Identity => case.variant(),
            _ => case,
        }
    };
    ACTS.map(case).into()
}
