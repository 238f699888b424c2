use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{ONE_M, SIXTEEN_M, TINY};
use super::{Arg, Fill, Kind, OpCase, Reject};
use candle_core::Result;
use candle_fused::ops::{activation, activation_inplace, Act, Activation};
use candle_fused::reference::activation::reference;

pub const ACTS: [Act; 10] = [
    Act::Identity,
    Act::Relu,
    Act::Relu2,
    Act::LeakyRelu(0.01),
    Act::GeluTanh,
    Act::GeluErf,
    Act::Silu,
    Act::Sigmoid,
    Act::Tanh,
    Act::Softplus,
];

/// What cases and rows of `compare` are called by.
pub fn name(act: Act) -> &'static str {
    match act {
        Act::GeluTanh => "gelu",
        act => act.name(),
    }
}

pub fn cases() -> Vec<OpCase> {
    let case = |act: Act| {
        let case = OpCase::new(
            "activation",
            name(act),
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
            Act::Silu => case.sizes([
                TINY,
                ONE_M,
                SIXTEEN_M,
                SIXTEEN_M.run(&[Kind::InPlace]).quick(),
            ]),
            Act::Relu => case.sizes([TINY, ONE_M, SIXTEEN_M.run(&[Kind::Forward, Kind::InPlace])]),
            Act::GeluTanh | Act::GeluErf | Act::Sigmoid | Act::Tanh => {
                case.sizes([TINY, ONE_M, SIXTEEN_M])
            }
            // Overflows where x is large, but takes half the ops.
            Act::Softplus => case.stock_with_gradients(|t| (t[0].exp()? + 1.0)?.log()),
            _ => case,
        }
    };
    ACTS.map(case).into()
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let act = Act::GeluTanh;
    Ok(forms! {
        Activation(act) => CustomOp1 InplaceOp1;
        Activation(Act::Identity) => CustomOp1 InplaceOp1;
    })
}

/// Nothing of its own: any float of any shape will do.
pub fn rejects() -> Vec<Reject> {
    vec![]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        activation(&w.integers, w.act);
        activation_inplace(&w.integers, w.act);
        gelu(&w.integers);
        gelu_erf(&w.integers);
        leaky_relu(&w.integers, 0.1);
        relu(&w.integers);
        relu2(&w.integers);
        sigmoid(&w.integers);
        silu(&w.integers);
        softplus(&w.integers);
        tanh(&w.integers);
    }
}
