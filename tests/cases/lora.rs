use super::form::Form;
use super::linear::{bias, weight, MEASURED, SIZES};
use super::refused::{Refused, Wrong};
use super::size::{size, ONE_ROW, TINY};
use super::{zeros, Arg, Fill, Kind, OpCase, Reject};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{lora, lora_trained, lora_with, Adapter, AdapterDropout, Lora};
use candle_fused::reference::lora::reference;

const OP: &str = "lora";
const SCALE: f32 = 0.375;
const DROPOUT: AdapterDropout = AdapterDropout { p: 0.25, seed: 7 };
const TRAIN: &[Kind] = &[Kind::Forward, Kind::Train];
const X: Arg = Arg::matrix("x", Fill::Signal);

const fn a<const RANK: usize>() -> Arg {
    Arg::new("a", Fill::Signal, |size| vec![RANK, size.cols()])
}

const fn b<const OUTPUTS: usize, const RANK: usize>() -> Arg {
    Arg::new("b", Fill::Signal, |_| vec![OUTPUTS, RANK])
}

pub fn cases() -> Vec<OpCase> {
    let cases = vec![
        frozen::<5, 1>(),
        frozen::<33, 4>(),
        frozen::<64, 8>(),
        frozen::<17, 16>(),
        frozen::<129, 64>(),
        OpCase::new(
            OP,
            "lora_no_bias",
            &[X, weight::<40>().constant(), a::<8>(), b::<40, 8>()],
            |t| lora(&t[0], &t[1], None, &t[2], &t[3], SCALE),
            |t| reference(&t[0], &t[1], None, plain(&t[2], &t[3])),
        ),
        OpCase::new(
            OP,
            "lora_dropout",
            &[X, weight::<33>().constant(), a::<8>(), b::<33, 8>()],
            |t| lora_with(&t[0], &t[1].clone().into(), None, dropping(t)),
            |t| reference(&t[0], &t[1], None, dropping(t)),
        )
        .composed(),
        OpCase::new(
            OP,
            "lora_trained_base",
            &[X, weight::<33>(), bias::<33>(), a::<4>(), b::<33, 4>()],
            |t| lora_trained(&t[0], &t[1], Some(&t[2]), plain(&t[3], &t[4])),
            |t| reference(&t[0], &t[1], Some(&t[2]), plain(&t[3], &t[4])),
        )
        .composed(),
    ];
    let cases = cases.into_iter();
    let cases = cases.map(|case| case.product(SIZES).sizes(MEASURED));
    cases.chain([square::<8>(), square::<64>()]).collect()
}

/// W as wide as x, which is what models and benches have.
fn square<const RANK: usize>() -> OpCase {
    let args = [
        X,
        Arg::new("weight", Fill::Signal, |size| {
            vec![size.cols(), size.cols()]
        })
        .constant(),
        a::<RANK>(),
        Arg::new("b", Fill::Signal, |size| vec![size.cols(), RANK]),
    ];
    OpCase::new(
        OP,
        format!("lora_square_{RANK}"),
        &args,
        |t| lora(&t[0], &t[1], None, &t[2], &t[3], SCALE),
        |t| reference(&t[0], &t[1], None, plain(&t[2], &t[3])),
    )
    .product(&[&[1, 64], &[10, 33]])
    .sizes([
        TINY,
        ONE_ROW.run(TRAIN).quick(),
        size("8x4096", &[8, 4096]).run(TRAIN),
        size("16x4096", &[16, 4096]),
        size("32x4096", &[32, 4096]),
        size("64x1024", &[64, 1024]).run(TRAIN),
        size("512x4096", &[512, 4096])
            .run(TRAIN)
            .of(&[DType::F32])
            .quick(),
        size("512x4096", &[512, 4096]).of(&[DType::F16, DType::BF16]),
    ])
}

/// A frozen base with a bias.
fn frozen<const OUTPUTS: usize, const RANK: usize>() -> OpCase {
    let args = [
        X,
        weight::<OUTPUTS>().constant(),
        bias::<OUTPUTS>().constant(),
        a::<RANK>(),
        b::<OUTPUTS, RANK>(),
    ];
    OpCase::new(
        OP,
        format!("lora_rank_{RANK}"),
        &args,
        |t| lora(&t[0], &t[1], Some(&t[2]), &t[3], &t[4], SCALE),
        |t| reference(&t[0], &t[1], Some(&t[2]), plain(&t[3], &t[4])),
    )
}

fn plain<'a>(a: &'a Tensor, b: &'a Tensor) -> Adapter<'a> {
    Adapter {
        a,
        b,
        scale: SCALE,
        dropout: None,
    }
}

fn dropping(t: &[Tensor]) -> Adapter<'_> {
    Adapter {
        dropout: Some(DROPOUT),
        ..plain(&t[2], &t[3])
    }
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let square = Tensor::ones((5, 5), DType::F32, &Device::Cpu)?;
    let wide = Tensor::ones((5, 32), DType::F32, &Device::Cpu)?;
    Ok(forms! {
        Lora { weight: square.clone(), bias: None, scale: 1.0, dropout: None } => CustomOp3;
        Lora { weight: wide.clone(), bias: Some(wide.clone()), scale: 1.0, dropout: None } => CustomOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "a b of another rank",
            &["[2, 4]", "[5, 3]", "rank"],
            |d| {
                let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
                lora(&x, &w, None, &zeros((2, 4), d)?, &zeros((5, 3), d)?, 1.0).map(drop)
            },
        ),
        Reject::new(OP, "rank 0", &["[0, 4]", "1 or more"], |d| {
            let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
            lora(&x, &w, None, &zeros((0, 4), d)?, &zeros((5, 0), d)?, 1.0).map(drop)
        }),
        Reject::new(OP, "a dropout of 1", &["p = 1", "p < 1"], |d| {
            let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
            let (a, b) = (zeros((2, 4), d)?, zeros((5, 2), d)?);
            let adapter = Adapter {
                dropout: Some(AdapterDropout { p: 1.0, seed: 0 }),
                ..plain(&a, &b)
            };
            lora_with(&x, &w.into(), None, adapter).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        lora(&w.x, &w.weight, None, &w.a, &w.wrong_b, 1.0);
        lora(&w.x, &w.wide, None, &w.a, &w.b, 1.0);
        lora_trained(&w.x, &w.weight, None, w.adapter());
        lora_with(&w.x, &w.weight.clone().into(), None, w.adapter());
    }
}
