//! Straight through, clipped, and to the scales.

use super::{schemes, signal, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{dequantize, fake_quantize, fake_quantize_clipped, quantize};
use candle_fused::quant::{Levels, Quantized, ScaleScope, Scheme};
use candle_fused::reference::quantize::{reference, reference_dequantize};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn gradient(x: &Tensor, y: &Tensor, g: &Tensor) -> Result<Vec<f32>> {
    let grads = (y * g)?.backward()?;
    values(grads.get(x).expect("a gradient"))
}

#[test]
fn straight_through_and_clipped() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            for per in [
                ScaleScope::Tensor,
                ScaleScope::Row,
                ScaleScope::Column,
                ScaleScope::Group(6),
            ] {
                for scheme in schemes(per) {
                    // A few far out, for what is clipped.
                    let x = signal(&[5, 18], 1, dtype, device)?;
                    let x = Var::from_tensor(&(&x * x.sqr()?)?)?.into_inner();
                    let g = signal(&[5, 18], 2, dtype, device)?;
                    let through = gradient(&x, &fake_quantize(&x, scheme)?, &g)?;
                    assert_eq!(through, values(&g)?, "{scheme:?}");
                    let clipped = gradient(&x, &fake_quantize_clipped(&x, scheme)?, &g)?;
                    let cpu = Var::from_tensor(&x.to_device(&Device::Cpu)?)?.into_inner();
                    let g = g.to_device(&Device::Cpu)?;
                    let want = gradient(&cpu, &reference(&cpu, scheme, true)?, &g)?;
                    assert_eq!(clipped, want, "{dtype:?} {scheme:?}");
                    if scheme.levels == Levels::Ternary {
                        assert_ne!(clipped, through, "something is clipped");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn to_scales_and_offsets() -> Result<()> {
    for device in devices() {
        for per in [
            ScaleScope::Tensor,
            ScaleScope::Row,
            ScaleScope::Column,
            ScaleScope::Group(6),
        ] {
            for scheme in schemes(per) {
                let x = signal(&[5, 18], 3, DType::F32, device)?;
                let q = quantize(&x, scheme)?;
                let var =
                    |t: &Tensor| Ok::<_, candle_core::Error>(Var::from_tensor(t)?.into_inner());
                let scales = var(q.scales())?;
                let offsets = q.offsets().map(var).transpose()?;
                let shape = q.shape().clone();
                let new = (scales.clone(), offsets.clone());
                let q = Quantized::new(q.codes().clone(), new.0, new.1, shape, scheme)?;
                let g = signal(&[5, 18], 4, DType::F32, device)?;
                for (got, want) in [(
                    (dequantize(&q, DType::F32)? * &g)?.backward()?,
                    (reference_dequantize(&q, DType::F32)? * &g)?.backward()?,
                )] {
                    for t in [Some(&scales), offsets.as_ref()].into_iter().flatten() {
                        let (got, want) =
                            (got.get(t).expect("ours"), want.get(t).expect("stock's"));
                        for (got, want) in values(got)?.into_iter().zip(values(want)?) {
                            let most = 2e-5 * want.abs().max(1.);
                            assert!((got - want).abs() <= most, "{got} {want} {scheme:?}");
                        }
                    }
                }
                // Frozen ones get none.
                let frozen = Quantized::new(
                    q.codes().clone(),
                    scales.detach(),
                    offsets.as_ref().map(Tensor::detach),
                    q.shape().clone(),
                    scheme,
                )?;
                assert!(!dequantize(&frozen, DType::F32)?.track_op());
            }
        }
    }
    Ok(())
}

/// Its codes reach all numbers, the negative ones too.
#[test]
fn nothing_of_int8_is_clipped() -> Result<()> {
    for device in devices() {
        let x = Var::new(&[-3f32, -1., 0., 2., 2.5, -0.1], device)?.into_inner();
        for per in [
            ScaleScope::Tensor,
            ScaleScope::Row,
            ScaleScope::Column,
            ScaleScope::Group(2),
        ] {
            let y = fake_quantize_clipped(&x, Scheme::int8(per))?;
            let g = Tensor::ones(6, DType::F32, device)?;
            assert_eq!(gradient(&x, &y, &g)?, [1.; 6], "{per:?}");
        }
    }
    Ok(())
}

/// The sign of a step decides over the whole interval around a code, which finite differences of the clipped form see.
#[test]
fn ternary_is_clipped_beyond_one_and_a_half() -> Result<()> {
    for device in devices() {
        // Their mean is 1.
        let x = Var::new(&[0.4f32, -1.4, 1.6, -1.6, 0.0, 1.0], device)?.into_inner();
        let scheme = Scheme::ternary(ScaleScope::Tensor);
        let y = fake_quantize_clipped(&x, scheme)?;
        assert_eq!(values(&y)?, [0., -1., 1., -1., 0., 1.]);
        let g = Tensor::ones(6, DType::F32, device)?;
        assert_eq!(gradient(&x, &y, &g)?, [1., 1., 0., 0., 1., 1.]);
    }
    Ok(())
}
