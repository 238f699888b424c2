//! Products with quantised weights.

use super::{schemes, signal, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::bitlinear::{self, bitlinear, BitLinear};
use candle_fused::ops::mixed_matmul::{self, mixed_matmul, MixedMatmul, MixedMatmulT};
use candle_fused::ops::quantize::{quantize, Grid, Packing, Per, Quantized, Scheme};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const GRIDS: [Grid; 2] = [Grid::Ternary, Grid::Sign { centred: true }];

/// One rounding to the dtype, and a few in f32 before: signed codes of 8 bits are summed up as positive ones, and what that
/// adds is subtracted again.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 4e-6,
        DType::F16 => 6e-4,
        _ => 5e-3,
    }
}

fn wide(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::Cpu)?.to_dtype(DType::F64)
}

/// ‖got − want‖ / ‖want‖
fn error(got: &Tensor, want: &Tensor) -> Result<f64> {
    let (got, want) = (wide(got)?, wide(want)?);
    assert_eq!(got.dims(), want.dims());
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>();
    Ok((norm(&(&got - &want)?)? / norm(&want)?.max(1e-30)).sqrt())
}

/// The codes as integers, `[rows][cols]`.
fn integers(q: &Quantized) -> Result<Vec<Vec<i64>>> {
    let codes = q.codes().to_device(&Device::Cpu)?.to_vec2::<u8>()?;
    let (cols, bits) = (q.shape().dims()[1], q.scheme().bits() as usize);
    let code =
        |row: &[u8], k: usize| (row[k * bits / 8] >> (k * bits % 8)) & (((1u16 << bits) - 1) as u8);
    let number = |code: u8| match q.scheme().grid {
        Grid::Ternary => i64::from(code) - 1,
        Grid::Sign { .. } => 2 * i64::from(code) - 1,
        _ => i64::from(code as i8),
    };
    let of_row = |row: &Vec<u8>| (0..cols).map(|k| number(code(row, k))).collect();
    Ok(codes.iter().map(of_row).collect())
}

