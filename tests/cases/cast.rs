use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{ONE_M, SIXTEEN_M, TINY};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{DType, Result, Tensor};
use candle_fused::ops::{cast, Cast};
use candle_fused::reference::cast::reference;

const OP: &str = "cast";
const X: Arg = Arg::matrix("x", Fill::Signal);

/// There and back, so that inputs and outputs have one dtype.
fn through(
    dtype: DType,
    cast: fn(&Tensor, DType) -> Result<Tensor>,
) -> impl Fn(&[Tensor]) -> Result<Tensor> {
    move |t| cast(&cast(&t[0], dtype)?, t[0].dtype())
}

pub fn cases() -> Vec<OpCase> {
    [
        ("f32", DType::F32),
        ("f16", DType::F16),
        ("bf16", DType::BF16),
    ]
    .map(|(name, dtype)| {
        OpCase::new(
            OP,
            name,
            &[X],
            through(dtype, cast),
            through(dtype, reference),
        )
        .straight_through()
        .sizes([TINY, ONE_M, SIXTEEN_M])
    })
    .into()
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    Ok(forms! {
        Cast(DType::F32) => CustomOp1;
        Cast(DType::BF16) => CustomOp1;
        Cast(DType::U32) => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![Reject::new(
        OP,
        "a dtype of integers by hand",
        &["cast", "got dtype U32", "expected F32, F16 or BF16"],
        |d| zeros(3, d)?.apply_op1(Cast(DType::U32)).map(drop),
    )]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        cast(&w.integers, DType::F16);
        cast(&w.x, DType::U32);
    }
}
