mod rejects;

pub use rejects::rejects;

use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, Measured, ALL};
use super::{Arg, Fill, Grid, Kind, OpCase, Size};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::ops::{
    rope, rope_inplace, rope_qk, Rope, RopeLayout, RopePairs, RopePositions, RopeSections,
};
use candle_fused::reference::rope::reference;
use candle_nn::rotary_emb as stock;

const NAME: &str = "rope";
const X: Arg = Arg::matrix("x", Fill::Signal);
const TABLE: fn(Size) -> Vec<usize> = |size| vec![positions(size), size.cols() / 2];
const COS: Arg = Arg::new("cos", Fill::Signal, TABLE);
const SIN: Arg = Arg::new("sin", Fill::Signal, TABLE);
/// As models have them: never trained.
const FROZEN: [Arg; 2] = [COS.constant(), SIN.constant()];

/// Batch, heads, positions and dim: around a vector, odd pairs, several blocks and head groups, one position, no elements.
const SIZES: Grid = &[
    &[2, 3, 0, 8],
    &[2, 3, 5, 0],
    &[11, 2, 3, 10],
    &[2, 3, 5, 8],
    &[1, 2, 7, 2],
    &[3, 5, 1, 34],
    &[2, 3, 4, 66],
    &[1, 20, 40, 128],
    &[2, 3, 70, 256],
];
/// For variants of the main calls.
const FEW: Grid = &[&[2, 2, 3, 16], &[2, 3, 2, 70]];
/// For heads that are rotated in part: at one position the heads are neighbours, and each has elements that are only copied.
const PARTIAL: Grid = &[&[2, 2, 3, 16], &[2, 3, 2, 70], &[2, 3, 1, 16]];

const MAIN: [Measured; 5] = [
    size("1x4x1x64", &[1, 4, 1, 64])
        .run(&[Kind::Forward, Kind::Train])
        .quick(),
    size("1x32x1x128", &[1, 32, 1, 128]),
    size("1x32x512x128", &[1, 32, 512, 128]).run(ALL).quick(),
    size("8x8x64x64", &[8, 8, 64, 64]),
    size("1x8x4096x128", &[1, 8, 4096, 128]),
];

fn positions(size: Size) -> usize {
    size.dims()[size.dims().len() - 2]
}

fn with(pairs: RopePairs) -> Rope {
    Rope {
        pairs,
        ..Rope::default()
    }
}

/// A rotation that depends on x's own dims and device.
type Make = fn(&Tensor) -> Result<Rope>;

/// x, cos and sin, the tables of shape `table`.
fn case(name: &'static str, table: fn(Size) -> Vec<usize>, make: Make) -> OpCase {
    let args = [
        X,
        Arg::new("cos", Fill::Signal, table),
        Arg::new("sin", Fill::Signal, table),
    ];
    OpCase::new(
        NAME,
        name,
        &args,
        move |t| rope(&t[0], &t[1], &t[2], &make(&t[0])?),
        move |t| reference(&t[0], &t[1], &t[2], &make(&t[0])?),
    )
    .in_place(move |t| rope_inplace(&t[0], &t[1], &t[2], &make(&t[0])?))
    .stepwise_gradients()
    .grid(FEW)
    .sizes([])
}

pub fn cases() -> Vec<OpCase> {
    let mut cases = vec![
        main("rope", RopePairs::Half).stock(|t| stock::rope(&t[0], &t[1], &t[2])),
        main("rope_i", RopePairs::Interleaved).stock(|t| stock::rope_i(&t[0], &t[1], &t[2])),
        thd(),
        case("trained_tables", TABLE, |_| Ok(Rope::default())),
        case("trained_tables_interleaved", TABLE, |_| {
            Ok(interleaved(RopePositions::From(0)))
        }),
    ];
    cases.extend(pairs());
    cases.extend(tables());
    cases.extend(sections());
    cases
}

