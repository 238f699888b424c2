//! Products with quantised weights.

mod bitlinear;
mod mixed_matmul;

use super::{signal, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::bitlinear;
use candle_fused::ops::mixed_matmul;
use candle_fused::ops::quantize;
use candle_fused::ops::{activation_inplace, Act, Activations, BitLinear, MixedMatmul};
use candle_fused::quant::{Levels, Packing, Quantized, ScaleScope, Scheme};
use candle_fused::reference::mixed_matmul::reference;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

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

/// `g·W`: the gradient of x `[rows, cols]`.
fn grad_x(w: &Quantized, g: &Tensor, cols: usize) -> Result<Tensor> {
    let x = Tensor::zeros((g.dim(0)?, cols), g.dtype(), g.device())?;
    let x = Var::from_tensor(&x)?.into_inner();
    let y = x.apply_op1(MixedMatmul {
        weight: w.clone(),
        activations: Activations::Exact,
    })?;
    let grads = (y * g)?.backward()?;
    Ok(grads.get(&x).expect("a gradient").clone())
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
                Scheme::ternary(ScaleScope::Tensor),
                Scheme::sign(ScaleScope::Row),
                Scheme::mlx(4, 32),
            ] {
                let w = quantize(&weight, scheme)?;
                let ys = match scheme.levels {
                    Levels::Affine { .. } => vec![mixed_matmul(&x, &w, Some(&bias))?],
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
            Scheme::ternary(ScaleScope::Row),
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
            Scheme::ternary(ScaleScope::Row),
        )?;
        let x = Tensor::zeros((0, 32), DType::F16, device)?;
        assert_eq!(bitlinear(&x, &w, None)?.dims(), [0, 4]);
        assert_eq!(mixed_matmul(&x, &w, None)?.dims(), [0, 4]);
    }
    // The CustomOps too, and sums over no columns.
    let device = &Device::Cpu;
    let w = Tensor::zeros((3, 0), DType::F32, device)?;
    let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
    let x = Tensor::zeros((2, 0), DType::F32, device)?;
    let bias = Tensor::new(&[1f32, 2., 3.], device)?;
    for y in [
        x.apply_op2_no_bwd(&bias, &BitLinear { weight: w.clone() })?,
        x.apply_op2_no_bwd(
            &bias,
            &MixedMatmul {
                weight: w.clone(),
                activations: Activations::Exact,
            },
        )?,
        bitlinear(&x, &w, Some(&bias))?,
        mixed_matmul(&x, &w, Some(&bias))?,
    ] {
        assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 3.]; 2]);
    }
    let y = x.apply_op1_no_bwd(&MixedMatmul {
        weight: w.clone(),
        activations: Activations::Exact,
    })?;
    assert_eq!(y.to_vec2::<f32>()?, [[0.; 3]; 2]);
    let g = Tensor::zeros((2, 3), DType::F32, device)?;
    assert_eq!(grad_x(&w, &g, 0)?.dims(), [2, 0]);
    let x = Tensor::zeros((0, 32), DType::F64, device)?;
    let w = quantize(
        &signal(&[4, 32], 2, DType::F32, device)?,
        Scheme::mlx(4, 32),
    )?;
    assert_eq!(mixed_matmul(&x, &w, None)?.dims(), [0, 4]);
    Ok(())
}

/// A backward from an empty result reaches every variable, with zeros.
#[test]
fn gradients_of_nothing() -> Result<()> {
    // Candle can start none from an empty tensor on Metal.
    let device = &Device::Cpu;
    let var = |t: Tensor| Ok::<_, candle_core::Error>(Var::from_tensor(&t)?.into_inner());
    let x = var(Tensor::zeros((2, 0, 32), DType::F32, device)?)?;
    let bias = var(signal(&[4], 1, DType::F32, device)?)?;
    let w = signal(&[4, 32], 2, DType::F32, device)?;
    let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
    let scales = var(w.scales().clone())?;
    let (codes, shape) = (w.codes().clone(), w.shape().clone());
    let trained = Quantized::new(codes, scales.clone(), None, shape, *w.scheme())?;
    for product in [bitlinear, mixed_matmul] {
        for (w, vars) in [(&w, [&x, &bias, &bias]), (&trained, [&x, &bias, &scales])] {
            let grads = product(&x, w, Some(&bias))?.backward()?;
            for var in vars {
                let grad = grads.get(var).expect("a gradient");
                assert_eq!(grad.dims(), var.dims());
                assert!(values(grad)?.iter().all(|&g| g == 0.));
            }
        }
    }
    Ok(())
}

