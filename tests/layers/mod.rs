//! The drop-in layers: a stock layer's variables give the stock layer's output, and unlike it they
//! all get a gradient.

mod activation;
mod batch_norm;
mod cnn;
mod convolutions;
mod exact;
mod fold;
mod linear;
mod loss;

use crate::devices::devices;
use candle_core::{DType, Device, Module, ModuleT, Result, Tensor};
use candle_fused::nn;
use candle_nn::{VarBuilder, VarMap};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn waves(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let n = shape.iter().product::<usize>();
    let wave = |i| (i as f32 * 0.37).sin() * 3.0 + 0.25;
    Tensor::from_vec((0..n).map(wave).collect::<Vec<f32>>(), shape, device)?.to_dtype(dtype)
}

/// Within what stock Candle loses: where we round once, its 16-bit layers round after each of
/// normalising, scaling and shifting, and those intermediate values are larger than the result.
fn assert_close(ours: &Tensor, stock: &Tensor, what: &str) -> Result<()> {
    assert_eq!(ours.dims(), stock.dims(), "{what}");
    assert_eq!(ours.dtype(), stock.dtype(), "{what}");
    let step = match ours.dtype() {
        DType::F32 => 4e-6,
        DType::F16 => 4.0 * 2f64.powi(-10),
        _ => 4.0 * 2f64.powi(-7),
    };
    let values = |t: &Tensor| {
        let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        t.flatten_all()?.to_vec1::<f64>()
    };
    for (i, (a, b)) in values(ours)?.into_iter().zip(values(stock)?).enumerate() {
        let bound = step * b.abs().max(1.0);
        assert!(
            (a - b).abs() <= bound,
            "{what}, element {i}: {a} for stock's {b}"
        );
    }
    Ok(())
}

