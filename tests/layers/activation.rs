//! Activations of stock, and the fused ones that layers take.

use super::*;
use candle_fused::nn::Activation;
use candle_fused::ops::Act;

/// Whatever activation a config names: the layer either computes that function or refuses it.
#[test]
fn a_layer_takes_the_activation_of_a_config() -> Result<()> {
    use candle_nn::Activation as Stock;
    let all = [
        Stock::Gelu,
        Stock::NewGelu,
        Stock::GeluPytorchTanh,
        Stock::Relu,
        Stock::Relu2,
        Stock::Relu6,
        Stock::Silu,
        Stock::Swish,
        Stock::Sigmoid,
        Stock::HardSigmoid,
        Stock::HardSwish,
        Stock::Mish,
        Stock::Swiglu,
        Stock::Elu(0.5),
        Stock::LeakyRelu(0.1),
    ];
    for device in devices() {
        let (x, w) = (
            waves(&[5, 8], DType::F32, device)?,
            waves(&[6, 8], DType::F32, device)?.affine(0.2, 0.)?,
        );
        let plain = nn::Linear::new(w.clone(), None);
        let conv = nn::Conv1d::new(w.unsqueeze(2)?, None, Default::default());
        let mut fused = 0;
        for stock in all {
            let ours = Activation::from(stock);
            let Ok(layer) = plain.clone().with_act(ours) else {
                let error = Act::try_from(ours).expect_err("no fused form").to_string();
                assert!(error.contains(&format!("{ours:?}")), "{error}");
                continue;
            };
            fused += 1;
            let want = stock.forward(&plain.forward(&x)?)?;
            assert_close(&layer.forward(&x)?, &want, &format!("{stock:?}"))?;
            let rows = x.unsqueeze(2)?;
            let conv = conv.clone().with_act(stock)?.forward(&rows)?;
            assert_close(&conv.squeeze(2)?, &want, &format!("{stock:?}"))?;
            let back = Activation::try_from(Act::try_from(ours)?)?;
            assert_eq!(Act::try_from(back)?, Act::try_from(ours)?);
        }
        assert_eq!(fused, 9);
    }
    Ok(())
}

/// The two GELUs differ by up to 5e-4, which no test of a layer's tolerance would notice in 16 bits.
#[test]
fn the_two_gelus_are_never_mistaken() -> Result<()> {
    assert_eq!(Act::try_from(Activation::Gelu)?, Act::GeluErf);
    assert_eq!(Act::try_from(Activation::NewGelu)?, Act::GeluTanh);
    assert_eq!(Act::try_from(Activation::GeluPytorchTanh)?, Act::GeluTanh);
    assert_eq!(Activation::try_from(Act::GeluErf)?, Activation::Gelu);
    assert_eq!(
        Activation::try_from(Act::GeluTanh)?,
        Activation::GeluPytorchTanh
    );
    Ok(())
}
