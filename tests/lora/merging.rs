//! Merging and unmerging.

use super::*;
use crate::devices::devices;

#[test]
fn merged_and_unmerged_agree() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            for config in [config(), dora()] {
                let what = format!("{shape:?} DoRA {} {:?}", config.use_dora, device.location());
                let built = build(shape, &config, DType::F32, device)?;
                built.stir("default")?;
                let original = values(&built.weight)?;
                let beside = built.eval()?;
                assert_differ(&beside, &built.stock.forward(&built.x)?, &what)?;

                built.adapters.merge()?;
                assert!(built.adapters.is_merged());
                assert_close(&built.eval()?, &beside, 2e-5, &what)?;
                let weight = built.adapters.merged_weight()?;
                assert_close(&weight, &built.effective_weight()?, 2e-6, &what)?;

                built.adapters.unmerge();
                assert!(!built.adapters.is_merged());
                assert_same(&built.eval()?, &beside, &what)?;
                let weight = built.adapters.weight().expect("a plain weight");
                assert_eq!(values(weight)?, original, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_merged_layer_is_frozen() -> Result<()> {
    for device in devices() {
        for shape in [Shape::Linear, Shape::Conv2d] {
            let built = build(
                shape,
                &LoraConfig {
                    dropout: 0.5,
                    ..config()
                },
                DType::F32,
                device,
            )?;
            built.stir("default")?;
            built.adapters.merge()?;
            let merged = built.eval()?;
            let x = Var::from_tensor(&built.x)?;
            let y = built.layer.forward_t(&x, true)?;
            assert_same(&y, &merged, "there is no dropout in a merged layer")?;
            let grads = y.sqr()?.sum_all()?.backward()?;
            assert!(grads.get(&x).is_some());
            assert!(built
                .adapters
                .adapter_vars()
                .iter()
                .all(|var| grads.get(var).is_none()));

            let vars = built.adapters.adapter_vars();
            vars[1].set(&vars[1].ones_like()?)?;
            assert_same(&built.eval()?, &merged, "merged before the change")?;
            built.adapters.merge()?;
            assert_differ(&built.eval()?, &merged, "merged after the change")?;

            built.adapters.disable();
            assert_close(
                &built.eval()?,
                &built.stock.forward(&built.x)?,
                1e-5,
                "disabled",
            )?;
            built.adapters.enable();
            assert_differ(&built.eval()?, &built.stock.forward(&built.x)?, "enabled")?;
        }
    }
    Ok(())
}

#[test]
fn stock_layers_with_the_adapter_merged() -> Result<()> {
    for device in devices() {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
        let stir = |adapters: &Adapters| -> Result<()> {
            for var in adapters.adapter_vars() {
                var.set(&waves(var.dims(), 3.0, DType::F32, device)?)?;
            }
            Ok(())
        };
        let x = waves(&[4, 7], 0.0, DType::F32, device)?;
        let base = Linear::new(waves(&[9, 7], 1.0, DType::F32, device)?, None);
        let layer = LoraLinear::new(base, &config(), vb.pp("linear"))?;
        stir(layer.adapters())?;
        assert_close(
            &layer.to_stock()?.forward(&x)?,
            &layer.forward(&x)?,
            2e-5,
            "linear",
        )?;

        let ids = Tensor::new(&[5u32, 0], device)?;
        let base = Embedding::new(waves(&[9, 7], 1.0, DType::F32, device)?, 7);
        let layer = LoraEmbedding::new(base, &config(), vb.pp("embedding"))?;
        stir(layer.adapters())?;
        assert_close(
            &layer.to_stock()?.forward(&ids)?,
            &layer.forward(&ids)?,
            2e-5,
            "embedding",
        )?;

        let x = waves(&[1, 3, 5, 5], 0.0, DType::F32, device)?;
        let base = Conv2d::new(waves(&[5, 3, 3, 3], 1.0, DType::F32, device)?, None, CONV);
        let layer = LoraConv2d::new(base, &config(), vb.pp("conv"))?;
        stir(layer.adapters())?;
        assert_close(
            &layer.to_stock()?.forward(&x)?,
            &layer.forward(&x)?,
            2e-5,
            "conv",
        )?;
    }
    Ok(())
}
