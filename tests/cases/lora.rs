use super::linear::{bias, weight, SIZES};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::lora::{
    gather, lora, lora_gather, lora_with, reference, reference_with, Adapter, Base, Dropout,
    NO_ADAPTER,
};

const OP: &str = "lora";
const SCALE: f32 = 0.375;
const DROPOUT: Dropout = Dropout { p: 0.25, seed: 7 };
const X: Arg = Arg::matrix("x", Fill::Signal);

const fn a<const RANK: usize>() -> Arg {
    Arg::new("a", Fill::Signal, |_, cols| vec![RANK, cols])
}

const fn b<const OUTPUTS: usize, const RANK: usize>() -> Arg {
    Arg::new("b", Fill::Signal, |_, _| vec![OUTPUTS, RANK])
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
            |t| reference(&t[0], &t[1], None, &t[2], &t[3], SCALE),
        ),
        OpCase::new(
            OP,
            "lora_dropout",
            &[X, weight::<33>().constant(), a::<8>(), b::<33, 8>()],
            |t| lora_with(&t[0], Base::Frozen(&t[1]), None, dropping(t)),
            |t| reference_with(&t[0], &t[1], None, dropping(t)),
        )
        .composed(),
        OpCase::new(
            OP,
            "lora_trained_base",
            &[X, weight::<33>(), bias::<33>(), a::<4>(), b::<33, 4>()],
            |t| {
                lora_with(
                    &t[0],
                    Base::Trained(&t[1]),
                    Some(&t[2]),
                    plain(&t[3], &t[4]),
                )
            },
            |t| reference_with(&t[0], &t[1], Some(&t[2]), plain(&t[3], &t[4])),
        )
        .composed(),
        gathered().composed(),
    ];
    let cases = cases.into_iter().map(|case| case.product(&SIZES));
    cases.chain([square::<8>(), square::<64>()]).collect()
}

/// W as wide as x, which is what models and benches have.
fn square<const RANK: usize>() -> OpCase {
    let args = [
        X,
        Arg::new("weight", Fill::Signal, |_, cols| vec![cols, cols]).constant(),
        a::<RANK>(),
        Arg::new("b", Fill::Signal, |_, cols| vec![cols, RANK]),
    ];
    OpCase::new(
        OP,
        format!("lora_square_{RANK}"),
        &args,
        |t| lora(&t[0], &t[1], None, &t[2], &t[3], SCALE),
        |t| reference(&t[0], &t[1], None, &t[2], &t[3], SCALE),
    )
    .product(&[(1, 64), (10, 33)])
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
        |t| reference(&t[0], &t[1], Some(&t[2]), &t[3], &t[4], SCALE),
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

/// Three adapters of rank 4, of which the second has no row; every fourth row has no adapter.
fn gathered() -> OpCase {
    let args = [
        X,
        weight::<33>().constant(),
        bias::<33>().constant(),
        Arg::new("a", Fill::Signal, |_, cols| vec![3, 4, cols]),
        Arg::new("b", Fill::Signal, |_, _| vec![3, 33, 4]),
    ];
    OpCase::new(
        OP,
        "lora_gather",
        &args,
        |t| {
            let (scales, rows) = routes(&t[0])?;
            lora_gather(&t[0], &t[1], Some(&t[2]), &t[3], &t[4], &scales, &rows)
        },
        |t| {
            let (scales, rows) = routes(&t[0])?;
            gather::reference(&t[0], &t[1], Some(&t[2]), &t[3], &t[4], &scales, &rows)
        },
    )
}

fn routes(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let of = |i| [2, 0, NO_ADAPTER, 0][i % 4];
    let rows: Vec<u32> = (0..x.dim(0)?).map(of).collect();
    let len = rows.len();
    Ok((
        Tensor::new(&[0.5f32, 1.0, -0.375], &Device::Cpu)?,
        Tensor::from_vec(rows, len, &Device::Cpu)?,
    ))
}

/// With x `[2, 4]`, W `[5, 4]`, and one thing wrong.
fn gather(d: &Device, a: &[usize], scales: usize, rows: Tensor) -> Result<()> {
    let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
    let (a, b) = (zeros(a, d)?, zeros((3, 5, 2), d)?);
    lora_gather(&x, &w, None, &a, &b, &zeros(scales, d)?, &rows).map(drop)
}

pub fn rejects() -> Vec<Reject> {
    const GATHER: &str = "lora_gather";
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
        Reject::new(OP, "a dropout of 1", &["p is 1", "p < 1"], |d| {
            let (x, w) = (zeros((2, 4), d)?, zeros((5, 4), d)?);
            let (a, b) = (zeros((2, 4), d)?, zeros((5, 2), d)?);
            let adapter = Adapter {
                dropout: Some(Dropout { p: 1.0, seed: 0 }),
                ..plain(&a, &b)
            };
            lora_with(&x, Base::Frozen(&w), None, adapter).map(drop)
        }),
        Reject::new(GATHER, "an unknown adapter", &["row 1", "adapter 3"], |d| {
            gather(d, &[3, 2, 4], 3, Tensor::new(&[0u32, 3], d)?)
        }),
        Reject::new(
            GATHER,
            "an index for each of other rows",
            &["[3]", "2 rows"],
            |d| gather(d, &[3, 2, 4], 3, Tensor::new(&[0u32, 1, 2], d)?),
        ),
        Reject::new(GATHER, "indices that are no u32", &["I64", "u32"], |d| {
            gather(d, &[3, 2, 4], 3, Tensor::zeros(2, DType::I64, d)?)
        }),
        Reject::new(GATHER, "too few scales", &["[2]", "[3]"], |d| {
            gather(d, &[3, 2, 4], 2, Tensor::new(&[0u32, 1], d)?)
        }),
        Reject::new(
            GATHER,
            "stacks of other lengths",
            &["[2, 2, 4]", "[3, 5, 2]"],
            |d| gather(d, &[2, 2, 4], 2, Tensor::new(&[0u32, 1], d)?),
        ),
    ]
}
