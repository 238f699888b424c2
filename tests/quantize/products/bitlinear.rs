//! Integers are summed up exactly.

use super::super::{signal, values};
use super::{error, layouts, tolerance, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::bitlinear;
use candle_fused::ops::mixed_matmul;
use candle_fused::ops::quantize;
use candle_fused::quant::{Levels, Quantized, ScaleScope, Scheme};
use candle_fused::reference::bitlinear::reference;

const GRIDS: [Levels; 2] = [Levels::Ternary, Levels::Sign { centred: true }];

/// The codes as integers, `[rows][cols]`.
fn integers(q: &Quantized) -> Result<Vec<Vec<i64>>> {
    let codes = q.codes().to_device(&Device::Cpu)?.to_vec2::<u8>()?;
    let (cols, bits) = (q.shape().dims()[1], q.scheme().bits() as usize);
    let code =
        |row: &[u8], k: usize| (row[k * bits / 8] >> (k * bits % 8)) & (((1u16 << bits) - 1) as u8);
    let number = |code: u8| match q.scheme().levels {
        Levels::Ternary => i64::from(code) - 1,
        Levels::Sign { .. } => 2 * i64::from(code) - 1,
        _ => i64::from(code as i8),
    };
    let of_row = |row: &Vec<u8>| (0..cols).map(|k| number(code(row, k))).collect();
    Ok(codes.iter().map(of_row).collect())
}

/// What [`bitlinear`] is but for nothing: integers are summed up without an error, and the sum is scaled.
fn exact(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Vec<f32>> {
    let q = quantize(x, Scheme::int8(ScaleScope::Row))?;
    let (xs, ws) = (integers(&q)?, integers(w)?);
    let (x_scales, w_scales) = (values(q.scales())?, values(w.scales())?);
    let bias = bias.map_or(Ok(vec![0.0; ws.len()]), values)?;
    let mut y = Vec::new();
    for (x, x_scale) in xs.iter().zip(x_scales) {
        for (j, w) in ws.iter().enumerate() {
            let sum: i64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            y.push(sum as f32 * (x_scale * w_scales[j % w_scales.len()]) + bias[j]);
        }
    }
    let y = Tensor::from_vec(y, (xs.len(), ws.len()), &Device::Cpu)?;
    values(&y.to_dtype(x.dtype())?)
}

#[test]
fn bitlinear_is_exact() -> Result<()> {
    let sizes = [1, 15, 16, 17, 255, 256, 257, 2560, 6912];
    for device in devices() {
        let most = if device.is_cpu() { sizes.len() } else { 7 };
        for &cols in &sizes[..most] {
            for (rows, outputs) in [(1, 33), (3, 5), (7, 18), (70, 19)] {
                if rows * outputs * cols > 40_000 && !(device.is_cpu() && cols < 300 || rows == 1) {
                    continue;
                }
                let x = signal(&[rows, cols], 1, DType::F32, device)?;
                let w = signal(&[outputs, cols], 2, DType::F32, device)?;
                for grid in GRIDS {
                    for per in [ScaleScope::Tensor, ScaleScope::Row] {
                        let w = quantize(&w, Scheme::new(grid, per))?;
                        assert_eq!(
                            values(&bitlinear(&x, &w, None)?)?,
                            exact(&x, &w, None)?,
                            "{rows}x{cols} {outputs} {grid:?} {per:?}"
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// One row and a few, whose integers are held as a whole or in parts, and many; outputs of one threadgroup and of several.
#[test]
fn bitlinear_is_exact_in_every_dtype() -> Result<()> {
    for device in devices() {
        for (rows, outputs, cols) in [
            (1, 20, 70),
            (1, 300, 40),
            (8, 9, 70),
            (1, 3, 8230),
            (3, 3, 2100),
            (10, 34, 70),
        ] {
            for dtype in DTYPES {
                let x = signal(&[rows, cols], 1, dtype, device)?;
                let w = signal(&[outputs, cols], 2, DType::F32, device)?;
                let bias = signal(&[outputs], 3, dtype, device)?;
                for grid in GRIDS {
                    let w = quantize(&w, Scheme::new(grid, ScaleScope::Row))?;
                    assert_eq!(
                        values(&bitlinear(&x, &w, Some(&bias))?)?,
                        exact(&x, &w, Some(&bias))?,
                        "{rows}x{cols} {outputs} {grid:?} {dtype:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Beyond what floats count exactly.
#[test]
fn bitlinear_of_large_sums() -> Result<()> {
    let cols = 132_131;
    for device in devices() {
        let w = Tensor::ones((2, cols), DType::F32, device)?;
        let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
        for rows in [1, 9] {
            let x = Tensor::full(127f32, (rows, cols), device)?;
            let y = values(&bitlinear(&x, &w, None)?)?;
            assert!(y.iter().all(|&y| y == (127 * cols) as f32), "{y:?}");
            // What is lost by rounding to floats on the way is more than that.
            let mut odd = vec![127f32; rows * cols];
            odd[0] = 126.0;
            let x = Tensor::from_vec(odd, (rows, cols), device)?;
            let y = values(&bitlinear(&x, &w, None)?)?;
            assert_eq!(y[0], (127 * cols - 1) as f32);
        }
    }
    Ok(())
}

/// Rows whose numbers are all below the scheme's eps are rounded in steps of eps / 127, one row and a few (which a GEMV
/// rounds itself on Metal) and many.
#[test]
fn rows_below_eps_have_the_scale_of_eps() -> Result<()> {
    let (cols, outputs) = (40, 3);
    let step = Scheme::int8(ScaleScope::Row).eps / 127.0;
    for device in devices() {
        let w = Tensor::ones((outputs, cols), DType::F32, device)?;
        let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
        for rows in [1, 3, 10] {
            // 51 steps and a bit; all zeros; and one that eps does not touch.
            let x = |i: usize| [51.2 * step, 0.0, 2.0][i / cols % 3];
            let x: Vec<f32> = (0..rows * cols).map(x).collect();
            let x = Tensor::from_vec(x, (rows, cols), device)?;
            let y = bitlinear(&x, &w, None)?.to_vec2::<f32>()?;
            for (row, y) in y.into_iter().enumerate() {
                let want = cols as f32 * [51.0 * step, 0.0, 2.0][row % 3];
                for y in y {
                    assert!((y - want).abs() <= 1e-6 * want, "row {row}: {y} {want}");
                }
            }
        }
    }
    Ok(())
}

/// One number spoils its row alone.
#[test]
fn bitlinear_of_specials() -> Result<()> {
    for device in devices() {
        for (rows, cols) in [(2, 40), (2, 2100), (10, 40)] {
            let w = signal(&[5, cols], 2, DType::F32, device)?;
            let w = quantize(&w, Scheme::ternary(ScaleScope::Tensor))?;
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = values(&signal(&[rows, cols], 1, DType::F32, &Device::Cpu)?)?;
                x[cols + 33] = special;
                let x = Tensor::from_vec(x, (rows, cols), device)?;
                let y = bitlinear(&x, &w, None)?.to_vec2::<f32>()?;
                for (row, y) in y.iter().enumerate() {
                    let spoilt = row == 1;
                    assert!(y.iter().all(|y| y.is_nan() == spoilt), "{row}: {y:?}");
                }
            }
        }
    }
    Ok(())
}

/// Of an odd number of bytes before it, too.
#[test]
fn weights_that_begin_within_a_buffer() -> Result<()> {
    for device in devices() {
        let x = signal(&[1, 24], 1, DType::F32, device)?;
        for scheme in [Scheme::sign(ScaleScope::Row), Scheme::mlx(4, 8)] {
            let whole = quantize(&signal(&[7, 24], 2, DType::F32, device)?, scheme)?;
            let part = Quantized::new(
                whole.codes().narrow(0, 1, 5)?,
                whole.scales().narrow(0, 1, 5)?,
                whole.offsets().map(|t| t.narrow(0, 1, 5)).transpose()?,
                (5, 24),
                scheme,
            )?;
            let products = |w| -> Result<Vec<Tensor>> {
                let mut ys = vec![mixed_matmul(&x, w, None)?];
                if scheme.bits() == 1 {
                    ys.push(bitlinear(&x, w, None)?);
                }
                Ok(ys)
            };
            for (got, want) in products(&part)?.into_iter().zip(products(&whole)?) {
                assert_eq!(values(&got)?, values(&want.narrow(1, 1, 5)?)?);
            }
        }
    }
    Ok(())
}

/// The founding documents' example, whose rows differ by a constant: 0 stands for −1 there.
#[test]
fn bitlinear_of_the_founding_documents() -> Result<()> {
    for device in devices() {
        let w = Tensor::new(
            &[[1f32, -1., 1., -1.], [-1., 1., -1., 1.], [1., 1., -1., -1.]],
            device,
        )?;
        let w = quantize(
            &w,
            Scheme::new(Levels::Sign { centred: false }, ScaleScope::Tensor),
        )?;
        assert_eq!(values(w.scales())?, [1.]);
        let x = Tensor::new(&[[1f32, 2., 3., 4.], [0.5, 1.5, 2.5, 3.5]], device)?;
        let bias = Tensor::new(&[0.1f32, 0.2, 0.3], device)?;
        let y = bitlinear(&x, &w, Some(&bias))?.to_vec2::<f32>()?;
        for y in y {
            for (y, want) in y.into_iter().zip([-1.9, 2.2, -3.7]) {
                // Of 127 steps of the largest, half a one for each of four.
                assert!((y - want).abs() < 4. * 0.5 * 4. / 127., "{y} {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn bitlinear_of_any_layout_and_dtype() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let w = signal(&[6, 20], 5, DType::F32, device)?;
            let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
            let bias = signal(&[6], 6, dtype, device)?;
            for x in layouts(dtype, device, 20)? {
                for bias in [None, Some(&bias)] {
                    let got = bitlinear(&x, &w, bias)?;
                    assert_eq!(got.dtype(), dtype);
                    let want = reference(
                        &x.to_device(&Device::Cpu)?,
                        &w.to_device(&Device::Cpu)?,
                        bias.map(|b| b.to_device(&Device::Cpu))
                            .transpose()?
                            .as_ref(),
                    )?;
                    assert!(
                        error(&got, &want)? <= tolerance(dtype),
                        "{dtype:?} {:?}",
                        x.layout()
                    );
                }
            }
        }
    }
    Ok(())
}
