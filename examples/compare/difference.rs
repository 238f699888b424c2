//! How far results are apart.

use candle_core::{DType, Device, Result, Tensor};

/// The largest difference, relative to the largest value; infinite where only one side is finite. A result in f16 may be off by
/// half a step of f16's smallest numbers, to which a gradient of many classes is rounded: its values may all be that small.
pub fn max_error(got: &[Tensor], want: &[Tensor]) -> Result<f64> {
    let mut worst = 0f64;
    for (got, want) in got.iter().zip(want) {
        if got.dims() != want.dims() {
            candle_core::bail!("results have shapes {:?} and {:?}", got.dims(), want.dims());
        }
        let slack = match got.dtype() {
            DType::F16 => HALF_STEP_OF_F16,
            _ => 0.0,
        };
        worst = worst.max(difference(&values(got)?, &values(want)?, slack));
    }
    Ok(worst)
}

/// f16's subnormal numbers are multiples of 2⁻²⁴.
const HALF_STEP_OF_F16: f64 = 1.0 / (1u32 << 25) as f64;

fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.to_device(&Device::Cpu)?
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1()
}

fn difference(got: &[f32], want: &[f32], slack: f64) -> f64 {
    let finite = |x: &&f32| x.is_finite();
    let scale = want.iter().filter(finite).fold(0f32, |m, x| m.max(x.abs()));
    let scale = if scale == 0.0 { 1.0 } else { scale as f64 };
    let mut worst = 0f64;
    for (&got, &want) in got.iter().zip(want) {
        if got == want || (got.is_nan() && want.is_nan()) {
            continue;
        }
        let error = ((got as f64 - want as f64).abs() - slack) / scale;
        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn is_relative_to_the_largest_value() {
        assert_eq!(difference(&[1.0, -3.0], &[1.0, -4.0], 0.0), 0.25);
        assert_eq!(difference(&[0.5], &[0.0], 0.0), 0.5);
        assert_eq!(difference(&[1.0, -3.0], &[1.0, -4.0], 0.5), 0.125);
    }

    #[test]
    fn specials_agree_only_with_themselves() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert_eq!(difference(&[nan, inf, 1.0], &[nan, inf, 1.0], 0.0), 0.0);
        for (got, want) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf)] {
            assert_eq!(difference(&[got], &[want], 1.0), f64::INFINITY);
        }
    }
}
