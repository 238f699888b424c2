use super::form::Form;
use super::refused::{Refused, Wrong};
use super::rope::ids;
use super::size::{size, ALL};
use super::{zeros, Arg, Fill, Grid, Kind, OpCase, Reject, Size};
use candle_core::{Device, Result, Tensor};
use candle_fused::ops::{
    qk_norm_rope, HeadNormRope, QkNormRope, Rope, RopeLayout, RopePairs, RopePositions,
    RopeSections,
};
use candle_fused::reference::qk_norm_rope::reference;

const NAME: &str = "qk_norm_rope";
const Q: Arg = Arg {
    name: "q",
    ..Arg::matrix("x", Fill::Signal)
};
const Q_WEIGHT: Arg = Arg::vector("q_weight", Fill::Weight);
const K_WEIGHT: Arg = Arg::vector("k_weight", Fill::Weight);

/// Batch, heads, positions and dim: lanes of all numbers, heads in two steps, several blocks, no elements.
const SIZES: Grid = &[
    &[2, 3, 0, 8],
    &[2, 3, 5, 0],
    &[11, 2, 3, 12],
    &[2, 3, 5, 8],
    &[1, 2, 7, 2],
    &[2, 3, 4, 70],
    &[1, 3, 2, 512],
    &[1, 10, 40, 128],
];
/// For variants of the main call: a head in one step and in two.
const FEW: Grid = &[&[2, 2, 3, 16], &[1, 2, 3, 300]];

fn k_dims(size: Size) -> Vec<usize> {
    let mut dims = size.dims().to_vec();
    dims[1] = dims[1] / 2 + 1;
    dims
}

/// q and k with other heads, their weights, and tables of this shape.
fn case(name: &'static str, table: fn(Size) -> Vec<usize>, norm: fn() -> QkNormRope) -> OpCase {
    case_of(name, table, move |_| Ok(norm()))
}

/// The same, with a rotation that depends on q's own dims and device.
fn case_of(
    name: &'static str,
    table: fn(Size) -> Vec<usize>,
    norm: impl Fn(&Tensor) -> Result<QkNormRope> + Copy + Send + Sync + 'static,
) -> OpCase {
    let args = [
        Q,
        Arg::new("k", Fill::Addend, k_dims),
        Q_WEIGHT,
        K_WEIGHT,
        Arg::new("cos", Fill::Signal, table).constant(),
        Arg::new("sin", Fill::Signal, table).constant(),
    ];
    OpCase::new(
        NAME,
        name,
        &args,
        move |t| qk_norm_rope(&t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &norm(&t[0])?),
        move |t| {
            let norm = norm(&t[0])?;
            let of = |x, weight| reference(x, weight, &t[4], &t[5], &norm);
            Ok((of(&t[0], &t[2])?, of(&t[1], &t[3])?))
        },
    )
    .reduction()
    .sizes([])
}

fn norm(pairs: RopePairs, weight_offset: f32) -> QkNormRope {
    QkNormRope {
        eps: 1e-5,
        weight_offset,
        rope: Rope {
            pairs,
            ..Rope::default()
        },
    }
}

