use super::{assert_near, cpu, slopes_of};
use crate::cases::Fill;
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::ops::*;
use candle_fused::reference::row_norm::reference_layer;

#[test]
fn small_rows() -> Result<()> {
    let x = cpu(&[[3f32, 4., 0., 0.]])?;
    assert_near(&rms_norm(&x, None, 1e-12)?, &[1.2, 1.6, 0., 0.], 1e-6)?;
    assert_near(&l2_norm(&x, 1e-12)?, &[0.6, 0.8, 0., 0.], 1e-7)?;
    let x = cpu(&[[1f32, 3.], [-5., 5.]])?;
    let (weight, bias) = (cpu(&[2f32, 3.])?, cpu(&[0.5f32, -0.5])?);
    let y = layer_norm(&x, Some(&weight), Some(&bias), 1e-12)?;
    assert_near(&y, &[-1.5, 2.5, -1.5, 2.5], 1e-6)
}

#[test]
fn constant_rows() -> Result<()> {
    for value in [100f64, 0.01] {
        let x = Tensor::full(value as f32, (4, 1024), &Device::Cpu)?;
        let want = value / (value * value + 1e-5).sqrt();
        let y = rms_norm(&x, None, 1e-5)?;
        assert_near(&y, &vec![want; 4096], 2e-6)?;
        // A constant has no variance, however large it is.
        assert_near(&layer_norm(&x, None, None, 1e-5)?, &vec![0.; 4096], 1e-4)?;
    }
    Ok(())
}

/// E[x²] − mean² would cancel here: the mean is a thousand times the deviation.
#[test]
fn a_large_mean_does_not_cancel() -> Result<()> {
    let x: Vec<f32> = (0..1024).map(|i| 1000. + (i % 2) as f32).collect();
    let x = Tensor::from_vec(x, (1, 1024), &Device::Cpu)?;
    let want: Vec<f64> = (0..1024).map(|i| (i % 2 * 2) as f64 - 1.).collect();
    assert_near(&layer_norm(&x, None, None, 1e-9)?, &want, 1e-5)?;
    let y = group_norm(&x.reshape((1, 2, 512))?, 1, None, None, 1e-9)?;
    assert_near(&y, &want, 1e-5)
}

#[test]
fn rows_come_out_normal() -> Result<()> {
    let x = Fill::Signal.tensor(&[4, 64, 1024], 1, DType::F32, &Device::Cpu)?;
    let x = (x * 10.)?;
    let y = layer_norm(&x, None, None, 1e-5)?;
    let means = y.mean(D::Minus1)?;
    assert_near(&means, &[0.; 256], 1e-5)?;
    assert_near(&y.sqr()?.mean(D::Minus1)?, &[1.; 256], 1e-4)?;
    let y = rms_norm(&x, None, 1e-5)?;
    assert_near(&y.sqr()?.mean(D::Minus1)?, &[1.; 256], 1e-4)?;
    let y = l2_norm(&x, 1e-5)?;
    assert_near(&y.sqr()?.sum(D::Minus1)?, &[1.; 256], 1e-4)
}

#[test]
fn zero_rows_stay_finite() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::zeros((2, 33), dtype, &Device::Cpu)?;
        let (sum, normed) = add_rms_norm(&x, &x, None, 1e-5)?;
        for y in [
            rms_norm(&x, None, 1e-5)?,
            layer_norm(&x, None, None, 1e-5)?,
            l2_norm(&x, 1e-5)?,
            group_norm(&x.reshape((1, 6, 11))?, 3, None, None, 1e-5)?,
            sum,
            normed,
        ] {
            assert_near(&y, &[0.; 66], 0.)?;
        }
    }
    Ok(())
}

/// Squares of f16 overflow f16 from 256 on; they must be taken in f32.
#[test]
fn large_halves_do_not_overflow() -> Result<()> {
    let x = Tensor::full(30_000f32, (1, 512), &Device::Cpu)?.to_dtype(DType::F16)?;
    assert_near(&rms_norm(&x, None, 1e-5)?, &[1.; 512], 1e-3)?;
    assert_near(&l2_norm(&x, 1e-5)?, &[1. / 512f64.sqrt(); 512], 1e-4)
}

/// A norm below eps is taken for eps, which no element moves.
#[test]
fn l2_norm_below_eps() -> Result<()> {
    let row = [3e-3f32, -4e-3, 0., 1e-3, 2e-3];
    for device in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = Tensor::new(&[row], device)?.to_dtype(dtype)?;
            let scaled = |t: &Tensor| l2_norm(t, 0.125);
            let want: Vec<f64> = (x.to_device(&Device::Cpu)?.to_dtype(DType::F64)? * 8.)?
                .flatten_all()?
                .to_vec1()?;
            assert_near(&scaled(&x)?, &want, 1e-9)?;
            // d(x / eps) / dx, with nothing of the projection that a norm above eps has.
            let weights = Tensor::new(&[[1f32, -2., 3., 4., -5.]], device)?.to_dtype(dtype)?;
            let slopes = slopes_of(|t| scaled(t)? * &weights, &x)?;
            assert_near(&slopes, &[8., -16., 24., 32., -40.], 0.)?;
        }
    }
    Ok(())
}

/// Outputs and gradients of rows whose mean is hundreds or thousands of times their deviation, against f64.
#[test]
fn far_from_zero() -> Result<()> {
    const COLS: usize = 1025;
    for device in devices() {
        for offset in [1000., 30_000.] {
            let signal = |seed| Fill::Signal.tensor(&[3, COLS], seed, DType::F32, &Device::Cpu);
            let x = (signal(1)? + offset)?;
            let (weight, g) = (signal(2)?.get(0)?, signal(3)?);
            let (weight, g) = (weight.contiguous()?, g);
            let results =
                |norm: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>, device: &Device, dtype| {
                    let var = |t: &Tensor| Var::from_tensor(&t.to_device(device)?.to_dtype(dtype)?);
                    let (x, weight) = (var(&x)?, var(&weight)?);
                    let y = norm(&x, &weight)?;
                    let grads = (&y * g.to_device(device)?.to_dtype(dtype)?)?.backward()?;
                    let of = |t: &Var| grads.get(t).expect("a gradient").clone();
                    Ok::<_, candle_core::Error>([y, of(&x), of(&weight)])
                };
            let exact = |x: &Tensor, w: &Tensor| reference_layer(x, [Some(w), None], 1e-5);
            let want = results(&exact, &Device::Cpu, DType::F64)?;
            type Norm = fn(&Tensor, &Tensor) -> Result<Tensor>;
            let norms: [(&str, Norm); 3] = [
                ("layer_norm", |x, w| layer_norm(x, Some(w), None, 1e-5)),
                ("add_layer_norm", |x, w| {
                    let zero = x.zeros_like()?;
                    Ok(add_layer_norm(x, &zero, Some(w), None, 1e-5)?.1)
                }),
                // One group of channels, each of one element.
                ("group_norm", |x, w| {
                    group_norm(&x.unsqueeze(2)?, 1, Some(w), None, 1e-5)?.squeeze(2)
                }),
            ];
            for (name, norm) in norms {
                let got = results(&norm, device, DType::F32)?;
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
                    let largest = |t: &Tensor| t.abs()?.max_all()?.to_scalar::<f64>();
                    let error = largest(&(got - want)?)? / largest(want)?;
                    assert!(error < 1e-5, "{name} at {offset}, result {i}: {error:e}");
                }
            }
        }
    }
    Ok(())
}
