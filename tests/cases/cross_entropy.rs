//! Losses over classes. Targets are made from the logits' shape: integers get no gradient.

use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, variant, Measured, ALL, TINY};
use super::{zeros, Arg, Fill, Grid, OpCase, Reject};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{
    cross_entropy, nll, token_log_probs, CrossEntropy, CrossEntropyConfig, LossReduction,
};
use candle_fused::reference::cross_entropy::{reference, reference_nll, reference_token_log_probs};

const OP: &str = "cross_entropy";
const LOGITS: Arg = Arg::matrix("logits", Fill::Signal);
const VOCABULARY: Measured = size("512x32000", &[512, 32000]).run(ALL);
const CLASSES: Measured = size("512x1000", &[512, 1000]).run(ALL).quick();
/// On both sides of where Metal's kernels change, and leading dims of which there are several.
const WIDTHS: Grid = &[
    &[2, 1],
    &[2, 1024],
    &[2, 1025],
    &[2, 3, 5],
    &[3, 5],
    &[12, 33],
];

/// A class for each row, and −100 for every fourth.
pub fn some(logits: &Tensor) -> Result<Tensor> {
    targets(logits, DType::I64, |i, classes| match i % 4 {
        2 => -100,
        _ => (i * 7919 % classes.max(1)) as i64,
    })
}

/// A class for each row, in u32.
fn all(logits: &Tensor) -> Result<Tensor> {
    let class = |i: usize, classes: usize| (i * 7919 % classes.max(1)) as i64;
    targets(logits, DType::U32, class)
}

fn targets(logits: &Tensor, dtype: DType, of: fn(usize, usize) -> i64) -> Result<Tensor> {
    let (classes, leading) = logits.dims().split_last().expect("a dim of classes");
    let count = leading.iter().product();
    let values: Vec<i64> = (0..count).map(|i| of(i, *classes)).collect();
    Tensor::from_vec(values, leading, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(logits.device())
}

/// A weight between ¼ and 2 for each class.
pub fn weight(logits: &Tensor) -> Result<Tensor> {
    let classes = *logits.dims().last().expect("a dim of classes");
    let weights: Vec<f32> = (0..classes).map(|i| (1 + i * 5 % 8) as f32 / 4.0).collect();
    Tensor::from_vec(weights, classes, &Device::Cpu)?
        .to_dtype(logits.dtype())?
        .to_device(logits.device())
}

type Config = fn(&Tensor) -> Result<CrossEntropyConfig>;

fn case(name: &str, config: Config) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[LOGITS],
        move |t| cross_entropy(&t[0], &some(&t[0])?, &config(&t[0])?),
        move |t| reference(&t[0], &some(&t[0])?, &config(&t[0])?),
    )
    .reduction()
}

fn with(reduction: LossReduction, label_smoothing: f32, z_loss: f32) -> CrossEntropyConfig {
    CrossEntropyConfig {
        reduction,
        label_smoothing,
        z_loss,
        ..Default::default()
    }
}

pub fn cases() -> Vec<OpCase> {
    let default = || with(LossReduction::Mean, 0.0, 0.0);
    vec![
        OpCase::new(
            OP,
            "cross_entropy",
            &[LOGITS],
            move |t| cross_entropy(&t[0], &all(&t[0])?, &default()),
            move |t| reference(&t[0], &all(&t[0])?, &default()),
        )
        .reduction()
        .stock_fast(|run| {
            let logits = zeros(run.size.dims(), run.device)?;
            let target = all(&logits.reshape((run.size.rows(), run.size.cols()))?)?;
            Ok(Some(super::call(move |t| {
                candle_nn::loss::cross_entropy(&t[0].flatten_to(t[0].rank() - 2)?, &target)
            })))
        })
        .sizes([TINY, size("32x64", &[32, 64]).run(ALL), CLASSES, VOCABULARY]),
        case("cross_entropy_of_rows", |_| {
            Ok(with(LossReduction::None, 0.0, 0.0))
        })
        .sizes([]),
        case("cross_entropy_sum", |_| {
            Ok(with(LossReduction::Sum, 0.1, 0.0))
        })
        .sizes(variant(CLASSES)),
        case("cross_entropy_z_loss", |_| {
            Ok(with(LossReduction::None, 0.0, 0.01))
        })
        .grid(WIDTHS)
        .sizes([]),
        case("cross_entropy_weighted", |x| {
            Ok(CrossEntropyConfig {
                weight: Some(weight(x)?),
                ..with(LossReduction::Mean, 0.0, 0.0)
            })
        })
        .grid(WIDTHS)
        .sizes([]),
        case("cross_entropy_weighted_smooth", |x| {
            Ok(CrossEntropyConfig {
                weight: Some(weight(x)?),
                ..with(LossReduction::None, 0.25, 0.001)
            })
        })
        .sizes([]),
        OpCase::new(
            OP,
            "token_log_probs",
            &[LOGITS],
            |t| token_log_probs(&t[0], &all(&t[0])?),
            |t| reference_token_log_probs(&t[0], &all(&t[0])?),
        )
        .reduction()
        .grid(WIDTHS)
        .sizes(variant(CLASSES)),
        likelihood("nll", LossReduction::Mean).sizes(variant(CLASSES)),
        likelihood("nll_of_rows", LossReduction::None)
            .grid(WIDTHS)
            .sizes([]),
    ]
}

