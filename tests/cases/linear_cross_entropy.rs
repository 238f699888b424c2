//! `linear_cross_entropy`: x `[.., in]` and W `[33, in]`, with chunks of fewer rows than x has.

use super::cross_entropy::some;
use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, Kind, Measured};
use super::{zeros, Arg, Fill, Grid, OpCase, Reject};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{
    linear_cross_entropy, CrossEntropyConfig, LinearCrossEntropy, LinearCrossEntropyConfig,
    LossReduction,
};
use candle_fused::reference::linear_cross_entropy::reference;

const OP: &str = "linear_cross_entropy";
const X: Arg = Arg::matrix("x", Fill::Weight);
const W: Arg = Arg::new("w", Fill::Signal, |size| vec![33, size.cols()]);
const SIZES: Grid = &[
    &[0, 3],
    &[1, 1],
    &[3, 5],
    &[2, 3, 4],
    &[9, 17],
    &[12, 33],
    &[70, 40],
];
/// A vocabulary of 32000.
const HEAD: Arg = Arg::new("w", Fill::Signal, |size| vec![32000, size.cols()]);
const MODEL: Measured = size("2048x4096x32000", &[2048, 4096])
    .run(&[Kind::Forward, Kind::Train])
    .of(&[DType::F32]);

/// A class for each row of x, and −100 for every fourth.
fn targets(t: &[Tensor]) -> Result<Tensor> {
    let dims = t[0].dims();
    let logits = [&dims[..dims.len() - 1], &[t[1].dim(0)?]].concat();
    // A view: no memory of that size.
    some(&zeros(1, t[0].device())?.broadcast_as(logits)?)
}

fn case(
    name: &str,
    w: Arg,
    config: impl Fn(&[Tensor]) -> Result<LinearCrossEntropyConfig> + Clone + Send + Sync + 'static,
) -> OpCase {
    let own = config.clone();
    OpCase::new(
        OP,
        name,
        &[X, w],
        move |t| linear_cross_entropy(&t[0], &t[1], &targets(t)?, &own(t)?),
        move |t| reference(&t[0], &t[1], &targets(t)?, &config(t)?),
    )
    .product(SIZES)
    .grid(SIZES)
}

fn with(
    reduction: LossReduction,
    label_smoothing: f32,
    softcap: Option<f32>,
) -> LinearCrossEntropyConfig {
    LinearCrossEntropyConfig {
        loss: CrossEntropyConfig {
            reduction,
            label_smoothing,
            ..Default::default()
        },
        softcap,
        chunk_rows: Some(5),
    }
}

pub fn cases() -> Vec<OpCase> {
    vec![
        case("linear_cross_entropy", W, |_| {
            Ok(with(LossReduction::Mean, 0.0, None))
        })
        .sizes([]),
        case("linear_cross_entropy_of_rows", W, |_| {
            Ok(with(LossReduction::None, 0.1, Some(2.0)))
        })
        .sizes([]),
        case("linear_cross_entropy_weighted", W, |t| {
            let mut config = with(LossReduction::Sum, 0.25, Some(3.0));
            let classes = t[1].dim(0)?;
            let weight = super::cross_entropy::weight(&t[1].t()?.narrow(0, 0, 1)?)?;
            assert_eq!(weight.dims(), [classes]);
            config.loss.weight = Some(weight);
            Ok(config)
        })
        .sizes([]),
        case("linear_cross_entropy_of_a_model", HEAD, |_| {
            Ok(Default::default())
        })
        .at(MODEL),
    ]
}

pub fn custom_ops() -> Result<Vec<Form>> {
    let plain = LinearCrossEntropyConfig::default;
    let weighted = |count: usize| -> Result<LinearCrossEntropyConfig> {
        let mut config = with(LossReduction::Sum, 0.1, Some(2.0));
        config.loss.weight = Some(Tensor::ones(count, DType::F32, &Device::Cpu)?);
        Ok(config)
    };
    Ok(forms! {
        LinearCrossEntropy { config: plain() } => CustomOp3;
        LinearCrossEntropy { config: weighted(4)? } => CustomOp3;
        LinearCrossEntropy { config: weighted(1000)? } => CustomOp3;
        LinearCrossEntropy { config: LinearCrossEntropyConfig { chunk_rows: Some(usize::MAX), ..plain() } } => CustomOp3;
        LinearCrossEntropy { config: LinearCrossEntropyConfig { softcap: Some(f32::NAN), ..plain() } } => CustomOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "a weight of other columns",
            &["[5, 3]", "[classes, 4]"],
            |d| {
                let target = Tensor::zeros(2, DType::U32, d)?;
                let (x, w) = (zeros((2, 4), d)?, zeros((5, 3), d)?);
                linear_cross_entropy(&x, &w, &target, &Default::default()).map(drop)
            },
        ),
        Reject::new(
            OP,
            "targets of other rows",
            &["target", "[3]", "[2]"],
            |d| {
                let target = Tensor::zeros(3, DType::U32, d)?;
                let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
                linear_cross_entropy(&x, &w, &target, &Default::default()).map(drop)
            },
        ),
        Reject::new(
            OP,
            "a chunk that no memory holds",
            &["the logits of a chunk"],
            |d| {
                // Views of one number each.
                let (rows, classes) = (1usize << 31, 1usize << 31);
                let target = Tensor::zeros(1, DType::U32, d)?.broadcast_as(rows)?;
                let x = zeros((1, 1), d)?.broadcast_as((rows, 1))?;
                let w = zeros((1, 1), d)?.broadcast_as((classes, 1))?;
                let config = LinearCrossEntropyConfig {
                    chunk_rows: Some(usize::MAX),
                    ..Default::default()
                };
                linear_cross_entropy(&x, &w, &target, &config).map(drop)
            },
        ),
        Reject::new(OP, "a cap of zero", &["softcap = 0"], |d| {
            let target = Tensor::zeros(2, DType::U32, d)?;
            let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
            let config = with(LossReduction::Mean, 0.0, Some(0.0));
            linear_cross_entropy(&x, &w, &target, &config).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    let config = LinearCrossEntropyConfig::default();
    refused! {
        linear_cross_entropy(&w.x, &w.wide, &w.integers, &config);
        linear_cross_entropy(&w.x, &w.weight, &w.three, &config);
        linear_cross_entropy_grads(&w.x, &w.wide, &w.integers, &config);
    }
}
