//! `nn::loss` and `nn::Embedding`: stock's numbers and, at every input that is a variable, stock's gradients.

use super::*;
use candle_core::Var;

type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Logits or predictions, what they are compared with, and both losses.
struct Pair {
    what: &'static str,
    target: fn(&Device, DType) -> Result<Tensor>,
    ours: Loss,
    stock: Loss,
}

fn classes(device: &Device, _: DType) -> Result<Tensor> {
    Tensor::new(&[4u32, 0, 6, 2, 2], device)
}

fn probabilities(device: &Device, dtype: DType) -> Result<Tensor> {
    let values: Vec<f32> = (0..35).map(|i| (i * 5 % 9) as f32 / 8.0).collect();
    Tensor::from_vec(values, (5, 7), device)?.to_dtype(dtype)
}

const PAIRS: [Pair; 5] = [
    Pair {
        what: "cross_entropy",
        target: classes,
        ours: nn::loss::cross_entropy,
        stock: candle_nn::loss::cross_entropy,
    },
    Pair {
        what: "nll",
        target: classes,
        ours: nn::loss::nll,
        stock: candle_nn::loss::nll,
    },
    Pair {
        what: "mse",
        target: probabilities,
        ours: nn::loss::mse,
        stock: candle_nn::loss::mse,
    },
    Pair {
        what: "binary_cross_entropy_with_logit",
        target: probabilities,
        ours: nn::loss::binary_cross_entropy_with_logit,
        stock: candle_nn::loss::binary_cross_entropy_with_logit,
    },
    Pair {
        what: "huber",
        target: probabilities,
        ours: |x, y| nn::loss::huber(x, y, 0.75),
        stock: |x, y| candle_nn::loss::huber(x, y, 0.75),
    },
];

#[test]
fn losses_are_stocks_and_train() -> Result<()> {
    for device in devices() {
        for pair in &PAIRS {
            let x = Var::from_tensor(&waves(&[5, 7], DType::F32, device)?)?;
            let target = (pair.target)(device, DType::F32)?;
            // Targets that are no integers may train too.
            let target = match target.dtype().is_float() {
                true => Var::from_tensor(&target)?.into_inner(),
                false => target,
            };
            let (ours, stock) = ((pair.ours)(&x, &target)?, (pair.stock)(&x, &target)?);
            assert_close(&ours, &stock, pair.what)?;
            let (got, want) = ((ours * 3.0)?.backward()?, (stock * 3.0)?.backward()?);
            for input in [x.as_tensor(), &target] {
                match (got.get(input), want.get(input)) {
                    (Some(got), Some(want)) => assert_close(got, want, pair.what)?,
                    (got, want) => assert_eq!(got.is_some(), want.is_some(), "{}", pair.what),
                }
            }
            // In 16 bits, against f32.
            for dtype in [DType::F16, DType::BF16] {
                let narrow = |t: &Tensor| match t.dtype().is_float() {
                    true => t.to_dtype(dtype),
                    false => Ok(t.clone()),
                };
                let (x, target) = (narrow(&x)?, narrow(&target)?);
                let ours = (pair.ours)(&x, &target)?;
                let wide = |t: &Tensor| match t.dtype().is_float() {
                    true => t.to_dtype(DType::F32),
                    false => Ok(t.clone()),
                };
                let exact = (pair.stock)(&wide(&x)?, &wide(&target)?)?;
                assert_close(&ours, &exact.to_dtype(dtype)?, pair.what)?;
            }
        }
    }
    Ok(())
}

/// Stock's sigmoid is 1 from 17 on, and the logarithm of 1 − 1 infinite.
#[test]
fn sure_logits_have_a_finite_binary_loss() -> Result<()> {
    for device in devices() {
        let x = Var::new(&[40f32, -40., 40., -40.], device)?;
        let target = Tensor::new(&[1f32, 0., 0., 1.], device)?;
        let loss = nn::loss::binary_cross_entropy_with_logit(&x, &target)?;
        assert_eq!(loss.to_scalar::<f32>()?, 20.0);
        let grads = loss.backward()?;
        let got = grads.get(&x).unwrap().to_vec1::<f32>()?;
        let want = [0.0, 0.0, 0.25, -0.25];
        assert!(
            got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6),
            "{got:?}"
        );
    }
    Ok(())
}

#[test]
fn losses_refuse_what_stock_refuses() -> Result<()> {
    let device = Device::Cpu;
    let x = waves(&[2, 3, 4], DType::F32, &device)?;
    let target = Tensor::zeros((2, 3), DType::U32, &device)?;
    assert!(nn::loss::cross_entropy(&x, &target).is_err());
    assert!(nn::loss::nll(&x, &target).is_err());
    let wrong = Tensor::new(&[0u32, 9], &device)?;
    assert!(nn::loss::cross_entropy(&x.get(0)?.narrow(0, 0, 2)?, &wrong).is_err());
    Ok(())
}

#[test]
fn embedding() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, dtype, device);
            let stock = candle_nn::embedding(11, 6, vb.pp("tokens"))?;
            let ours = nn::embedding(11, 6, vb.pp("tokens"))?;
            assert_eq!(ours.hidden_size(), 6);
            for ids in [DType::U32, DType::I64] {
                let values = Tensor::new(&[[3i64, 3, 10], [0, 3, 1]], &Device::Cpu)?;
                let ids = values.to_dtype(ids)?.to_device(device)?;
                let (got, want) = (ours.forward(&ids)?, stock.forward(&ids)?);
                assert_close(&got, &want, "Embedding")?;
                let weight = vars.all_vars()[0].clone();
                let signal = waves(&[2, 3, 6], dtype, device)?;
                let of = |y: Tensor| -> Result<Tensor> {
                    let grads = (y * &signal)?.sum_all()?.backward()?;
                    Ok(grads.get(&weight).expect("a gradient").clone())
                };
                assert_close(&of(got)?, &of(want)?, "the gradient of an Embedding")?;
            }
        }
    }
    let weight = waves(&[4, 3], DType::F32, &Device::Cpu)?;
    let outside = Tensor::new(&[4u32], &Device::Cpu)?;
    assert!(nn::Embedding::new(weight, 3).forward(&outside).is_err());
    Ok(())
}
