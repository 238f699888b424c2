use super::{assert_near, cpu, slopes, slopes_of};
use crate::devices::devices;
use candle_core::{DType, Module, Result, Tensor};
use candle_fused::ops::*;

#[test]
fn relu_and_its_kin() -> Result<()> {
    let x = cpu(&[-2f32, -1., 0., 1., 2.])?;
    assert_near(&relu(&x)?, &[0., 0., 0., 1., 2.], 0.)?;
    assert_near(&relu2(&x)?, &[0., 0., 0., 1., 4.], 0.)?;
    assert_near(&leaky_relu(&x, 0.01)?, &[-0.02, -0.01, 0., 1., 2.], 1e-9)?;
    assert_near(&leaky_relu(&x, 0.2)?, &[-0.4, -0.2, 0., 1., 2.], 1e-7)
}

#[test]
fn leaky_relu_of_f64_has_a_slope_of_f64() -> Result<()> {
    let x = Tensor::new(&[-1f64], &candle_core::Device::Cpu)?;
    for y in [leaky_relu(&x, 0.01)?, activation(&x, Act::LeakyRelu(0.01))?] {
        assert_eq!(y.to_vec1::<f64>()?, [-0.01]);
    }
    let y = candle_fused::nn::Activation::LeakyRelu(0.01).forward(&x)?;
    assert_eq!(y.to_vec1::<f64>()?, [-0.01]);
    Ok(())
}

#[test]
fn relu_slopes() -> Result<()> {
    let x = [-2f32, 0., 3.];
    // At 0 as PyTorch has it.
    assert_near(&slopes(relu, &x)?, &[0., 0., 1.], 0.)?;
    assert_near(&slopes(relu2, &x)?, &[0., 0., 6.], 0.)?;
    let leaky = slopes(|x| leaky_relu(x, 0.2), &[-2., 3.])?;
    assert_near(&leaky, &[0.2, 1.], 1e-8)
}

#[test]
fn sigmoid_and_silu() -> Result<()> {
    let x = cpu(&[0f32, 1., -1.])?;
    assert_near(&sigmoid(&x)?, &[0.5, 0.7310586, 0.26894143], 1e-7)?;
    assert_near(&silu(&x)?, &[0., 0.7310586, -0.2689414], 1e-7)?;
    // σ′ = σ(1 − σ)
    let slopes = slopes(sigmoid, &[0., 1., -1.])?;
    assert_near(&slopes, &[0.25, 0.19661193, 0.19661193], 1e-7)
}

#[test]
fn gelus() -> Result<()> {
    let x = cpu(&[0f32, 1., -3.])?;
    assert_near(&gelu(&x)?, &[0., 0.841192, -0.0036374], 1e-6)?;
    assert_near(&gelu_erf(&x)?, &[0., 0.8413447, -0.0040497], 1e-6)
}

#[test]
fn far_arguments_stay_finite() -> Result<()> {
    let x = cpu(&[1e4f32, -1e4])?;
    assert_near(&gelu(&x)?, &[1e4, 0.], 0.)?;
    assert_near(&gelu_erf(&x)?, &[1e4, 0.], 0.)?;
    assert_near(&silu(&x)?, &[1e4, 0.], 0.)?;
    assert_near(&softplus(&x)?, &[1e4, 0.], 0.)?;
    assert_near(&tanh(&x)?, &[1., -1.], 0.)?;
    for act in [gelu, gelu_erf, silu, softplus] {
        assert_near(&slopes(act, &[1e4, -1e4])?, &[1., 0.], 0.)?;
    }
    Ok(())
}

/// Powers of these are infinite, and 0 times them is NaN.
#[test]
fn slopes_of_huge_arguments() -> Result<()> {
    let huge = [1e20f32, -1e20, 3e38, -3e38];
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let x = Tensor::new(&huge, device)?.to_dtype(dtype)?;
            for act in [gelu, gelu_erf, silu, softplus, relu] {
                assert_near(&slopes_of(act, &x)?, &[1., 0., 1., 0.], 0.)?;
            }
            for act in [tanh, sigmoid] {
                assert_near(&slopes_of(act, &x)?, &[0.; 4], 0.)?;
            }
        }
        let x = Tensor::new(&[6e4f32, -6e4], device)?.to_dtype(DType::F16)?;
        for act in [gelu, gelu_erf, silu, softplus, relu] {
            assert_near(&slopes_of(act, &x)?, &[1., 0.], 0.)?;
        }
    }
    Ok(())
}

