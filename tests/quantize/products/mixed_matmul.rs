//! Floats by codes, against f64.

use super::super::{schemes, signal, values};
use super::{error, grad_x, layouts, tolerance, wide, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{mixed_matmul, mixed_matmul_with, quantize, Activations};
use candle_fused::quant::{Packing, Quantized, ScaleScope, Scheme};

/// What is the exact product of x and the values of the codes.
fn mixed_reference(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    let w = wide(&w.dequantize(DType::F32)?)?;
    let last = x.dim(candle_core::D::Minus1)?;
    let rows = wide(x)?.reshape(((), last))?;
    let y = rows.matmul(&w.t()?)?;
    let mut dims = x.dims().to_vec();
    *dims.last_mut().expect("a dim") = w.dim(0)?;
    let y = y.reshape(dims)?;
    match bias {
        Some(bias) => y.broadcast_add(&wide(bias)?),
        None => Ok(y),
    }
}

#[test]
fn mixed_matmul_of_every_scheme() -> Result<()> {
    for device in devices() {
        // Past vectors, tiles and what counts as few rows.
        let sizes: &[(usize, usize, usize)] = match device.is_cpu() {
            true => &[
                (1, 9, 64),
                (1, 7, 300),
                (5, 13, 128),
                (70, 21, 96),
                (2, 70, 1100),
            ],
            false => &[(1, 9, 64), (5, 13, 40), (66, 34, 33)],
        };
        for &(rows, outputs, cols) in sizes {
            for per in [
                ScaleScope::Tensor,
                ScaleScope::Row,
                ScaleScope::Group(32),
                ScaleScope::Group(20),
                ScaleScope::Group(cols),
            ] {
                if let ScaleScope::Group(group) = per {
                    if cols % group != 0 {
                        continue;
                    }
                }
                for scheme in schemes(per) {
                    for dtype in DTYPES {
                        let x = signal(&[rows, cols], 7, dtype, device)?;
                        let w =
                            quantize(&signal(&[outputs, cols], 8, DType::F32, device)?, scheme)?;
                        let bias = signal(&[outputs], 9, dtype, device)?;
                        let got = mixed_matmul(&x, &w, Some(&bias))?;
                        let want = mixed_reference(&x, &w, Some(&bias))?;
                        let error = error(&got, &want)?;
                        let most = tolerance(dtype);
                        assert!(
                            error <= most,
                            "{error} {rows}x{outputs}x{cols} {dtype:?} {scheme:?}"
                        );
                        let g = signal(&[rows, outputs], 9, dtype, device)?;
                        let got = grad_x(&w, &g, cols)?;
                        let want = wide(&g)?.matmul(&wide(&w.dequantize(DType::F32)?)?)?;
                        assert!(
                            self::error(&got, &want)? <= most,
                            "x·W {rows}x{outputs}x{cols} {dtype:?} {scheme:?}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// Longer than what is held of x at a time, with groups that lie in more than one such part.
#[test]
fn mixed_matmul_of_long_rows() -> Result<()> {
    for device in devices() {
        for (rows, cols, group) in [(1, 5760, 960), (2, 960, 480)] {
            let x = signal(&[rows, cols], 7, DType::F32, device)?;
            let w = signal(&[3, cols], 8, DType::F32, device)?;
            for scheme in [
                Scheme::ternary(ScaleScope::Group(group)).with_packing(Packing::Base3),
                Scheme::ternary(ScaleScope::Group(group)),
                Scheme::sign(ScaleScope::Row),
                Scheme::mlx(4, group),
                Scheme::uint8(ScaleScope::Group(group)),
            ] {
                let w = quantize(&w, scheme)?;
                let error = error(
                    &mixed_matmul(&x, &w, None)?,
                    &mixed_reference(&x, &w, None)?,
                )?;
                assert!(error <= tolerance(DType::F32), "{error} {cols} {scheme:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn mixed_matmul_of_any_layout() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let w = quantize(
                &signal(&[6, 64], 5, DType::F32, device)?,
                Scheme::mlx(4, 32),
            )?;
            for x in layouts(dtype, device, 64)? {
                let got = mixed_matmul(&x, &w, None)?;
                let want = mixed_reference(&x, &w, None)?;
                assert!(
                    error(&got, &want)? <= tolerance(dtype),
                    "{dtype:?} {:?}",
                    x.layout()
                );
            }
        }
    }
    Ok(())
}

/// As far off as Σ |x·w| allows, element by element.
fn check_sums(x: &Tensor, w: &Quantized, got: &Tensor, most: f64, what: &str) -> Result<()> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let dense = wide(&w.dequantize(DType::F32)?)?.t()?;
    // A device adds up codes and offsets by themselves, as MLX does: even 0 is the difference of two that are as large as
    // any of the group.
    let parts = match got.device().is_cpu() {
        true => 0.0,
        false => 2.0 * dense.abs()?.max_all()?.to_scalar::<f64>()?,
    };
    let (x, got) = (wide(x)?, wide(got)?);
    let want = x.matmul(&dense)?.flatten_all()?.to_vec1::<f64>()?;
    let mass = x.abs()?.matmul(&(dense.abs()? + parts)?)?;
    let mass = mass.flatten_all()?.to_vec1::<f64>()?;
    let got = got.flatten_all()?.to_vec1::<f64>()?;
    for ((got, want), mass) in got.into_iter().zip(want).zip(mass) {
        assert!(
            (got - want).abs() <= most * mass,
            "{got} {want} {mass} {what}"
        );
    }
    Ok(())
}

/// Numbers that differ by many orders, for which integers are made of x: none may be lost where it counts. The outliers
/// meet weights of 0, so that nothing of them is in the sum.
#[test]
fn mixed_matmul_of_outliers() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            for (outlier, count) in [
                (300f32, 1),
                (4096., 1),
                (60000., 1),
                (4096., 5),
                (60000., 5),
            ] {
                for scheme in [
                    Scheme::ternary(ScaleScope::Row),
                    Scheme::int8(ScaleScope::Row),
                    Scheme::uint8(ScaleScope::Row),
                    Scheme::mlx(4, 64),
                    Scheme::mlx(2, 32),
                ] {
                    let cols = 512;
                    let x = |k: usize| match k % 256 {
                        k if (70..70 + count).contains(&k) => outlier,
                        3 => 0.0,
                        _ => 0.5 + (k % 5) as f32 / 8.0,
                    };
                    let x: Vec<f32> = (0..cols).map(x).collect();
                    let x = Tensor::from_vec(x, (1, cols), device)?.to_dtype(dtype)?;
                    let w = |i: usize| match i % cols % 256 {
                        k if (70..70 + count).contains(&k) => 0.0,
                        k => ((k * 7 + i / cols) % 3) as f32 / 2.0,
                    };
                    let w: Vec<f32> = (0..3 * cols).map(w).collect();
                    let w = quantize(&Tensor::from_vec(w, (3, cols), device)?, scheme)?;
                    let got = mixed_matmul(&x, &w, None)?;
                    let most = tolerance(dtype);
                    check_sums(
                        &x,
                        &w,
                        &got,
                        most,
                        &format!("{count} of {outlier} {dtype:?} {scheme:?}"),
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// Tiny, huge and all positive numbers, of every size that has been trouble elsewhere.
#[test]
fn mixed_matmul_of_sizes_and_orders() -> Result<()> {
    let sizes = [1, 15, 16, 17, 255, 256, 257, 2560, 6912];
    for device in devices() {
        let most = if device.is_cpu() { sizes.len() } else { 7 };
        for &cols in &sizes[..most] {
            for scheme in schemes(ScaleScope::Row) {
                let w = quantize(&signal(&[3, cols], 2, DType::F32, device)?, scheme)?;
                for order in [1f64, 1e-33, 1e30, 1e35] {
                    let x = signal(&[2, cols], 1, DType::F32, device)?;
                    for x in [x.clone(), x.abs()?] {
                        let x = (x * order)?;
                        let got = mixed_matmul(&x, &w, None)?;
                        // Where f32 has fewer digits itself.
                        let most = if order < 1e-30 { 1e-4 } else { 4e-7 };
                        check_sums(&x, &w, &got, most, &format!("{cols} {order} {scheme:?}"))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Parts of sums that overflow f32 before they cancel each other, in as many rows as are multiplied as bytes.
#[test]
fn rounded_activations_of_huge_orders() -> Result<()> {
    for device in devices() {
        for (scheme, order) in [
            (Scheme::ternary(ScaleScope::Row), 2e36f64),
            (Scheme::uint8(ScaleScope::Row), 1e35),
            (Scheme::mlx(4, 64), 1e35),
        ] {
            let x = (signal(&[6, 256], 1, DType::F32, device)?.abs()? * order)?;
            let w = quantize(&signal(&[5, 256], 4, DType::F32, device)?, scheme)?;
            let scope = match scheme.scope {
                ScaleScope::Group(group) => ScaleScope::Group(group),
                _ => ScaleScope::Row,
            };
            let rounded = candle_fused::ops::fake_quantize(&x, Scheme::int8(scope))?;
            let (got, want) = (
                mixed_matmul_with(&x, &w, None, Activations::Int8)?,
                mixed_matmul(&rounded, &w, None)?,
            );
            let most = order as f32 * 256.0 * 1e-5;
            for (got, want) in values(&got)?.into_iter().zip(values(&want)?) {
                assert!((got - want).abs() <= most, "{got} {want} {scheme:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn mixed_matmul_of_specials() -> Result<()> {
    for device in devices() {
        let w = signal(&[5, 256], 4, DType::F32, device)?;
        let w = quantize(&w, Scheme::mlx(4, 64))?;
        for special in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1f32; 512];
            x[256 + 9] = special;
            let x = Tensor::from_vec(x, (2, 256), device)?;
            let y = values(&mixed_matmul(&x, &w, None)?)?;
            assert!(y[..5].iter().all(|y| y.is_finite()));
            assert!(y[5..].iter().all(|y| !y.is_finite()), "{y:?}");
        }
    }
    Ok(())
}

/// Groups that are a part of a vector, a vector and several, up to more than a vector has lanes, with a last vector that has
/// room for more.
#[test]
fn mixed_matmul_of_every_group() -> Result<()> {
    for device in devices() {
        let (groups, counts): (&[usize], &[usize]) = match device.is_cpu() {
            true => (
                &[4, 8, 16, 24, 32, 64, 128, 256, 512, 1024],
                &[2, 3, 17, 33],
            ),
            false => (&[8, 24, 64], &[3]),
        };
        for &group in groups {
            for &count in counts {
                let cols = group * count;
                let w = signal(&[5, cols], 2, DType::F32, device)?;
                let x = signal(&[3, cols], 1, DType::F32, device)?;
                for scheme in schemes(ScaleScope::Group(group)) {
                    let w = quantize(&w, scheme)?;
                    for x in [x.clone(), x.narrow(0, 1, 1)?.abs()?] {
                        let got = mixed_matmul(&x, &w, None)?;
                        let what = format!("{count} groups of {group} {scheme:?}");
                        check_sums(&x, &w, &got, 4e-7, &what)?;
                    }
                }
            }
        }
    }
    Ok(())
}
