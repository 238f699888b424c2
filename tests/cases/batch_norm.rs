use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::only;
use super::{zeros, Arg, Fill, Kind, OpCase, Reject};
use candle_core::{DType, Device, ModuleT, Result, Tensor};
use candle_fused::ops::{batch_norm, batch_norm_train, BatchNorm};
use candle_fused::reference::batch_norm::{reference, reference_train};

const OP: &str = "batch_norm";
const EPS: f32 = 1e-5;
const CHANNELS: usize = 5;
const X: Arg = Arg::new("x", Fill::Signal, |size| {
    vec![size.rows(), CHANNELS, size.cols()]
});
const MEAN: Arg = Arg::new("mean", Fill::Addend, |_| vec![CHANNELS]);
const VAR: Arg = Arg::new("var", Fill::Weight, |_| vec![CHANNELS]);
const WEIGHT: Arg = Arg::new("weight", Fill::Weight, |_| vec![CHANNELS]);
const BIAS: Arg = Arg::new("bias", Fill::Addend, |_| vec![CHANNELS]);
/// Of `[batch, channels]`, the columns.
const COLUMNS: [Arg; 5] = [
    Arg::matrix("x", Fill::Signal),
    Arg::vector("mean", Fill::Addend),
    Arg::vector("var", Fill::Weight),
    Arg::vector("weight", Fill::Weight),
    Arg::vector("bias", Fill::Addend),
];

pub fn cases() -> Vec<OpCase> {
    let [x, mean, var, weight, bias] = COLUMNS;
    let mut cases = vec![
        given("given", &[X, MEAN, VAR, WEIGHT, BIAS]),
        given("given_no_bias", &[X, MEAN, VAR, WEIGHT]),
        given("given_plain", &[image(), MEAN, VAR]),
        given("given_columns", &[x, mean, var, weight, bias]),
        train("train", &[X, WEIGHT, BIAS]),
        train("train_no_bias", &[X, WEIGHT]),
        train("train_plain", &[image()]),
        train("train_columns", &[x, weight, bias]),
        statistics("train_statistics", &[positive(X), WEIGHT, BIAS]),
        statistics("train_statistics_columns", &[positive(x), weight]),
        wide(),
    ];
    for case in &mut cases {
        case.sizes = vec![];
    }
    cases.extend(measured::<1, 64, 8>("1x64x8x8"));
    cases.extend(measured::<32, 64, 56>("32x64x56x56"));
    cases.extend(measured::<32, 512, 7>("32x512x7x7"));
    cases.extend(measured::<8, 32, 112>("8x32x112x112"));
    cases.extend(measured::<256, 1024, 1>("256x1024"));
    cases.into_iter().map(OpCase::reduction).collect()
}

/// With a mean that is not what rounding errors leave of it.
fn positive(x: Arg) -> Arg {
    Arg {
        fill: Fill::Weight,
        ..x
    }
}

fn image() -> Arg {
    Arg::new("x", Fill::Signal, |size| {
        vec![size.rows(), CHANNELS, 2, size.cols()]
    })
}

/// More channels than a row of threads or of vectors has, each longer than a part of a sum.
fn wide() -> OpCase {
    const CHANNELS: usize = 70;
    let x = Arg::new("x", Fill::Signal, |size| {
        vec![size.rows(), CHANNELS, size.cols()]
    });
    let vector = |name, fill| Arg::new(name, fill, |_| vec![CHANNELS]);
    let args = [
        positive(x),
        vector("weight", Fill::Weight),
        vector("bias", Fill::Addend),
    ];
    statistics("train_wide", &args).grid(&[&[4, 3], &[17, 1], &[2, 17], &[5, 64]])
}

/// By a mean and a variance that are given; with as many of weight and bias as there are arguments.
fn given(name: &str, args: &[Arg]) -> OpCase {
    OpCase::new(
        OP,
        name,
        args,
        |t| batch_norm(&t[0], &t[1], &t[2], t.get(3), t.get(4), EPS),
        |t| reference(&t[0], &t[1], &t[2], [t.get(3), t.get(4)], EPS),
    )
}

/// y alone.
fn train(name: &str, args: &[Arg]) -> OpCase {
    OpCase::new(
        OP,
        name,
        args,
        |t| Ok(batch_norm_train(&t[0], t.get(1), t.get(2), EPS)?.0),
        |t| Ok(reference_train(&t[0], [t.get(1), t.get(2)], EPS)?.0),
    )
}

