//! Tensors for tests of products, and how far a result is from another.

use crate::cases::Fill;
use candle_core::{DType, Device, Result, Tensor, Var};

pub fn signal(dims: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    Fill::Signal.tensor(dims, seed, DType::F32, device)
}

pub fn var(dims: &[usize], seed: u64, device: &Device) -> Result<Tensor> {
    Ok(Var::from_tensor(&signal(dims, seed, device)?)?.into_inner())
}

/// ‖got − want‖ / ‖want‖
pub fn error(got: &Tensor, want: &Tensor) -> Result<f64> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (got, want) = (wide(got)?, wide(want)?);
    assert_eq!(got.dims(), want.dims());
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((norm(&(&got - &want)?)? / norm(&want)?).sqrt())
}