/// Stock and ours from the same variables, on the same inputs.
fn check<S: Module, O: Module>(
    what: &str,
    shape: &[usize],
    stock: impl Fn(VarBuilder) -> Result<S>,
    ours: impl Fn(VarBuilder) -> Result<O>,
) -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, dtype, device);
            let stock = stock(vb.pp("layer"))?;
            for (i, var) in vars.all_vars().iter().enumerate() {
                let values = waves(var.dims(), dtype, device)?;
                var.set(&(values * (0.3 * (i + 1) as f64))?)?;
            }
            let count = vars.all_vars().len();
            let ours = ours(vb.pp("layer"))?;
            assert_eq!(
                vars.all_vars().len(),
                count,
                "{what}: other variables than stock"
            );

            let what = format!("{what} {dtype:?} {:?}", device.location());
            let x = waves(shape, dtype, device)?;
            assert_close(&ours.forward(&x)?, &stock.forward(&x)?, &what)?;
            let view = x.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
            assert_close(&ours.forward(&view)?, &stock.forward(&view)?, &what)?;

            let loss = (ours.forward(&x)? * waves(shape, dtype, device)?)?.sum_all()?;
            let grads = loss.backward()?;
            for var in vars.all_vars() {
                let grad = grads
                    .get(&var)
                    .unwrap_or_else(|| panic!("{what}: a lost gradient"));
                let size = grad
                    .to_dtype(DType::F32)?
                    .abs()?
                    .sum_all()?
                    .to_scalar::<f32>()?;
                assert!(
                    size > 0.0 && size.is_finite(),
                    "{what}: gradient of size {size}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn rms_norm() -> Result<()> {
    check(
        "RmsNorm",
        &[3, 5, 64],
        |vb| candle_nn::rms_norm(64, 1e-5, vb),
        |vb| nn::rms_norm(64, 1e-5, vb),
    )
}

#[test]
fn layer_norm() -> Result<()> {
    let rms = nn::LayerNormConfig {
        remove_mean: false,
        ..nn::LayerNormConfig::default()
    };
    for (what, config) in [
        ("LayerNorm", nn::LayerNormConfig::from(1e-5)),
        ("as RMS", rms),
    ] {
        check(
            what,
            &[3, 5, 64],
            |vb| candle_nn::layer_norm(64, config, vb),
            |vb| nn::layer_norm(64, config, vb),
        )?;
    }
    check(
        "LayerNorm without bias",
        &[3, 5, 64],
        |vb| candle_nn::layer_norm_no_bias(64, 1e-5, vb),
        |vb| nn::layer_norm_no_bias(64, 1e-5, vb),
    )
}

#[test]
fn group_norm() -> Result<()> {
    check(
        "GroupNorm",
        &[3, 8, 5, 7],
        |vb| candle_nn::group_norm(4, 8, 1e-5, vb),
        |vb| nn::group_norm(4, 8, 1e-5, vb),
    )
}

#[test]
fn old_names_load() -> Result<()> {
    let (gamma, beta) = (
        Tensor::full(2f32, 4, &Device::Cpu)?,
        Tensor::full(1f32, 4, &Device::Cpu)?,
    );
    let tensors = [("gamma".to_string(), gamma), ("beta".to_string(), beta)].into();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let norm = nn::layer_norm(4, 1e-5, vb)?;
    assert_eq!(norm.weight().to_vec1::<f32>()?, [2.0; 4]);
    assert_eq!(
        norm.bias().map(|b| b.to_vec1::<f32>()).transpose()?,
        Some(vec![1.0; 4])
    );
    Ok(())
}

#[test]
fn activations_and_their_names() -> Result<()> {
    use candle_nn::Activation as Stock;
    let all = [
        Stock::Gelu,
        Stock::NewGelu,
        Stock::Relu,
        Stock::Relu2,
        Stock::Relu6,
        Stock::Silu,
        Stock::Sigmoid,
        Stock::HardSigmoid,
        Stock::Swiglu,
        Stock::Swish,
        Stock::Mish,
        Stock::HardSwish,
        Stock::Elu(0.7),
        Stock::LeakyRelu(0.1),
        Stock::GeluPytorchTanh,
    ];
    for stock in all {
        let ours = nn::Activation::from(stock);
        assert_eq!(Stock::from(ours), stock);
        let name = serde_json::to_string(&stock).expect("a plain enum");
        assert_eq!(serde_json::to_string(&ours).expect("a plain enum"), name);
        assert_eq!(
            serde_json::from_str::<nn::Activation>(&name).expect("our own name"),
            ours
        );
        for device in devices() {
            let x = waves(&[4, 33, 6], DType::F32, device)?;
            assert_close(&ours.forward(&x)?, &stock.forward(&x)?, &name)?;
        }
    }
    for alias in ["gelu", "gelu_new", "gelu_pytorch_tanh"] {
        let alias = format!("\"{alias}\"");
        let ours: nn::Activation = serde_json::from_str(&alias).expect("an alias of stock's");
        let stock: Stock = serde_json::from_str(&alias).expect("an alias of stock's");
        assert_eq!(Stock::from(ours), stock);
    }
    Ok(())
}

#[test]
fn functions() -> Result<()> {
    use candle_nn::ops as stock;
    use nn::ops as ours;
    for device in devices() {
        for dtype in DTYPES {
            let x = waves(&[6, 4, 32], dtype, device)?;
            let (alpha, beta) = (waves(&[32], dtype, device)?, waves(&[32], dtype, device)?);
            let pairs = [
                ("softmax", ours::softmax(&x, 1)?, stock::softmax(&x, 1)?),
                (
                    "log_softmax",
                    ours::log_softmax(&x, 2)?,
                    stock::log_softmax(&x, 2)?,
                ),
                (
                    "softmax_last_dim",
                    ours::softmax_last_dim(&x)?,
                    stock::softmax_last_dim(&x)?,
                ),
                ("silu", ours::silu(&x)?, stock::silu(&x)?),
                ("swiglu", ours::swiglu(&x)?, stock::swiglu(&x)?),
                ("sigmoid", ours::sigmoid(&x)?, stock::sigmoid(&x)?),
                (
                    "leaky_relu",
                    ours::leaky_relu(&x, 0.2)?,
                    stock::leaky_relu(&x, 0.2)?,
                ),
                (
                    "rms_norm",
                    ours::rms_norm(&x, &alpha, 1e-5)?,
                    stock::rms_norm(&x, &alpha, 1e-5)?,
                ),
                (
                    "layer_norm",
                    ours::layer_norm(&x, &alpha, &beta, 1e-5)?,
                    stock::layer_norm(&x, &alpha, &beta, 1e-5)?,
                ),
            ];
            for (name, ours, stock) in pairs {
                assert_close(&ours, &stock, &format!("{name} {dtype:?}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn dropout_layer() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones((100, 100), DType::F32, device)?;
        let layer = nn::Dropout::new(0.25);
        assert_eq!(
            layer.forward_t(&x, false)?.to_vec2::<f32>()?,
            x.to_vec2::<f32>()?
        );
        let (a, b) = (layer.forward(&x, true)?, layer.forward(&x, true)?);
        let zeros = |t: &Tensor| {
            t.eq(0f32)?
                .to_dtype(DType::F32)?
                .sum_all()?
                .to_scalar::<f32>()
        };
        // Ten standard deviations of a binomial count.
        assert!(
            (zeros(&a)? - 2500.0).abs() < 433.0,
            "{} dropped",
            zeros(&a)?
        );
        let kept = (10_000.0 - zeros(&a)?) / 0.75;
        assert!((a.sum_all()?.to_scalar::<f32>()? - kept).abs() < 1.0);
        assert_ne!(
            a.to_vec2::<f32>()?,
            b.to_vec2::<f32>()?,
            "a fresh mask at each call"
        );
        assert!(nn::Dropout::new(1.0).forward(&x, true).is_err());
    }
    Ok(())
}

#[test]
fn layers_take_an_eps_of_zero_as_stock_does() -> Result<()> {
    check(
        "layer norm",
        &[3, 8],
        |vb| candle_nn::layer_norm(8, 0.0, vb),
        |vb| nn::layer_norm(8, 0.0, vb),
    )?;
    check(
        "rms norm",
        &[3, 8],
        |vb| candle_nn::rms_norm(8, 0.0, vb),
        |vb| nn::rms_norm(8, 0.0, vb),
    )?;
    check(
        "group norm",
        &[2, 4, 5],
        |vb| candle_nn::group_norm(2, 4, 0.0, vb),
        |vb| nn::group_norm(2, 4, 0.0, vb),
    )
}
