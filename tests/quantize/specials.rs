//! Zeros, constants, what isn't finite, tiny numbers, round trips and refusals.

use super::{schemes, signal, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{dequantize, fake_quantize, quantize, Dequantize, FakeQuantize};
use candle_fused::quant::{Levels, Packing, Quantized, Rounding, ScaleScope, Scheme};

/// Half a step and what rounding adds; a step for MLX, which moves the end of the range.
#[test]
fn round_trips() -> Result<()> {
    for device in devices() {
        for per in [
            ScaleScope::Tensor,
            ScaleScope::Row,
            ScaleScope::Column,
            ScaleScope::Group(20),
        ] {
            for scheme in schemes(per) {
                let x = signal(&[6, 60], 1, DType::F32, device)?;
                let q = quantize(&x, scheme)?;
                let back = values(&q.dequantize(DType::F32)?)?;
                let steps = match scheme.levels {
                    Levels::Ternary | Levels::Sign { .. } => continue,
                    Levels::Affine { .. } => 1.001,
                    _ if scheme.rounding != Rounding::Nearest => 1.001,
                    _ => 0.501,
                };
                let step = match scheme.scope {
                    ScaleScope::Group(group) => {
                        let step = q.scales().unsqueeze(2)?;
                        step.broadcast_as((6, 60 / group, group))?.flatten_all()?
                    }
                    _ => q.scales().broadcast_as((6, 60))?.flatten_all()?,
                };
                let step = values(&step)?;
                for ((x, back), step) in values(&x)?.into_iter().zip(back).zip(step) {
                    assert!(
                        (x - back).abs() <= steps * step.abs(),
                        "{scheme:?} {x} {back} {step}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn zeros_and_constants() -> Result<()> {
    for device in devices() {
        for value in [0f32, 3., -0.25, 1e-20] {
            let x = Tensor::full(value, (2, 24), device)?;
            for per in [
                ScaleScope::Tensor,
                ScaleScope::Row,
                ScaleScope::Column,
                ScaleScope::Group(8),
            ] {
                for scheme in schemes(per) {
                    let q = quantize(&x, scheme)?;
                    for back in values(&q.dequantize(DType::F32)?)? {
                        let most = match scheme.levels {
                            // What is all the mean is negative, or nothing.
                            Levels::Sign { centred: true } => 2.001 * value.abs().max(1e-5),
                            Levels::Sign { .. } => 2e-5 + 1e-6 * value.abs(),
                            _ => (1e-6 * value.abs()).max(1e-5),
                        };
                        assert!((back - value).abs() <= most, "{value} {back} {scheme:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Exactly, on the levels that have a 0, however small eps is.
#[test]
fn zeros_stay_zeros() -> Result<()> {
    for device in devices() {
        let x = Tensor::zeros((2, 24), DType::F32, device)?;
        for per in [
            ScaleScope::Tensor,
            ScaleScope::Row,
            ScaleScope::Column,
            ScaleScope::Group(8),
        ] {
            let schemes = schemes(per).into_iter().chain([Scheme::gradient(8, 1)]);
            for scheme in schemes.filter(|s| !matches!(s.levels, Levels::Sign { .. })) {
                let back = values(&quantize(&x, scheme)?.dequantize(DType::F32)?)?;
                assert!(back.into_iter().all(|v| v == 0.), "{scheme:?}");
            }
        }
    }
    Ok(())
}

/// A unit with a NaN or an infinity is NaN as a whole, and no other is.
#[test]
fn what_is_not_finite() -> Result<()> {
    for device in devices() {
        for flaw in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 7, 19] {
                let mut x = values(&signal(&[3, 20], 2, DType::F32, &Device::Cpu)?)?;
                x[20 + at] = flaw;
                let x = Tensor::from_vec(x, (3, 20), device)?;
                for scheme in schemes(ScaleScope::Row) {
                    let q = quantize(&x, scheme)?.dequantize(DType::F32)?;
                    for back in [q, fake_quantize(&x, scheme)?] {
                        let nan = values(&back)?.into_iter().map(f32::is_nan);
                        let want = (0..60).map(|i| i / 20 == 1);
                        assert!(nan.eq(want), "{flaw} at {at} of {scheme:?}");
                    }
                }
                for scheme in schemes(ScaleScope::Tensor) {
                    let all = values(&fake_quantize(&x, scheme)?)?;
                    assert!(all.into_iter().all(f32::is_nan), "{flaw} {scheme:?}");
                }
                for scheme in schemes(ScaleScope::Column) {
                    let nan = values(&fake_quantize(&x, scheme)?)?.into_iter();
                    let want = (0..60).map(|i| i % 20 == at);
                    assert!(
                        nan.map(f32::is_nan).eq(want),
                        "{flaw} at {at} of {scheme:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// However small they are, and right in the mean.
#[test]
fn gradients_keep_their_mean() -> Result<()> {
    for device in devices() {
        let g = (signal(&[4, 64], 3, DType::F32, device)? * 1e-9)?;
        let once = |seed| quantize(&g, Scheme::gradient(32, seed))?.dequantize(DType::F32);
        let rounds = if device.is_cpu() { 400 } else { 50 };
        let mut sum = g.zeros_like()?;
        for seed in 0..rounds {
            sum = (sum + once(seed)?)?;
        }
        let mean = values(&(sum / rounds as f64)?)?;
        let scales = values(quantize(&g, Scheme::gradient(32, 0))?.scales())?;
        for (i, (mean, g)) in mean.into_iter().zip(values(&g)?).enumerate() {
            // A step's rounding has a deviation of half a step at most; five deviations of the mean.
            let most = 2.5 * scales[i / 32] / (rounds as f32).sqrt();
            assert!((mean - g).abs() <= most, "{mean} {g}");
        }
        let codes = |seed| {
            quantize(&g, Scheme::gradient(32, seed))?
                .codes()
                .flatten_all()
        };
        let codes = |seed| codes(seed)?.to_vec1::<u8>();
        assert_eq!(codes(5)?, codes(5)?);
        assert_ne!(codes(5)?, codes(6)?);
    }
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let x = Tensor::zeros((2, 10), DType::F32, &Device::Cpu)?;
    let says = |scheme: Scheme, wanted: &[&str]| {
        let quantized = quantize(&x, scheme).map(drop);
        for error in [quantized, fake_quantize(&x, scheme).map(drop)] {
            let error = error.unwrap_err().to_string();
            for wanted in wanted {
                assert!(error.contains(wanted), "{error} should say {wanted}");
            }
        }
    };
    says(
        Scheme::mlx(4, 4),
        &["quantize: ", "groups of 4", "10", "divisor"],
    );
    says(Scheme::mlx(4, 0), &["quantize: ", "groups of 0"]);
    says(Scheme::mlx(3, 5), &["quantize: ", "3 bits", "2, 4 or 8"]);
    let base3 = Scheme::int8(ScaleScope::Row).with_packing(Packing::Base3);
    says(base3, &["quantize: ", "base 3", "Int8", "Ternary"]);
    let eps = Scheme {
        eps: 0.,
        ..Scheme::int8(ScaleScope::Row)
    };
    says(eps, &["quantize: ", "eps"]);

    let integers = Tensor::zeros(4, DType::U32, &Device::Cpu)?;
    let error = quantize(&integers, Scheme::int8(ScaleScope::Row))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("quantize: ") && error.contains("U32"),
        "{error}"
    );
    let scalar = Tensor::new(1f32, &Device::Cpu)?;
    let error = quantize(&scalar, Scheme::int8(ScaleScope::Row))
        .unwrap_err()
        .to_string();
    assert!(error.contains("rank 0"), "{error}");

    let q = quantize(&x, Scheme::ternary(ScaleScope::Row))?;
    let (codes, scales) = (q.codes(), q.scales());
    let new = |codes: &Tensor, scales: &Tensor, offsets, shape: (usize, usize)| {
        let scheme = Scheme::ternary(ScaleScope::Row);
        Quantized::new(codes.clone(), scales.clone(), offsets, shape, scheme).map(drop)
    };
    for (result, wanted) in [
        (new(codes, scales, None, (2, 13)), "codes"),
        (new(codes, &scales.t()?, None, (2, 10)), "scales"),
        (new(scales, scales, None, (2, 10)), "U8"),
        (new(codes, scales, Some(scales.clone()), (2, 10)), "offsets"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("quantized: ") && error.contains(wanted),
            "{error}"
        );
    }
    let error = dequantize(&q, DType::U8).unwrap_err().to_string();
    assert!(
        error.contains("dequantize: ") && error.contains("U8"),
        "{error}"
    );
    Ok(())
}

/// Whatever a scheme, a shape or a view says, the answer is an `Err` and never a panic.
#[test]
fn absurd_numbers_are_errors() -> Result<()> {
    let huge = 1 << 62;
    let shapes: [&[usize]; 8] = [
        &[],
        &[0],
        &[8],
        &[0, huge],
        &[huge, 8],
        &[1 << 40, 1 << 40],
        &[usize::MAX, usize::MAX],
        &[2, 8],
    ];
    let one = Tensor::ones((), DType::F32, &Device::Cpu)?;
    let mut accepted = 0;
    for bits in [0, 1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 64, u32::MAX] {
        for group in [0, 1, 3, 8, usize::MAX] {
            for scheme in [
                Scheme::mlx(bits, group),
                Scheme::new(Levels::ZeroPoint { bits }, ScaleScope::Group(group)),
                Scheme::new(Levels::Affine { bits }, ScaleScope::Tensor),
                Scheme::new(Levels::ZeroPoint { bits }, ScaleScope::Column),
                Scheme::mlx(bits, group).with_packing(Packing::Base3),
                Scheme::gradient(group, 1),
            ] {
                for dims in shapes {
                    let (bits, has_offsets) = (scheme.bits(), scheme.has_offsets());
                    let sound = matches!(bits, 2 | 4 | 8) && scheme.packing == Packing::Bits;
                    let grouped = match (scheme.scope, dims.last()) {
                        (ScaleScope::Group(group), Some(cols)) => group > 0 && cols % group == 0,
                        _ => true,
                    };
                    let good = sound && grouped && matches!(dims, [0] | [8] | [2, 8]);
                    let shape = candle_core::Shape::from(dims.to_vec());
                    let (codes, scales) = (scheme.codes_shape(&shape), scheme.scales_shape(&shape));
                    assert_eq!(
                        (codes.is_ok(), scales.is_ok()),
                        (good, good),
                        "{scheme:?} {dims:?}"
                    );
                    let u8s = one.to_dtype(DType::U8)?.broadcast_as(&shape)?;
                    let x = one.broadcast_as(&shape)?;
                    let offsets = has_offsets.then(|| x.clone());
                    let new = Quantized::new(u8s.clone(), x.clone(), offsets, dims, scheme);
                    let op = Dequantize {
                        scheme,
                        shape,
                        dtype: DType::F32,
                    };
                    let fake = FakeQuantize {
                        scheme,
                        clipped: true,
                    };
                    let results = [
                        quantize(&x, scheme).map(drop),
                        fake_quantize(&x, scheme).map(drop),
                        x.apply_op1_no_bwd(&fake).map(drop),
                        new.map(drop),
                        u8s.apply_op2_no_bwd(&x, &op).map(drop),
                        u8s.apply_op3_no_bwd(&x, &x, &op).map(drop),
                    ];
                    assert!(
                        good || results.iter().all(|r| r.is_err()),
                        "{scheme:?} {dims:?}"
                    );
                    accepted += usize::from(good && results[0].is_ok() && results[1].is_ok());
                }
            }
        }
    }
    assert!(accepted > 100);
    Ok(())
}