fn main(name: &'static str, pairs: RopePairs) -> OpCase {
    let [cos, sin] = FROZEN;
    OpCase::new(
        NAME,
        name,
        &[X, cos, sin],
        move |t| rope(&t[0], &t[1], &t[2], &with(pairs)),
        move |t| reference(&t[0], &t[1], &t[2], &with(pairs)),
    )
    .in_place(move |t| rope_inplace(&t[0], &t[1], &t[2], &with(pairs)))
    .grid(SIZES)
    .sizes(MAIN)
}

/// `[batch, positions, heads, dim]`
fn thd() -> OpCase {
    let table = |size: Size| vec![size.dims()[1], size.cols() / 2];
    let thd = |_: &Tensor| {
        Ok(Rope {
            layout: RopeLayout::PositionsFirst,
            ..Rope::default()
        })
    };
    let mut case = case("rope_thd", table, thd);
    for table in &mut case.args[1..] {
        table.grad = false;
    }
    case.stock(|t| stock::rope_thd(&t[0], &t[1], &t[2]))
        .sizes([size("1x512x32x128", &[1, 512, 32, 128]).run(&[Kind::Forward, Kind::Train])])
}

/// q and k, with as many heads for k as this says, and a rotation that depends on q.
fn qk_of(name: &'static str, k: fn(Size) -> Vec<usize>, make: Make) -> OpCase {
    let (q, k) = (Arg { name: "q", ..X }, Arg::new("k", Fill::Addend, k));
    let [cos, sin] = FROZEN;
    OpCase::new(
        NAME,
        name,
        &[q, k, cos, sin],
        move |t| rope_qk(&t[0], &t[1], &t[2], &t[3], &make(&t[0])?),
        move |t| {
            let rope = make(&t[0])?;
            let of = |x| reference(x, &t[2], &t[3], &rope);
            Ok((of(&t[0])?, of(&t[1])?))
        },
    )
    .grid(FEW)
    .sizes([])
}

/// By halves, from the first row on.
fn qk(name: &'static str, k: fn(Size) -> Vec<usize>) -> OpCase {
    qk_of(name, k, |_| Ok(Rope::default())).stock(|t| {
        let of = |x| stock::rope(x, &t[2], &t[3]);
        Ok((of(&t[0])?, of(&t[1])?))
    })
}

fn pairs() -> Vec<OpCase> {
    let more_heads = |size: Size| {
        let mut dims = size.dims().to_vec();
        dims[1] += 2;
        dims
    };
    let mut trained = qk("rope_qk_tables", more_heads).stepwise_gradients();
    for table in &mut trained.args[2..] {
        table.grad = true;
    }
    let mut partial = qk_of("rope_qk_partial_interleaved", more_heads, |q| {
        let ids = ids(q, &[q.dim(0)?, q.dim(2)?], 9)?;
        Ok(interleaved(RopePositions::Ids(ids)))
    });
    let more_heads_behind = |size: Size| {
        let mut dims = size.dims().to_vec();
        dims[2] += 2;
        dims
    };
    let mut thd = qk_of("rope_qk_thd", more_heads_behind, |_| {
        Ok(Rope {
            layout: RopeLayout::PositionsFirst,
            ..Rope::default()
        })
    });
    for i in [2, 3] {
        partial.args[i].shape = |_| vec![9, 5];
        thd.args[i].shape = |size| vec![size.dims()[1], size.cols() / 2];
    }
    vec![
        qk("rope_qk", |size| size.dims().to_vec()).sizes([
            size("1x4x1x64", &[1, 4, 1, 64]),
            size("1x32x512x128", &[1, 32, 512, 128]).run(&[Kind::Forward, Kind::Train]),
        ]),
        // The heads of both in one group, and in several.
        qk("rope_gqa", more_heads).grid(SIZES),
        partial,
        thd,
        trained,
    ]
}

/// Row numbers for each batch row and position, several times the same.
pub fn ids(x: &Tensor, dims: &[usize], rows: usize) -> Result<Tensor> {
    let n: usize = dims.iter().product();
    let ids: Vec<u32> = (0..n).map(|i| (i * 7 % rows) as u32).collect();
    Tensor::from_vec(ids, dims, &Device::Cpu)?.to_device(x.device())
}

