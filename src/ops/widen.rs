//! The dtype that references compute in.

use candle_core::{DType, Result, Tensor};

/// f16 and bf16 as f32.
pub(crate) fn widened(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        _ => Ok(x.clone()),
    }
}
