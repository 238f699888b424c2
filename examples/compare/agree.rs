//! Whether the two sides compute the same thing.

use crate::cases::Class;
use crate::plan::Kind;
use crate::workload::Workload;
use candle_core::{DType, Device, Result, Tensor};

pub struct Agreement {
    /// Our largest difference from stock's composed ops in a wider dtype, relative to the largest
    /// value.
    pub max_error: f64,
    /// That of stock's own result in f32. In f16 and bf16 stock rounds every intermediate, so there
    /// its error says nothing about ours.
    pub stock_error: Option<f64>,
    /// False where stock Candle has no such op for this dtype or device.
    pub stock_runs: bool,
    pub tolerance: f64,
}

/// Enough to tell that stock computes the same thing.
const STOCK_TOLERANCE: f64 = 1e-3;

impl Agreement {
    pub fn holds(&self) -> bool {
        let stock = self.stock_error.unwrap_or(0.0);
        self.max_error <= self.tolerance && stock <= STOCK_TOLERANCE
    }
}

pub fn check(work: &Workload) -> Result<Agreement> {
    let wide = match (work.row.case.class, work.row.kind) {
        (Class::Elementwise, Kind::Forward | Kind::InPlace) => DType::F32,
        _ => DType::F64,
    };
    let want = work.wide_results(wide)?;
    let ours = max_error(&work.fused_results()?, &want)?;
    let stock = work.stock_results();
    let comparable = work.row.dtype == DType::F32 && !work.is_random();
    let stock_error = match &stock {
        Ok(stock) if comparable => Some(max_error(stock, &want)?),
        _ => None,
    };
    Ok(Agreement {
        max_error: ours,
        stock_error,
        stock_runs: stock.is_ok(),
        tolerance: tolerance(work.row.dtype),
    })
}

/// Relative to the largest value: a few roundings of the dtype, and in f32 the error of sums too.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2e-2,
        DType::F16 => 2.5e-3,
        _ => 2e-5,
    }
}

fn max_error(got: &[Tensor], want: &[Tensor]) -> Result<f64> {
    let mut worst = 0f64;
    for (got, want) in got.iter().zip(want) {
        if got.dims() != want.dims() {
            candle_core::bail!("results have shapes {:?} and {:?}", got.dims(), want.dims());
        }
        worst = worst.max(difference(&values(got)?, &values(want)?));
    }
    Ok(worst)
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.to_device(&Device::Cpu)?
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1()
}

fn difference(got: &[f32], want: &[f32]) -> f64 {
    let finite = |x: &&f32| x.is_finite();
    let scale = want.iter().filter(finite).fold(0f32, |m, x| m.max(x.abs()));
    let scale = if scale == 0.0 { 1.0 } else { scale as f64 };
    let mut worst = 0f64;
    for (&got, &want) in got.iter().zip(want) {
        if got == want || (got.is_nan() && want.is_nan()) {
            continue;
        }
        let error = (got as f64 - want as f64).abs() / scale;
        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn is_relative_to_the_largest_value() {
        assert_eq!(difference(&[1.0, -3.0], &[1.0, -4.0]), 0.25);
        assert_eq!(difference(&[0.5], &[0.0]), 0.5);
    }

    #[test]
    fn specials_agree_only_with_themselves() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(difference(&[nan, inf, 1.0], &[nan, inf, 1.0]), 0.0);
        for (got, want) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf)] {
            assert_eq!(difference(&[got], &[want]), f64::INFINITY);
        }
    }
}