fn interleaved(positions: RopePositions) -> Rope {
    Rope {
        positions,
        ..with(RopePairs::Interleaved)
    }
}

/// Longer tables, tables for each batch row, and heads that are rotated in part.
fn tables() -> Vec<OpCase> {
    vec![
        case(
            "partial",
            |size| vec![positions(size), size.cols() / 4],
            |_| Ok(Rope::default()),
        )
        .grid(PARTIAL),
        case(
            "partial_interleaved",
            |size| vec![positions(size) + 3, size.cols() / 4],
            |_| Ok(interleaved(RopePositions::From(2))),
        )
        .grid(PARTIAL),
        case(
            "batched",
            |size| vec![size.dims()[0], positions(size) + 4, size.cols() / 2],
            |_| {
                Ok(Rope {
                    positions: RopePositions::From(3),
                    ..Rope::default()
                })
            },
        ),
        case(
            "ids",
            |_| vec![9, 4],
            |x| {
                let ids = ids(x, &[x.dim(0)?, x.dim(2)?], 9)?;
                Ok(Rope {
                    positions: RopePositions::Ids(ids),
                    ..Rope::default()
                })
            },
        ),
        case(
            "ids_i64",
            |size| vec![size.dims()[0], 6, 3],
            |x| {
                let ids = ids(x, &[x.dim(2)?], 6)?.to_dtype(DType::I64)?;
                Ok(interleaved(RopePositions::Ids(ids)))
            },
        ),
    ]
}

/// A third of the pairs for height, a third for width.
fn lens(x: &Tensor) -> Result<[usize; 3]> {
    let pairs = x.dim(D::Minus1)? / 2;
    Ok([pairs - 2 * (pairs / 3), pairs / 3, pairs / 3])
}

fn sections() -> Vec<OpCase> {
    vec![
        case(
            "sections",
            |size| vec![8, size.cols() / 2],
            |x| {
                let ids = ids(x, &[3, x.dim(0)?, x.dim(2)?], 8)?;
                Ok(Rope {
                    positions: RopePositions::Ids(ids),
                    sections: Some(RopeSections {
                        lens: lens(x)?,
                        interleaved: false,
                    }),
                    ..Rope::default()
                })
            },
        ),
        case(
            "sections_interleaved",
            |size| vec![3, size.dims()[0], positions(size) + 1, size.cols() / 2],
            |x| {
                Ok(Rope {
                    positions: RopePositions::From(1),
                    sections: Some(RopeSections {
                        lens: lens(x)?,
                        interleaved: true,
                    }),
                    ..Rope::default()
                })
            },
        ),
    ]
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let ids = |dims: &[usize]| Tensor::ones(dims, DType::U32, &Device::Cpu);
    let at = |ids| Rope {
        positions: RopePositions::Ids(ids),
        ..Rope::default()
    };
    let sections = RopeSections {
        lens: [1, usize::MAX, 1],
        interleaved: true,
    };
    Ok(forms! {
        Rope::default() => CustomOp3 InplaceOp3;
        Rope { positions: RopePositions::From(usize::MAX), ..Rope::default() } => CustomOp3 InplaceOp3;
        Rope { layout: RopeLayout::PositionsFirst, ..Rope::default() } => CustomOp3 InplaceOp3;
        Rope { sections: Some(sections), ..Rope::default() } => CustomOp3 InplaceOp3;
        at(ids(&[4])?) => CustomOp3 InplaceOp3;
        at(ids(&[5, 3])?) => CustomOp3 InplaceOp3;
        at(ids(&[])?) => CustomOp3 InplaceOp3;
    })
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    let half = Rope::default();
    refused! {
        rope(&w.image, &w.three, &w.three, &half);
        rope(&w.integers, &w.weight, &w.weight, &half);
        rope_inplace(&w.image, &w.weight, &w.wide, &half);
        rope_qk(&w.image, &w.sequence, &w.weight, &w.weight, &half);
    }
}