/// x shares its memory with the weight's scales while another thread waits to write there: an op that locked the storage for
/// reading twice would wait for that thread, and that thread for it.
#[test]
fn a_storage_is_read_twice_while_another_thread_writes() -> Result<()> {
    let device = &Device::Cpu;
    let w = signal(&[32, 32], 2, DType::F32, device)?;
    let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
    let x = w.scales().flatten_all()?;
    let done = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        // Scales are positive, so that this changes nothing.
        let writer = scope.spawn(|| -> Result<()> {
            while !done.load(relaxed) {
                activation_inplace(&x, Act::Relu)?;
            }
            Ok(())
        });
        let products = (0..2000).try_for_each(|_| -> Result<()> {
            mixed_matmul(&x, &w, None)?;
            bitlinear(&x, &w, None)?;
            Ok(())
        });
        done.store(true, relaxed);
        writer.join().expect("no panic")?;
        products
    })
}

#[test]
fn refusals() -> Result<()> {
    let device = &Device::Cpu;
    let weight = signal(&[4, 32], 2, DType::F32, device)?;
    let x = signal(&[3, 32], 1, DType::F32, device)?;
    let ternary = quantize(&weight, Scheme::ternary(ScaleScope::Row))?;
    let short = x.narrow(1, 0, 31)?;
    let bias = Tensor::zeros(5, DType::F32, device)?;
    let half = Tensor::zeros(4, DType::F16, device)?;
    let base3 = quantize(
        &weight,
        Scheme::ternary(ScaleScope::Row).with_packing(Packing::Base3),
    )?;
    let mlx = quantize(&weight, Scheme::mlx(4, 32))?;
    let column = quantize(&weight, Scheme::int8(ScaleScope::Column))?;
    let integers = Tensor::zeros((1, 32), DType::U8, device)?;
    for (result, wanted) in [
        (
            bitlinear(&short, &ternary, None),
            "bitlinear: got x of shape [3, 31] and a weight of shape [4, 32]",
        ),
        (
            mixed_matmul(&short, &mlx, None),
            "mixed_matmul: got x of shape [3, 31] and a weight of shape [4, 32]",
        ),
        (
            bitlinear(&x, &ternary, Some(&bias)),
            "bitlinear: got bias of shape [5], expected [4]",
        ),
        (
            bitlinear(&x, &ternary, Some(&half)),
            "bitlinear: got bias of dtype F16",
        ),
        (bitlinear(&x, &base3, None), "Base3"),
        (bitlinear(&x, &mlx, None), "Affine"),
        (mixed_matmul(&x, &column, None), "Column"),
        (
            bitlinear(&integers, &ternary, None),
            "bitlinear: got dtype U8",
        ),
        (
            mixed_matmul(&integers, &mlx, None),
            "mixed_matmul: got dtype U8",
        ),
        (
            short.apply_op1_no_bwd(&BitLinear {
                weight: ternary.clone(),
            }),
            "bitlinear: got x of shape",
        ),
        (
            x.apply_op1_no_bwd(&BitLinear {
                weight: mlx.clone(),
            }),
            "bitlinear: got a weight of Affine",
        ),
        (
            short.apply_op1_no_bwd(&MixedMatmul {
                weight: mlx.clone(),
                activations: Activations::Exact,
            }),
            "mixed_matmul: got x of shape",
        ),
        (
            Tensor::new(1f32, device)?.apply_op1_no_bwd(&MixedMatmul {
                weight: mlx.clone(),
                activations: Activations::Exact,
            }),
            "mixed_matmul: got x of shape []",
        ),
        (
            integers.apply_op1_no_bwd(&MixedMatmul {
                weight: mlx.clone(),
                activations: Activations::Exact,
            }),
            "mixed_matmul: got dtype U8",
        ),
        (
            x.apply_op2_no_bwd(
                &bias,
                &BitLinear {
                    weight: ternary.clone(),
                },
            ),
            "bitlinear: got bias of shape [5]",
        ),
        (
            x.apply_op2_no_bwd(
                &half,
                &MixedMatmul {
                    weight: ternary.clone(),
                    activations: Activations::Exact,
                },
            ),
            "mixed_matmul: got bias of dtype F16",
        ),
        (
            x.apply_op1_no_bwd(&MixedMatmul {
                weight: column.clone(),
                activations: Activations::Exact,
            }),
            "mixed_matmul: got a weight with scales per Column",
        ),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error} should say {wanted}");
    }
    // A packing that has no product of its own is decoded.
    let got = mixed_matmul(&x, &base3, None)?;
    assert!(error(&got, &reference(&x, &ternary, None)?)? < 1e-6);
    Ok(())
}