#[test]
fn tanh_and_softplus() -> Result<()> {
    let x = cpu(&[0f32, 1., -1.])?;
    assert_near(&tanh(&x)?, &[0., 0.7615942, -0.7615942], 1e-7)?;
    assert_near(
        &softplus(&x)?,
        &[std::f64::consts::LN_2, 1.3132617, 0.3132617],
        1e-7,
    )?;
    // 1 − tanh²
    let slopes = slopes(tanh, &[0., 1., -1.])?;
    assert_near(&slopes, &[1., 0.41997434, 0.41997434], 1e-7)
}

#[test]
fn sums_and_products() -> Result<()> {
    let (a, b) = (cpu(&[1f32, 2., 3., 4.])?, cpu(&[5f32, 6., 7., 8.])?);
    assert_near(&add_act(&a, &b, Act::Identity)?, &[6., 8., 10., 12.], 0.)?;
    assert_near(&mul_act(&a, &b, Act::Identity)?, &[5., 12., 21., 32.], 0.)?;
    let (a, b) = (cpu(&[1f32, -2., 3., -4.])?, cpu(&[-1f32, 3., -2., 5.])?);
    assert_near(&add_relu(&a, &b)?, &[0., 1., 1., 1.], 0.)?;
    let (a, b) = (cpu(&[2f32, -3., 4.])?, cpu(&[0.5f32, 2., -1.])?);
    assert_near(&mul_relu(&a, &b)?, &[1., 0., 0.], 0.)
}

#[test]
fn affine() -> Result<()> {
    let (x, scale) = (cpu(&[1f32, 2., 3.])?, cpu(&[2f32, 3., 4.])?);
    assert_near(
        &affine_act(&x, &scale, &x, Act::Identity)?,
        &[3., 8., 15.],
        0.,
    )?;
    let y = affine_act(&x, &scale, &cpu(-9f32)?, Act::Relu)?;
    assert_near(&y, &[0., 0., 3.], 0.)
}

#[test]
fn gates() -> Result<()> {
    let x = cpu(&[[1f32, -1., 2., 3.]])?;
    let (gate, up) = (cpu(&[[1f32, -1.]])?, cpu(&[[2f32, 3.]])?);
    for (one, two, want) in [
        (
            swiglu_packed(&x)?,
            swiglu(&gate, &up)?,
            [1.4621172, -0.8068243],
        ),
        (geglu_packed(&x)?, geglu(&gate, &up)?, [1.682384, -0.476424]),
        (reglu_packed(&x)?, reglu(&gate, &up)?, [2., 0.]),
    ] {
        assert_eq!(one.dims(), [1, 2]);
        assert_near(&one, &want, 1e-6)?;
        assert_near(&two, &want, 1e-6)?;
    }
    Ok(())
}

#[test]
fn scalars_are_tensors_too() -> Result<()> {
    let x = cpu(2f32)?;
    for y in [
        relu(&x)?,
        add_relu(&x, &x.zeros_like()?)?,
        affine_act(&x, &x.ones_like()?, &x.zeros_like()?, Act::Relu)?,
        reglu(&x, &x.ones_like()?)?,
        dropout(&x, 0., 1)?,
        sum_all(&x)?,
    ] {
        assert_eq!(y.rank(), 0);
        assert_near(&y, &[2.], 0.)?;
    }
    Ok(())
}

/// f64 has no kernel here; it is computed by the composed reference.
#[test]
fn doubles_fall_back() -> Result<()> {
    let x = cpu(&[1f64, -3.])?;
    let y = gelu_erf(&x)?;
    assert_eq!(y.dtype(), DType::F64);
    assert_near(&y, &[0.8413447460685429, -0.0040496940948903], 1e-12)?;
    let ones: Tensor = x.ones_like()?;
    assert_near(&add_relu(&x, &ones)?, &[2., 0.], 0.)
}