/// What [`bitlinear`] is but for nothing: integers are summed up without an error, and the sum is scaled.
fn exact(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Vec<f32>> {
    let q = quantize(x, Scheme::int8(Per::Row))?;
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
                    for per in [Per::Tensor, Per::Row] {
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
                    let w = quantize(&w, Scheme::new(grid, Per::Row))?;
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
        let w = quantize(&w, Scheme::ternary(Per::Row))?;
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

/// One number spoils its row alone.
#[test]
fn bitlinear_of_specials() -> Result<()> {
    for device in devices() {
        for (rows, cols) in [(2, 40), (2, 2100), (10, 40)] {
            let w = signal(&[5, cols], 2, DType::F32, device)?;
            let w = quantize(&w, Scheme::ternary(Per::Tensor))?;
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
        for scheme in [Scheme::sign(Per::Row), Scheme::mlx(4, 8)] {
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
        let w = quantize(&w, Scheme::new(Grid::Sign { centred: false }, Per::Tensor))?;
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

fn layouts(dtype: DType, device: &Device, cols: usize) -> Result<Vec<Tensor>> {
    let x = signal(&[3, 4, cols + 3], 4, dtype, device)?;
    let dense = x.narrow(2, 2, cols)?;
    Ok(vec![
        dense.contiguous()?,
        dense.clone(),
        dense.transpose(0, 1)?,
        x.transpose(0, 2)?
            .contiguous()?
            .transpose(0, 2)?
            .narrow(2, 1, cols)?,
        dense.narrow(1, 1, 1)?.broadcast_as((3, 4, cols))?,
        dense.narrow(0, 0, 1)?.squeeze(0)?,
        dense.get(0)?.get(1)?,
    ])
}

#[test]
fn bitlinear_of_any_layout_and_dtype() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let w = signal(&[6, 20], 5, DType::F32, device)?;
            let w = quantize(&w, Scheme::ternary(Per::Row))?;
            let bias = signal(&[6], 6, dtype, device)?;
            for x in layouts(dtype, device, 20)? {
                for bias in [None, Some(&bias)] {
                    let got = bitlinear(&x, &w, bias)?;
                    assert_eq!(got.dtype(), dtype);
                    let want = bitlinear::reference(
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
                Per::Tensor,
                Per::Row,
                Per::Group(32),
                Per::Group(20),
                Per::Group(cols),
            ] {
                if let Per::Group(group) = per {
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
                        let got = g.apply_op1_no_bwd(&MixedMatmulT(w.clone()))?;
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
                Scheme::ternary(Per::Group(group)).with_packing(Packing::Base3),
                Scheme::ternary(Per::Group(group)),
                Scheme::sign(Per::Row),
                Scheme::mlx(4, group),
                Scheme::uint8(Per::Group(group)),
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

/// Numbers that differ by many orders, for which integers are made of x: none may be lost where it counts. The outlier
/// meets a weight of 0, so that nothing of it is in the sum.
#[test]
fn mixed_matmul_of_outliers() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            for outlier in [300f32, 4096., 60000.] {
                for scheme in [
                    Scheme::ternary(Per::Row),
                    Scheme::int8(Per::Row),
                    Scheme::uint8(Per::Row),
                    Scheme::mlx(4, 64),
                    Scheme::mlx(2, 32),
                ] {
                    let cols = 512;
                    let x = |k: usize| match k % 256 {
                        70 => outlier,
                        3 => 0.0,
                        _ => 0.5 + (k % 5) as f32 / 8.0,
                    };
                    let x: Vec<f32> = (0..cols).map(x).collect();
                    let x = Tensor::from_vec(x, (1, cols), device)?.to_dtype(dtype)?;
                    let w = |i: usize| match i % cols % 256 {
                        70 => 0.0,
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
                        &format!("{outlier} {dtype:?} {scheme:?}"),
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
            for scheme in schemes(Per::Row) {
                let w = quantize(&signal(&[3, cols], 2, DType::F32, device)?, scheme)?;
                for order in [1f64, 1e-33, 1e30] {
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

#[test]
fn gradients() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let var = |dims: &[usize], seed| -> Result<Tensor> {
                Ok(Var::from_tensor(&signal(dims, seed, dtype, device)?)?.into_inner())
            };
            let (x, bias) = (var(&[2, 5, 64], 1)?, var(&[9], 2)?);
            let g = signal(&[2, 5, 9], 3, dtype, device)?;
            let weight = signal(&[9, 64], 4, DType::F32, device)?;
            for scheme in [
                Scheme::ternary(Per::Tensor),
                Scheme::sign(Per::Row),
                Scheme::mlx(4, 32),
            ] {
                let w = quantize(&weight, scheme)?;
                let ys = match scheme.grid {
                    Grid::Affine { .. } => vec![mixed_matmul(&x, &w, Some(&bias))?],
                    _ => vec![
                        mixed_matmul(&x, &w, Some(&bias))?,
                        bitlinear(&x, &w, Some(&bias))?,
                    ],
                };
                let dense = w.dequantize(DType::F32)?.t()?;
                let wide = g.to_dtype(DType::F32)?.reshape(((), 9))?;
                let dx = wide.matmul(&dense.t()?)?.reshape(x.shape())?;
                let dbias = wide.sum(0)?;
                for y in ys {
                    let grads = (y * &g)?.backward()?;
                    for (t, want) in [(&x, &dx), (&bias, &dbias)] {
                        let got = grads.get(t).expect("a gradient");
                        assert_eq!(got.dtype(), dtype);
                        assert!(
                            error(got, want)? <= tolerance(dtype),
                            "{dtype:?} {scheme:?}"
                        );
                    }
                }
                // What isn't tracked gets none.
                let y = mixed_matmul(&x.detach(), &w, Some(&bias))?;
                let grads = y.backward()?;
                assert!(grads.get(&x).is_none() && grads.get(&bias).is_some());
            }
        }
    }
    Ok(())
}

/// Trained scales get theirs, by the composed form.
#[test]
fn gradients_of_scales() -> Result<()> {
    for device in devices() {
        let x = signal(&[3, 32], 1, DType::F32, device)?;
        let w = quantize(
            &signal(&[4, 32], 2, DType::F32, device)?,
            Scheme::ternary(Per::Row),
        )?;
        let scales = Var::from_tensor(w.scales())?.into_inner();
        let w = Quantized::new(
            w.codes().clone(),
            scales.clone(),
            None,
            w.shape().clone(),
            *w.scheme(),
        )?;
        for y in [bitlinear(&x, &w, None)?, mixed_matmul(&x, &w, None)?] {
            // y is linear in them.
            let grads = y.backward()?;
            let got = values(grads.get(&scales).expect("a gradient"))?;
            let want = values(&(y.sum(0)? / scales.detach().flatten_all()?)?)?;
            for (got, want) in got.into_iter().zip(want) {
                assert!(
                    (got - want).abs() <= 1e-4 * want.abs().max(1.),
                    "{got} {want}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn of_nothing() -> Result<()> {
    for device in devices() {
        let w = quantize(
            &signal(&[4, 32], 2, DType::F32, device)?,
            Scheme::ternary(Per::Row),
        )?;
        let x = Tensor::zeros((0, 32), DType::F16, device)?;
        assert_eq!(bitlinear(&x, &w, None)?.dims(), [0, 4]);
        assert_eq!(mixed_matmul(&x, &w, None)?.dims(), [0, 4]);
    }
    // Whoever applies the ops themselves, and sums of nothing.
    let device = &Device::Cpu;
    let w = Tensor::zeros((3, 0), DType::F32, device)?;
    let w = quantize(&w, Scheme::ternary(Per::Row))?;
    let x = Tensor::zeros((2, 0), DType::F32, device)?;
    let bias = Tensor::new(&[1f32, 2., 3.], device)?;
    for y in [
        x.apply_op2_no_bwd(&bias, &BitLinear(w.clone()))?,
        x.apply_op2_no_bwd(&bias, &MixedMatmul(w.clone()))?,
        bitlinear(&x, &w, Some(&bias))?,
        mixed_matmul(&x, &w, Some(&bias))?,
    ] {
        assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 3.]; 2]);
    }
    let y = x.apply_op1_no_bwd(&MixedMatmul(w.clone()))?;
    assert_eq!(y.to_vec2::<f32>()?, [[0.; 3]; 2]);
    let g = Tensor::zeros((2, 3), DType::F32, device)?;
    assert_eq!(g.apply_op1_no_bwd(&MixedMatmulT(w.clone()))?.dims(), [2, 0]);
    let x = Tensor::zeros((0, 32), DType::F64, device)?;
    let w = quantize(
        &signal(&[4, 32], 2, DType::F32, device)?,
        Scheme::mlx(4, 32),
    )?;
    assert_eq!(mixed_matmul(&x, &w, None)?.dims(), [0, 4]);
    Ok(())
}

#[test]
fn refusals() -> Result<()> {
    let device = &Device::Cpu;
    let weight = signal(&[4, 32], 2, DType::F32, device)?;
    let x = signal(&[3, 32], 1, DType::F32, device)?;
    let ternary = quantize(&weight, Scheme::ternary(Per::Row))?;
    let short = x.narrow(1, 0, 31)?;
    let bias = Tensor::zeros(5, DType::F32, device)?;
    let half = Tensor::zeros(4, DType::F16, device)?;
    let base3 = quantize(
        &weight,
        Scheme::ternary(Per::Row).with_packing(Packing::Base3),
    )?;
    let mlx = quantize(&weight, Scheme::mlx(4, 32))?;
    let column = quantize(&weight, Scheme::int8(Per::Column))?;
    let integers = Tensor::zeros((1, 32), DType::U8, device)?;
    for (result, wanted) in [
        (
            bitlinear(&short, &ternary, None),
            "bitlinear: weight has shape [4, 32], x's last dim is Some(31)",
        ),
        (
            mixed_matmul(&short, &mlx, None),
            "mixed_matmul: weight has shape [4, 32]",
        ),
        (
            bitlinear(&x, &ternary, Some(&bias)),
            "bitlinear: bias has shape [5], [4] accepted",
        ),
        (
            bitlinear(&x, &ternary, Some(&half)),
            "bitlinear: bias has dtype F16",
        ),
        (bitlinear(&x, &base3, None), "Base3"),
        (bitlinear(&x, &mlx, None), "Affine"),
        (mixed_matmul(&x, &column, None), "Column"),
        (bitlinear(&integers, &ternary, None), "bitlinear: dtype U8"),
        (
            mixed_matmul(&integers, &mlx, None),
            "mixed_matmul: dtype U8",
        ),
        (
            short.apply_op1_no_bwd(&BitLinear(ternary.clone())),
            "bitlinear: weight",
        ),
        (
            x.apply_op1_no_bwd(&BitLinear(mlx.clone())),
            "bitlinear: a weight",
        ),
        (
            short.apply_op1_no_bwd(&MixedMatmul(mlx.clone())),
            "mixed_matmul: weight",
        ),
        (x.apply_op1_no_bwd(&MixedMatmulT(mlx.clone())), "[.., out]"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error} should say {wanted}");
    }
    // A packing that has no product of its own is decoded.
    let got = mixed_matmul(&x, &base3, None)?;
    assert!(error(&got, &mixed_matmul::reference(&x, &ternary, None)?)? < 1e-6);
    Ok(())
}
