use super::{assert_near, cpu};
use crate::devices::devices;
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

/// As in stock Candle a NaN is the maximum where it comes first, and is passed over elsewhere: also where a block of a long
/// row begins with it.
#[test]
fn a_nan_hides_no_maximum() -> Result<()> {
    let row = |nan: usize, max: usize| {
        let mut row: Vec<f32> = (0..70_000).map(|i| (i % 100) as f32).collect();
        (row[nan], row[max]) = (f32::NAN, 1000.);
        row
    };
    for device in devices() {
        for (nan, max) in [(65_536, 65_537), (65_536, 69_999), (65_535, 65_536), (1, 2)] {
            let x = Tensor::from_vec(row(nan, max), (1, 70_000), device)?;
            assert_near(&max_last_dim(&x)?, &[1000.], 0.)?;
            assert_near(&max_all(&x)?, &[1000.], 0.)?;
        }
        let first = Tensor::from_vec(row(0, 65_537), (1, 70_000), device)?;
        assert!(max_last_dim(&first)?.to_vec1::<f32>()?[0].is_nan());
    }
    Ok(())
}
