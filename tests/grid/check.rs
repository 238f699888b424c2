//! Comparing tensors.

use super::tolerance::Tolerance;
use candle_core::{DType, Device, Result, Tensor};

pub type Verdict = std::result::Result<(), String>;

/// The arguments as the oracle takes them: f64, on the CPU.
pub fn exact(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    tensors
        .iter()
        .map(|t| t.to_device(&Device::Cpu)?.to_dtype(DType::F64))
        .collect()
}

pub fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()
}

/// What a value becomes in the dtype; overflow is an infinity.
fn rounded(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_f64(value).to_f64(),
        DType::BF16 => half::bf16::from_f64(value).to_f64(),
        DType::F32 => value as f32 as f64,
        _ => value,
    }
}

/// `got` is `want` within the tolerance, NaN and infinities exactly.
pub fn close(got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Result<Verdict> {
    if got.dims() != want.dims() {
        let (a, b) = (got.shape(), want.shape());
        return Ok(Err(format!("shape {a:?}, expected {b:?}")));
    }
    let (got_values, want_values) = (values(got)?, values(want)?);
    let finite = want_values.iter().filter(|w| w.is_finite());
    let scale = finite.fold(tolerance.scale, |m, w| m.max(w.abs()));
    // The smallest f16 subnormal is a coarser grid than the tolerance knows.
    let floor = if got.dtype() == DType::F16 { 3e-8 } else { 0.0 };
    let excess = |g: f64, w: f64| {
        if g == rounded(w, got.dtype()) || (g.is_nan() && w.is_nan()) {
            return 0.0;
        }
        let excess = (g - w).abs() / (tolerance.rel * w.abs() + tolerance.abs * scale + floor);
        if excess.is_nan() {
            return f64::INFINITY;
        }
        excess
    };
    let pairs = got_values.iter().zip(&want_values).enumerate();
    let excesses = pairs.map(|(i, (&g, &w))| (i, excess(g, w)));
    let worst = excesses.max_by(|a, b| a.1.total_cmp(&b.1));
    Ok(match worst {
        Some((i, excess)) if excess > 1.0 => {
            let (g, w) = (got_values[i], want_values[i]);
            Err(format!(
                "element {i} is {g}, expected {w} ({excess:.2} × the tolerance)"
            ))
        }
        _ => Ok(()),
    })
}

/// The same shape and bits; every NaN counts as the same.
pub fn identical(got: &Tensor, want: &Tensor) -> Result<Verdict> {
    if got.dims() != want.dims() {
        let (a, b) = (got.shape(), want.shape());
        return Ok(Err(format!("shape {a:?}, expected {b:?}")));
    }
    let differs = |(g, w): &(f64, f64)| g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan());
    let pairs = values(got)?.into_iter().zip(values(want)?);
    let first = pairs.enumerate().find(|(_, pair)| differs(pair));
    Ok(match first {
        None => Ok(()),
        Some((i, (g, w))) => Err(format!("element {i} is {g:?}, not the same bits as {w:?}")),
    })
}

/// The first complaint, prefixed by where it arose.
pub fn all<T>(
    items: impl IntoIterator<Item = T>,
    mut check: impl FnMut(T) -> Result<Verdict>,
) -> Result<Verdict> {
    for item in items {
        if let Err(text) = check(item)? {
            return Ok(Err(text));
        }
    }
    Ok(Ok(()))
}

/// A verdict with a word about where.
pub fn at(place: impl std::fmt::Display, verdict: Verdict) -> Verdict {
    verdict.map_err(|text| format!("{place}: {text}"))
}
