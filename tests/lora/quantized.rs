//! Adapters beside a quantised weight.

use super::*;
use crate::devices::devices;
use candle_core::quantized::{GgmlDType, QTensor};
use std::sync::Arc;

// Candle's product on Metal stores four outputs at once.
const DIMS: (usize, usize) = (8, 64);

fn layer(config: &LoraConfig, device: &Device) -> Result<(LoraLinear, Linear)> {
    let weight = waves(&[DIMS.0, DIMS.1], 1.0, DType::F32, device)?;
    let weight = Arc::new(QTensor::quantize(&weight, GgmlDType::Q8_0)?);
    let bias = waves(&[DIMS.0], 2.0, DType::F32, device)?;
    let stock = Linear::new(weight.dequantize(device)?, Some(bias.clone()));
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
    let layer = LoraLinear::from_quantized(weight, Some(bias), config, vb.pp("q_proj"))?;
    Ok((layer, stock))
}

/// The same as beside the dequantised weight, but that Candle's product rounds its input to 8 bits too.
#[test]
fn values_and_gradients() -> Result<()> {
    for device in devices() {
        for config in [config(), dora()] {
            let (quantized, stock) = layer(&config, device)?;
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
            let plain = LoraLinear::new(stock.clone(), &config, vb)?;
            let x = Var::from_tensor(&waves(&[3, DIMS.1], 0.3, DType::F32, device)?)?;
            assert_close(
                &quantized.forward(&x)?,
                &stock.forward(&x)?,
                3e-2,
                "the start",
            )?;

            for adapters in [&quantized, &plain] {
                for (phase, var) in (3u8..).zip(adapters.adapter_vars()) {
                    var.set(&waves(var.dims(), f32::from(phase), DType::F32, device)?)?;
                }
            }
            let (ours, theirs) = (quantized.forward(&x)?, plain.forward(&x)?);
            assert_close(&ours, &theirs, 3e-2, "moved")?;
            assert_differ(&ours, &stock.forward(&x)?, "moved")?;
            let (ours, theirs) = (ours.sum_all()?.backward()?, theirs.sum_all()?.backward()?);
            let vars = quantized
                .adapter_vars()
                .into_iter()
                .zip(plain.adapter_vars());
            for (i, (a, b)) in vars.chain([(x.clone(), x.clone())]).enumerate() {
                let (a, b) = (ours.get(&a).expect("ours"), theirs.get(&b).expect("theirs"));
                assert_close(
                    a,
                    b,
                    3e-2,
                    &format!("gradient {i}, DoRA {}", config.use_dora),
                )?;
            }

            quantized.adapters().disable();
            assert_close(
                &quantized.forward(&x)?,
                &stock.forward(&x)?,
                3e-2,
                "disabled",
            )?;
            let grads = quantized.forward(&x)?.sum_all()?.backward()?;
            assert!(grads.get(&x).is_some());
        }
    }
    Ok(())
}

#[test]
fn merging_is_refused() -> Result<()> {
    for device in devices() {
        let (layer, _) = layer(&config(), device)?;
        assert_refused(layer.merge(), &["LoraLinear q_proj", "quantised"]);
        assert!(!layer.adapters().is_merged() && layer.adapters().weight().is_none());
    }
    Ok(())
}