pub fn cases() -> Vec<OpCase> {
    let table = |size: Size| vec![size.dims()[2], size.cols() / 2];
    let half = || norm(RopePairs::Half, 0.0);
    let mut measured = case("qk_norm_rope", table, half).grid(SIZES);
    measured.args[1].shape = |size| size.dims().to_vec();
    let mut trained = case("trained_tables", table, half).grid(FEW);
    for table in &mut trained.args[4..] {
        table.grad = true;
    }
    let mut thd = case(
        "partial_thd",
        |size| vec![size.dims()[1], size.cols() / 4],
        || {
            let mut norm = norm(RopePairs::Half, 0.0);
            norm.rope.layout = RopeLayout::PositionsFirst;
            norm
        },
    )
    .grid(FEW);
    // Heads are the third dim.
    thd.args[1].shape = |size| {
        let mut dims = size.dims().to_vec();
        dims[2] += 1;
        dims
    };
    vec![
        measured
            .stock(|t| {
                let of = |x: &Tensor, weight| {
                    let normed = candle_nn::ops::rms_norm(x, weight, 1e-5)?;
                    candle_nn::rotary_emb::rope(&normed, &t[4], &t[5])
                };
                Ok((of(&t[0], &t[2])?, of(&t[1], &t[3])?))
            })
            .sizes([
                size("1x4x1x64", &[1, 4, 1, 64]).run(&[Kind::Forward, Kind::Train]),
                size("1x16x512x128", &[1, 16, 512, 128]).run(ALL).quick(),
            ]),
        case("gqa_interleaved", table, || {
            norm(RopePairs::Interleaved, 0.0)
        })
        .grid(FEW),
        case("gemma", table, || norm(RopePairs::Half, 1.0)).grid(FEW),
        thd,
        case_of(
            "ids",
            |_| vec![9, 7],
            |q| {
                let mut norm = norm(RopePairs::Interleaved, 0.0);
                let ids = ids(q, &[q.dim(0)?, q.dim(2)?], 9)?;
                norm.rope.positions = RopePositions::Ids(ids);
                Ok(norm)
            },
        )
        .grid(FEW),
        case_of(
            "sections",
            |_| vec![9, 8],
            |q| {
                let mut norm = norm(RopePairs::Half, 1.0);
                let ids = ids(q, &[3, q.dim(0)?, q.dim(2)?], 9)?;
                norm.rope.positions = RopePositions::Ids(ids);
                norm.rope.sections = Some(RopeSections {
                    lens: [3, 3, 2],
                    interleaved: true,
                });
                Ok(norm)
            },
        )
        .grid(FEW),
        trained.stepwise_gradients(),
    ]
}

/// The CustomOp, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let table = |dims: &[usize]| zeros(dims, &Device::Cpu);
    let (cos, other) = (table(&[4, 2])?, table(&[4, 1])?);
    let norm = |eps: f32, rope: Rope| QkNormRope {
        eps,
        weight_offset: 1.0,
        rope,
    };
    let at = |ids: &[u32]| -> Result<Rope> {
        Ok(Rope {
            positions: RopePositions::Ids(Tensor::new(ids, &Device::Cpu)?),
            ..Rope::default()
        })
    };
    let thd = Rope {
        layout: RopeLayout::PositionsFirst,
        ..Rope::default()
    };
    Ok(forms! {
        HeadNormRope { norm: norm(1e-5, Rope::default()), cos: cos.clone(), sin: cos.clone() } => CustomOp2;
        HeadNormRope { norm: norm(1e-5, thd.clone()), cos: cos.clone(), sin: cos.clone() } => CustomOp2;
        HeadNormRope { norm: norm(1e-5, at(&[3, 0, 1, 2])?), cos: cos.clone(), sin: cos.clone() } => CustomOp2;
        HeadNormRope { norm: norm(1e-5, at(&[3, 0, 9, 2])?), cos: cos.clone(), sin: cos.clone() } => CustomOp2;
        HeadNormRope { norm: norm(1e-5, Rope::default()), cos: cos.clone(), sin: other.clone() } => CustomOp2;
        HeadNormRope { norm: norm(f32::NAN, Rope::default()), cos: cos.clone(), sin: cos.clone() } => CustomOp2;
    })
}

fn call(d: &Device, k: &[usize], weight: usize, eps: f32) -> Result<()> {
    let (q, k) = (zeros((1, 2, 5, 8), d)?, zeros(k, d)?);
    let (weight, table) = (zeros(weight, d)?, zeros((5, 4), d)?);
    let norm = QkNormRope {
        eps,
        ..norm(RopePairs::Half, 0.0)
    };
    qk_norm_rope(&q, &k, &weight, &weight, &table, &table, &norm).map(drop)
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(NAME, "a weight of another length", &["[7]", "[8]"], |d| {
            call(d, &[1, 2, 5, 8], 7, 1e-5)
        }),
        Reject::new(
            NAME,
            "keys of another dim",
            &["[1, 2, 5, 6]", "[1, 2, 5, 8]"],
            |d| call(d, &[1, 2, 5, 6], 8, 1e-5),
        ),
        Reject::new(NAME, "a negative eps", &["eps"], |d| {
            call(d, &[1, 2, 5, 8], 8, -1.0)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    let half = norm(RopePairs::Half, 0.0);
    refused! {
        qk_norm_rope(&w.image, &w.image, &w.three, &w.three, &w.weight, &w.weight, &half);
    }
}
