//! Linear layers: stock's variables and outputs, at every rank.

use super::exact::{assert_exact, check, exactly, values};
use super::*;
use candle_core::Var;
use candle_fused::nn::lora::LoraLinear;
use candle_fused::ops::Act;

#[test]
fn linear() -> Result<()> {
    for shape in [&[1, 9][..], &[40, 9], &[2, 3, 9], &[2, 3, 2, 9]] {
        check(
            &format!("Linear of {shape:?}"),
            shape,
            |vb| candle_nn::linear(9, 5, vb),
            |vb| nn::linear(9, 5, vb),
        )?;
    }
    check(
        "Linear without bias",
        &[3, 9],
        |vb| candle_nn::linear_no_bias(9, 5, vb),
        |vb| nn::linear_no_bias(9, 5, vb),
    )?;
    for bias in [true, false] {
        check(
            &format!("Linear with bias: {bias}"),
            &[3, 9],
            |vb| candle_nn::linear_b(9, 5, bias, vb),
            |vb| nn::linear_b(9, 5, bias, vb),
        )?;
    }
    Ok(())
}

#[test]
fn a_row_and_an_activation() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let (weight, bias) = (waves(&[5, 9], dtype, device)?, waves(&[5], dtype, device)?);
            let stock = candle_nn::Linear::new(exactly(&weight)?, Some(exactly(&bias)?));
            let ours = nn::linear::Linear::new(weight, Some(bias));
            let with_act = ours.clone().with_act(Act::Relu);
            let x = waves(&[9], dtype, device)?;
            let exact = stock.forward(&exactly(&x)?.unsqueeze(0)?)?.squeeze(0)?;
            assert_exact(&ours.forward(&x)?, &exact, "a row")?;
            let exact = exact.relu()?;
            assert_exact(&with_act.forward(&x)?, &exact, "without gradients")?;
            let x = Var::from_tensor(&x)?;
            assert_exact(&with_act.forward(&x)?, &exact, "with gradients")?;
        }
    }
    Ok(())
}

#[test]
fn stock_layers_convert() -> Result<()> {
    let device = &Device::Cpu;
    let weight = waves(&[5, 9], DType::F32, device)?;
    let stock = candle_nn::Linear::new(weight, Some(waves(&[5], DType::F32, device)?));
    let ours = nn::Linear::from(stock.clone());
    assert_eq!(values(ours.weight())?, values(stock.weight())?);
    assert_eq!(ours.bias().map(Tensor::dims), Some([5].as_slice()));
    // Both are bases for adapters, unless an activation would come before them.
    LoraLinear::plain(stock, "stock")?;
    LoraLinear::plain(ours.clone(), "ours")?;
    let Err(error) = LoraLinear::plain(ours.with_act(Act::Silu), "ours") else {
        panic!("accepted");
    };
    let says = "LoraLinear ours: got a base with Silu";
    assert!(error.to_string().starts_with(says), "{error}");
    Ok(())
}
