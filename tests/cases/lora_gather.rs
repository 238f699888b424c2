//! `lora_gather`: an adapter for each row.

use super::form::Form;
use super::linear::{bias, weight, MEASURED, SIZES};
use super::refused::{Refused, Wrong};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{lora_gather, LoraGather, NO_ADAPTER};
use candle_fused::reference::lora_gather::reference;

const NAME: &str = "lora_gather";
const X: Arg = Arg::matrix("x", Fill::Signal);

pub fn cases() -> Vec<OpCase> {
    vec![gathered().composed().product(SIZES).sizes(MEASURED)]
}

/// Three adapters of rank 4, of which the second has no row; every fourth row has no adapter.
fn gathered() -> OpCase {
    let args = [
        X,
        weight::<33>().constant(),
        bias::<33>().constant(),
        Arg::new("a", Fill::Signal, |size| vec![3, 4, size.cols()]),
        Arg::new("b", Fill::Signal, |_| vec![3, 33, 4]),
    ];
    OpCase::new(
        NAME,
        "lora_gather",
        &args,
        |t| {
            let (scales, rows) = routes(&t[0])?;
            lora_gather(&t[0], &t[1], Some(&t[2]), &t[3], &t[4], &scales, &rows)
        },
        |t| {
            let (scales, rows) = routes(&t[0])?;
            let op = LoraGather::new(&t[1], Some(&t[2]), &scales, &rows)?;
            reference(&t[0], &t[3], &t[4], &op)
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

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let square = Tensor::ones((5, 5), DType::F32, &Device::Cpu)?;
    let scales = Tensor::ones(2, DType::F32, &Device::Cpu)?;
    let rows = Tensor::new(&[0u32, 1, 1, 0], &Device::Cpu)?;
    Ok(forms! {
        LoraGather::new(&square, None, &scales, &rows)? => CustomOp3;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(NAME, "an unknown adapter", &["row 1", "adapter 3"], |d| {
            gather(d, &[3, 2, 4], 3, Tensor::new(&[0u32, 3], d)?)
        }),
        Reject::new(
            NAME,
            "an index for each of other rows",
            &["3 elements", "2 rows"],
            |d| gather(d, &[3, 2, 4], 3, Tensor::new(&[0u32, 1, 2], d)?),
        ),
        Reject::new(NAME, "indices that are no u32", &["I64", "u32"], |d| {
            gather(d, &[3, 2, 4], 3, Tensor::zeros(2, DType::I64, d)?)
        }),
        Reject::new(NAME, "too few scales", &["[2]", "[3]"], |d| {
            gather(d, &[3, 2, 4], 2, Tensor::new(&[0u32, 1], d)?)
        }),
        Reject::new(
            NAME,
            "stacks of other lengths",
            &["[2, 2, 4]", "[3, 5, 2]"],
            |d| gather(d, &[2, 2, 4], 2, Tensor::new(&[0u32, 1], d)?),
        ),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        lora_gather(&w.x, &w.weight, None, &w.stack, &w.stack, &w.three, &w.integers);
    }
}