fn likelihood(name: &str, reduction: LossReduction) -> OpCase {
    let config = move |x: &Tensor| {
        let weight = Some(weight(x)?);
        Result::Ok(CrossEntropyConfig {
            weight,
            ..with(reduction, 0.0, 0.0)
        })
    };
    OpCase::new(
        OP,
        name,
        &[LOGITS],
        move |t| nll(&t[0], &some(&t[0])?, &config(&t[0])?),
        move |t| reference_nll(&t[0], &some(&t[0])?, &config(&t[0])?),
    )
    .reduction()
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let op = |label_smoothing| CrossEntropy {
        ignore_index: Some(-100),
        label_smoothing,
        z_loss: 0.0,
        reduction: LossReduction::Mean,
    };
    Ok(forms! {
        CrossEntropy { ..op(0.0) } => CustomOp2 CustomOp3;
        CrossEntropy { ..op(0.1) } => CustomOp2 CustomOp3;
        CrossEntropy { ..op(f32::NAN) } => CustomOp2 CustomOp3;
    })
}

fn classes(of: &[u32], d: &Device) -> Result<Tensor> {
    Tensor::new(of, d)
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "a scalar", &["rank 0", "rank 1"], |d| {
            cross_entropy(&zeros((), d)?, &classes(&[0], d)?, &Default::default()).map(drop)
        }),
        Reject::new(
            OP,
            "targets of other rows",
            &["target", "[3]", "[2]"],
            |d| {
                let (x, target) = (zeros((2, 4), d)?, classes(&[0, 1, 2], d)?);
                cross_entropy(&x, &target, &Default::default()).map(drop)
            },
        ),
        Reject::new(OP, "targets that are no integers", &["F32", "u32"], |d| {
            cross_entropy(&zeros((2, 4), d)?, &zeros(2, d)?, &Default::default()).map(drop)
        }),
        Reject::new(OP, "no classes", &["0 classes"], |d| {
            let (x, target) = (zeros((2, 0), d)?, classes(&[0, 0], d)?);
            cross_entropy(&x, &target, &Default::default()).map(drop)
        }),
        Reject::new(
            OP,
            "class weights of another length",
            &["weight", "[3]", "[4]"],
            |d| {
                let config = CrossEntropyConfig {
                    weight: Some(zeros(3, d)?),
                    ..Default::default()
                };
                cross_entropy(&zeros((2, 4), d)?, &classes(&[0, 1], d)?, &config).map(drop)
            },
        ),
        Reject::new(OP, "too much smoothing", &["1.5", "0 to 1"], |d| {
            let config = with(LossReduction::Mean, 1.5, 0.0);
            cross_entropy(&zeros((2, 4), d)?, &classes(&[0, 1], d)?, &config).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    let (config, smooth) = (CrossEntropyConfig::default(), with(LossReduction::Mean, 0.1, 0.0));
    refused! {
        cross_entropy(&w.x, &w.three, &config);
        cross_entropy(&w.x, &w.integers, &config);
        cross_entropy(&w.scalar, &w.integers, &config);
        cross_entropy_inplace(w.x.clone(), &w.integers, &config);
        nll(&w.x, &w.integers, &config);
        nll(&w.x, &w.integers, &smooth);
        token_log_probs(&w.x, &w.integers);
        token_log_probs(&w.integers, &w.integers);
    }
}
