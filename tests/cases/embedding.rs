//! `embedding`: the weight is the grid's tensor; ids are made from its shape.

use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, variant, Measured, ALL, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{embedding, Embedding};
use candle_fused::reference::embedding::reference;

const OP: &str = "embedding";
const WEIGHT: Arg = Arg::matrix("weight", Fill::Signal);
const MODEL: Measured = size("32000x4096", &[32000, 4096]).run(ALL);
const SMALL: Measured = size("1000x512", &[1000, 512]).run(ALL).quick();

/// `[2, 40]` ids: some rows of the weight often, some never.
fn ids(weight: &Tensor, dtype: DType) -> Result<Tensor> {
    let vocabulary = weight.dim(0)?;
    let id = |i: usize| (i * i * 31 % 57 * 13) % vocabulary.clamp(1, 255);
    let ids: Vec<i64> = (0..80).map(|i| id(i) as i64).collect();
    Tensor::from_vec(ids, (2, 40), &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(weight.device())
}

/// 2048 ids of a batch.
fn batch(weight: &Tensor) -> Result<Tensor> {
    let vocabulary = weight.dim(0)?;
    let ids: Vec<u32> = (0..2048).map(|i| (i * 7919 % vocabulary) as u32).collect();
    Tensor::from_vec(ids, (4, 512), weight.device())
}

fn case(name: &str, ids: fn(&Tensor) -> Result<Tensor>) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[WEIGHT],
        move |t| embedding(&ids(&t[0])?, &t[0]),
        move |t| reference(&ids(&t[0])?, &t[0]),
    )
    .reduction()
}

pub fn cases() -> Vec<OpCase> {
    vec![
        case("embedding", |w| ids(w, DType::U32)).sizes([TINY]),
        case("embedding_i64", |w| ids(w, DType::I64))
            .grid(&[&[3, 5], &[12, 33], &[130, 3]])
            .sizes([]),
        case("embedding_u8", |w| ids(w, DType::U8))
            .grid(&[&[3, 5], &[12, 33]])
            .sizes([]),
        // A vocabulary of one id: all rows add up.
        case("embedding_of_one", |w| ids(w, DType::U32))
            .grid(&[&[1, 5], &[1, 1030], &[2, 513]])
            .sizes([]),
        case("embedding_of_a_batch", batch)
            .grid(&[&[40, 12]])
            .sizes([variant(SMALL), vec![MODEL]].concat()),
    ]
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let of = |ids: &[u32]| Tensor::new(ids, &Device::Cpu);
    let (some, many, floats) = (of(&[0, 3, 1])?, of(&[70, 1])?, zeros(3, &Device::Cpu)?);
    Ok(forms! {
        Embedding { ids: some.clone() } => CustomOp1;
        Embedding { ids: many.clone() } => CustomOp1;
        Embedding { ids: floats.clone() } => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "ids that are no integers", &["F32", "u32"], |d| {
            embedding(&zeros(2, d)?, &zeros((4, 3), d)?).map(drop)
        }),
        Reject::new(OP, "a weight of three dims", &["[4, 3, 2]"], |d| {
            let ids = Tensor::zeros(2, DType::U32, d)?;
            embedding(&ids, &zeros((4, 3, 2), d)?).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        embedding(&w.x, &w.weight);
        embedding(&w.integers, &w.three);
        embedding(&w.integers, &w.integers);
    }
}
