use super::{assert_near, cpu};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::*;

#[test]
fn rows_and_all() -> Result<()> {
    let x = cpu(&[[1f32, 5., 3.], [-4., -6., -5.]])?;
    assert_near(&sum_last_dim(&x)?, &[9., -15.], 0.)?;
    assert_near(&mean_last_dim(&x)?, &[3., -5.], 0.)?;
    assert_near(&max_last_dim(&x)?, &[5., -4.], 0.)?;
    assert_near(&sum_all(&x)?, &[-6.], 0.)?;
    assert_near(&mean_all(&x)?, &[-1.], 0.)?;
    assert_near(&max_all(&x)?, &[5.], 0.)
}

/// Adding ones in f16 itself would stop at 2048, in bf16 at 256.
#[test]
fn narrow_dtypes_accumulate_in_f32() -> Result<()> {
    let ones = |n: usize, dtype| Tensor::ones((1, n), dtype, &Device::Cpu);
    assert_near(&sum_all(&ones(60_000, DType::F16)?)?, &[60_000.], 0.)?;
    assert_near(&sum_last_dim(&ones(60_000, DType::F16)?)?, &[60_000.], 0.)?;
    assert_near(&mean_all(&ones(1_000_000, DType::F16)?)?, &[1.], 0.)?;
    assert_near(&mean_last_dim(&ones(1_000_000, DType::BF16)?)?, &[1.], 0.)?;
    // The nearest bf16 to a million, then the exact million.
    assert_near(&sum_all(&ones(1_000_000, DType::BF16)?)?, &[999_424.], 0.)?;
    assert_near(&sum_all(&ones(1_000_000, DType::F32)?)?, &[1e6], 0.)
}
