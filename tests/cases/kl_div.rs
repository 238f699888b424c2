//! `kl_div` of inputs and targets of every kind.

use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, variant, Measured, ALL};
use super::{zeros, Arg, Fill, Grid, OpCase, Reject};
use candle_core::Result;
use candle_fused::ops::{kl_div, Distribution, KlDiv, LossReduction};
use candle_fused::reference::kl_div::reference;
use Distribution::{LogProbs, Logits, Probs};

const OP: &str = "kl_div";
const INPUT: Arg = Arg::matrix("input", Fill::Signal);
const TARGET: Arg = Arg::matrix("target", Fill::Signal);
/// From 0.5 to 1.5: none is 0.
const WEIGHTS: Arg = Arg::matrix("target", Fill::Weight);
const CLASSES: Measured = size("512x1000", &[512, 1000]).run(ALL).quick();
const VOCABULARY: Measured = size("512x32000", &[512, 32000]).run(ALL);
const WIDTHS: Grid = &[
    &[2, 1],
    &[2, 1024],
    &[2, 1025],
    &[2, 3, 5],
    &[3, 5],
    &[12, 33],
];

fn case(name: &str, target: Arg, config: KlDiv) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[INPUT, target],
        move |t| kl_div(&t[0], &t[1], config),
        move |t| reference(&t[0], &t[1], config),
    )
    .reduction()
}

fn config(input: Distribution, target: Distribution, reduction: LossReduction) -> KlDiv {
    KlDiv {
        input,
        target,
        reduction,
    }
}

pub fn cases() -> Vec<OpCase> {
    use LossReduction::{Mean, None, Sum};
    vec![
        case("distillation", TARGET, config(Logits, Logits, Mean))
            .sizes([variant(CLASSES), vec![VOCABULARY]].concat()),
        case("distillation_of_rows", TARGET, config(Logits, Logits, None)).sizes([]),
        case("kl_div", WEIGHTS, config(LogProbs, Probs, Sum))
            .grid(WIDTHS)
            .sizes([]),
        case("kl_div_of_rows", WEIGHTS, config(Logits, Probs, None))
            .grid(WIDTHS)
            .sizes([]),
        case(
            "kl_div_log_target",
            TARGET,
            config(LogProbs, LogProbs, Mean),
        )
        .grid(WIDTHS)
        .sizes([]),
    ]
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let op = |input| config(input, Probs, LossReduction::Mean);
    Ok(forms! {
        KlDiv { ..op(Logits) } => CustomOp2;
        KlDiv { ..op(LogProbs) } => CustomOp2;
        KlDiv { ..op(Probs) } => CustomOp2;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "another shape", &["target", "[2, 3]", "[2, 4]"], |d| {
            kl_div(&zeros((2, 4), d)?, &zeros((2, 3), d)?, KlDiv::default()).map(drop)
        }),
        Reject::new(OP, "probabilities of the input", &["probabilities"], |d| {
            let x = zeros((2, 4), d)?;
            kl_div(&x, &x, config(Probs, Probs, LossReduction::Mean)).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        kl_div(&w.x, &w.three, KlDiv::default());
        kl_div(&w.scalar, &w.scalar, KlDiv::default());
        kl_div(&w.integers, &w.integers, KlDiv::default());
    }
}