/// y, the mean and the variance, all of which contribute to the loss.
fn statistics(name: &str, args: &[Arg]) -> OpCase {
    fn narrowed(x: &Tensor, outputs: (Tensor, Tensor, Tensor)) -> Result<(Tensor, Tensor, Tensor)> {
        let (y, mean, var) = outputs;
        let narrow = |statistic: Tensor| match statistic.elem_count() {
            // Candle's cast of no elements panics on Metal.
            0 => x.flatten_all(),
            _ => statistic.to_dtype(x.dtype()),
        };
        Ok((y, narrow(mean)?, narrow(var)?))
    }
    OpCase::new(
        OP,
        name,
        args,
        |t| narrowed(&t[0], batch_norm_train(&t[0], t.get(1), t.get(2), EPS)?),
        |t| narrowed(&t[0], reference_train(&t[0], [t.get(1), t.get(2)], EPS)?),
    )
}

/// Layers of common models, for inference and for training.
fn measured<const BATCH: usize, const CHANNELS: usize, const SIDE: usize>(
    label: &'static str,
) -> [OpCase; 2] {
    let x = Arg::new("x", Fill::Signal, |_| match SIDE {
        1 => vec![BATCH, CHANNELS],
        _ => vec![BATCH, CHANNELS, SIDE, SIDE],
    });
    let vector = |name, fill| Arg::new(name, fill, |_| vec![CHANNELS]);
    let [weight, bias] = [vector("weight", Fill::Weight), vector("bias", Fill::Addend)];
    let [mean, var] = [
        vector("mean", Fill::Addend).constant(),
        vector("var", Fill::Weight).constant(),
    ];
    let size = only(label).run(&[Kind::Forward, Kind::Train]).quick();
    let given = given("given_layer", &[x, mean, var, weight, bias]).stock(|t| {
        let [mean, var, weight, bias] = [1, 2, 3, 4].map(|i| t[i].clone());
        candle_nn::BatchNorm::new(CHANNELS, mean, var, weight, bias, EPS.into())?
            .forward_t(&t[0], false)
    });
    let train = train("train_layer", &[x, weight, bias]).stock(|t| {
        // Stock trains by statistics in f32 alone.
        let running = |value| Tensor::full(value, CHANNELS, t[0].device());
        let (mean, var) = (running(0f32)?, running(1f32)?);
        let (weight, bias) = (t[1].clone(), t[2].clone());
        candle_nn::BatchNorm::new(CHANNELS, mean, var, weight, bias, EPS.into())?
            .forward_t(&t[0], true)
    });
    [given.at(size), train.at(size)]
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let of = |channels: usize, dtype| Tensor::ones(channels, dtype, &Device::Cpu);
    let [five, many, none] = [of(5, DType::F32)?, of(32, DType::F32)?, of(0, DType::F32)?];
    let (integers, halves) = (of(5, DType::U32)?, of(5, DType::F16)?);
    let eps = EPS;
    Ok(forms! {
        BatchNorm { mean: five.clone(), var: five.clone(), eps } => CustomOp1 CustomOp2 CustomOp3;
        BatchNorm { mean: many.clone(), var: many.clone(), eps } => CustomOp1 CustomOp2 CustomOp3;
        BatchNorm { mean: none.clone(), var: none.clone(), eps } => CustomOp1;
        BatchNorm { mean: five.clone(), var: many.clone(), eps } => CustomOp1;
        BatchNorm { mean: integers.clone(), var: five.clone(), eps } => CustomOp1 CustomOp3;
        BatchNorm { mean: five.clone(), var: halves.clone(), eps } => CustomOp2;
        BatchNorm { mean: five.clone(), var: five.clone(), eps: 0.0 } => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "a vector", &["[4]", "[batch, channels, ..]"], |d| {
            let v = zeros(4, d)?;
            batch_norm(&v, &v, &v, None, None, EPS).map(drop)
        }),
        Reject::new(
            OP,
            "a mean of another length",
            &["mean", "[5]", "[4]", "channels"],
            |d| {
                let (x, v) = (zeros((2, 4, 3), d)?, zeros(4, d)?);
                batch_norm(&x, &zeros(5, d)?, &v, None, None, EPS).map(drop)
            },
        ),
        Reject::new(OP, "a variance of integers", &["var", "U32", "F32"], |d| {
            let (x, v) = (zeros((2, 4, 3), d)?, zeros(4, d)?);
            let var = v.to_dtype(DType::U32)?;
            batch_norm(&x, &v, &var, None, None, EPS).map(drop)
        }),
        Reject::new(
            OP,
            "a weight of another length",
            &["weight", "[5]", "[4]", "channels"],
            |d| batch_norm_train(&zeros((2, 4, 3), d)?, Some(&zeros(5, d)?), None, EPS).map(drop),
        ),
        Reject::new(OP, "eps = 0", &["eps", "0", "positive"], |d| {
            batch_norm_train(&zeros((2, 4, 3), d)?, None, None, 0.0).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        batch_norm(&w.three, &w.three, &w.three, None, None, 1e-5);
        batch_norm(&w.x, &w.three, &w.three, None, None, 1e-5);
        batch_norm_train(&w.three, None, None, 1e-5);
        batch_norm_train(&w.x, Some(&w.three), None, 1e-5);
    }
}
