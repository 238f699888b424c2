//! Whether the two sides compute the same thing.

use crate::cases::Class;
use crate::difference::max_error;
use crate::plan::Kind;
use crate::workload::Workload;
use candle_core::{DType, Result};

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
    /// Long sums in f32 may be off by more than the tolerance, but never by more than stock's own.
    pub fn holds(&self) -> bool {
        let stock = self.stock_error.unwrap_or(0.0);
        self.max_error <= self.tolerance.max(stock) && stock <= STOCK_TOLERANCE
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
