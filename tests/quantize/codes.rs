//! Codes, scales and values as plain Candle has them.

use super::{schemes, signal, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{dequantize, fake_quantize, quantize, FakeQuantize};
use candle_fused::quant::{ScaleScope, Scheme};
use candle_fused::reference::quantize::{reference, reference_dequantize, reference_quantize};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn check(x: &Tensor, scheme: Scheme) -> Result<()> {
    let what = format!("{scheme:?} of {:?} {:?}", x.layout(), x.dtype());
    let want = reference_quantize(&x.to_device(&Device::Cpu)?, scheme)?;
    let got = quantize(x, scheme)?;
    assert_eq!(got.codes().dims(), want.codes().dims(), "{what}");
    // Sums are made in another order: a mean may differ by some of its last bits.
    let close = |got: &Tensor, want: &Tensor| -> Result<()> {
        assert_eq!(got.dims(), want.dims(), "{what}");
        for (got, want) in values(got)?.into_iter().zip(values(want)?) {
            assert!(
                (got - want).abs() <= 1e-6 * want.abs(),
                "{got} {want} {what}"
            );
        }
        Ok(())
    };
    close(got.scales(), want.scales())?;
    match (got.offsets(), want.offsets()) {
        (Some(got), Some(want)) => close(got, want)?,
        (got, want) => assert!(got.is_none() && want.is_none(), "{what}"),
    }
    let bytes = |t: &Tensor| t.flatten_all()?.to_vec1::<u8>();
    assert_eq!(bytes(got.codes())?, bytes(want.codes())?, "{what}");
    for dtype in DTYPES {
        let values = |t: Tensor| values(&t);
        let decoded = values(dequantize(&got, dtype)?)?;
        let of_codes = values(reference_dequantize(&got, dtype)?)?;
        assert_eq!(decoded, of_codes, "{dtype:?} {what}");
        if dtype == x.dtype() {
            assert_eq!(values(fake_quantize(x, scheme)?)?, decoded, "{what}");
        }
    }
    let want = reference(&x.to_device(&Device::Cpu)?, scheme, false)?;
    let got = fake_quantize(x, scheme)?;
    assert_eq!(
        (got.dims(), got.dtype()),
        (want.dims(), want.dtype()),
        "{what}"
    );
    for (got, want) in values(&got)?.into_iter().zip(values(&want)?) {
        let most = match x.dtype() {
            DType::F32 => 1e-6,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        assert!(
            (got - want).abs() <= most * want.abs().max(1e-3),
            "{got} {want} {what}"
        );
    }
    Ok(())
}

#[test]
fn of_every_scheme_and_size() -> Result<()> {
    for device in devices() {
        for per in [ScaleScope::Tensor, ScaleScope::Row, ScaleScope::Column] {
            for scheme in schemes(per) {
                for (rows, cols) in [
                    (1, 1),
                    (3, 15),
                    (2, 16),
                    (5, 17),
                    (2, 255),
                    (1, 256),
                    (1, 257),
                    (1, 2560),
                    (1, 6912),
                ] {
                    check(&signal(&[rows, cols], 1, DType::F32, device)?, scheme)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn of_groups() -> Result<()> {
    for device in devices() {
        for (cols, group) in [
            (8, 4),
            (8, 1),
            (96, 32),
            (128, 128),
            (15, 5),
            (33, 11),
            (256, 64),
            // Groups across the 640 columns that the CPU packs at a time.
            (1287, 13),
            (1920, 960),
        ] {
            for scheme in schemes(ScaleScope::Group(group)) {
                check(&signal(&[3, cols], 2, DType::F32, device)?, scheme)?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_layouts_and_dtypes() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let x = signal(&[3, 4, 12], 3, dtype, device)?;
            let views = [
                x.clone(),
                x.transpose(0, 2)?,
                x.transpose(1, 2)?,
                x.narrow(2, 3, 8)?,
                x.narrow(0, 1, 2)?,
                x.narrow(1, 2, 1)?.broadcast_as((3, 5, 12))?,
                x.narrow(2, 1, 1)?.broadcast_as((3, 4, 4))?,
                x.flatten_all()?,
            ];
            for view in &views {
                for per in [
                    ScaleScope::Tensor,
                    ScaleScope::Row,
                    ScaleScope::Column,
                    ScaleScope::Group(2),
                ] {
                    if per == ScaleScope::Group(2) && view.dims().last() == Some(&3) {
                        continue;
                    }
                    for scheme in schemes(per) {
                        check(view, scheme)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Past every block and share of a thread; on a device, past a threadgroup.
#[test]
fn of_long_rows_and_many() -> Result<()> {
    for device in devices() {
        let (long, many) = match device.is_cpu() {
            true => (100_003, 3000),
            false => (3001, 300),
        };
        for per in [ScaleScope::Tensor, ScaleScope::Row, ScaleScope::Column] {
            for scheme in schemes(per) {
                check(&signal(&[1, long], 4, DType::F32, device)?, scheme)?;
                check(&signal(&[many, 17], 5, DType::F32, device)?, scheme)?;
            }
        }
    }
    Ok(())
}

/// Tensors that a device measures in parts.
#[test]
fn of_parts() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            for scheme in [
                Scheme::ternary(ScaleScope::Tensor),
                Scheme::int8(ScaleScope::Row),
                Scheme::uint8(ScaleScope::Tensor),
            ] {
                check(&signal(&[1, 32_773], 6, dtype, device)?, scheme)?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_nothing() -> Result<()> {
    for device in devices() {
        for (dims, groups) in [([0, 8], 0), ([3, 0], 0), ([0, 0], 0)] {
            let x = Tensor::zeros(&dims, DType::F32, device)?;
            for per in [
                ScaleScope::Tensor,
                ScaleScope::Row,
                ScaleScope::Column,
                ScaleScope::Group(4),
            ] {
                for scheme in schemes(per) {
                    let q = quantize(&x, scheme)?;
                    assert_eq!(q.codes().elem_count(), groups);
                    assert_eq!(q.dequantize(DType::F16)?.dims(), dims);
                    assert_eq!(fake_quantize(&x, scheme)?.dims(), dims);
                    // The CustomOp, too.
                    let fake = FakeQuantize {
                        scheme,
                        clipped: true,
                    };
                    assert_eq!(x.apply_op1_no_bwd(&fake)?.dims(), dims);
                }
            }
        }
    }
    Ok(())
}

/// So many that a sum of them all, one by one, would lose some.
#[test]
fn means_of_many() -> Result<()> {
    for device in devices() {
        let rows = if device.is_cpu() { 1_000_000 } else { 40_000 };
        for per in [ScaleScope::Tensor, ScaleScope::Column] {
            for (rows, cols) in [(rows, 2), (1, 2 * rows)] {
                let x = Tensor::full(0.1f32, (rows, cols), device)?;
                let q = quantize(&x, Scheme::ternary(per))?;
                let scales = values(q.scales())?;
                // Hundreds of roundings in one direction, twice.
                let close = scales.iter().all(|scale| (scale - 0.1).abs() < 2e-6);
                assert!(close, "{per:?} {rows}x{cols} {:?}", &scales[..1]);
            }
        }
    }
    Ok(())
}
