//! Several adapters, switching them on and off, and dropout.

use super::*;
use crate::devices::devices;
use candle_fused::ops;
use candle_fused::ops::AdapterDropout;

#[test]
fn several_adapters() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            let built = build(shape, &config(), DType::F32, device)?;
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, DType::F32, device);
            let second = LoraConfig {
                rank: 2,
                alpha: 1.0,
                ..dora()
            };
            built.adapters.add_adapter("second", &second, vb)?;
            assert_eq!(built.adapters.adapter_names(), ["default", "second"]);
            assert_eq!(built.adapters.active_adapter().as_deref(), Some("default"));
            assert_eq!(built.adapters.adapter_vars().len(), 5);
            for name in ["default", "second"] {
                built.stir(name)?;
            }

            let first = built.eval()?;
            assert_close(&first, &built.reference(&built.x)?, 2e-5, "the first")?;
            built.adapters.set_adapter("second")?;
            let second = built.eval()?;
            assert_close(&second, &built.reference(&built.x)?, 2e-5, "the second")?;
            assert_differ(&first, &second, "the two")?;
            let grads = second.sum_all()?.backward()?;
            let reached = |name| {
                let vars = built.adapters.adapter(name).expect("the adapter").vars();
                vars.iter().filter(|var| grads.get(var).is_some()).count()
            };
            assert_eq!((reached("default"), reached("second")), (0, 3));

            built.adapters.merge()?;
            assert_refused(
                built.adapters.set_adapter("default"),
                &["merged", "unmerge"],
            );
            assert_refused(
                built.adapters.remove_adapter("second"),
                &["merged", "unmerge"],
            );
            built.adapters.unmerge();
            built.adapters.set_adapter("default")?;
            assert_same(&built.eval()?, &first, "the first again")?;
            built.adapters.remove_adapter("default")?;
            assert_same(&built.eval()?, &second, "what is left")?;
            built.adapters.remove_adapter("second")?;
            assert_close(
                &built.eval()?,
                &built.stock.forward(&built.x)?,
                1e-5,
                "none is left",
            )?;
        }
    }
    Ok(())
}

#[test]
fn disabling() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            let built = build(shape, &config(), DType::F32, device)?;
            built.stir("default")?;
            let adapted = built.eval()?;
            built.adapters.disable();
            assert!(!built.adapters.is_enabled());
            let stock = built.stock.forward(&built.x)?;
            assert_close(&built.eval()?, &stock, 1e-5, "disabled")?;
            built.adapters.enable();
            assert_same(&built.eval()?, &adapted, "enabled again")?;
            assert_differ(&adapted, &stock, "with and without")?;
        }
    }
    Ok(())
}

#[test]
fn a_clone_shares_the_adapters() -> Result<()> {
    let built = build(Shape::Linear, &config(), DType::F32, &Device::Cpu)?;
    built.stir("default")?;
    let clone = built.adapters.clone();
    let adapted = built.eval()?;
    clone.disable();
    assert_differ(&built.eval()?, &adapted, "disabled through the clone")?;
    Ok(())
}

#[test]
fn dropout_is_of_training_alone() -> Result<()> {
    for device in devices() {
        for shape in [Shape::Linear, Shape::Conv2d] {
            for config in [config(), dora()] {
                let config = LoraConfig {
                    dropout: 0.4,
                    ..config
                };
                let built = build(shape, &config, DType::F32, device)?;
                built.stir("default")?;
                let train = || built.layer.forward_t(&built.x, true);
                let eval = built.eval()?;
                assert_close(&eval, &built.reference(&built.x)?, 2e-5, "evaluation")?;

                built.adapters.set_seed(7);
                let (first, second) = (train()?, train()?);
                assert_differ(&first, &eval, "training")?;
                assert_differ(&first, &second, "two calls")?;
                built.adapters.set_seed(7);
                assert_same(&train()?, &first, "the same seed")?;
                built.adapters.set_seed(8);
                assert_same(&train()?, &second, "the seed of the second call")?;
                assert_same(&built.eval()?, &eval, "evaluation afterwards")?;
            }
        }
    }
    Ok(())
}

/// The whole of what dropout does: that of the op with this seed.
#[test]
fn dropout_is_that_of_the_op() -> Result<()> {
    for device in devices() {
        let config = LoraConfig {
            dropout: 0.4,
            ..config()
        };
        let built = build(Shape::Linear, &config, DType::F32, device)?;
        built.stir("default")?;
        let adapter = built.adapters.adapter("default").expect("the adapter");
        let bias = built.bias.as_ref().map(|b| b.as_tensor());
        let low = ops::Adapter {
            a: adapter.a(),
            b: adapter.b(),
            scale: (7.0 / 3.0) as f32,
            dropout: Some(AdapterDropout { p: 0.4, seed: 123 }),
        };
        let expected = ops::lora_with(
            &built.x,
            &built.weight.as_tensor().clone().into(),
            bias,
            low,
        )?;
        built.adapters.set_seed(123);
        assert_same(
            &built.layer.forward_t(&built.x, true)?,
            &expected,
            "seed 123",
        )?;
    }
    Ok(())
}

#[test]
fn without_dropout_training_is_evaluation() -> Result<()> {
    for device in devices() {
        for shape in SHAPES {
            let dropout = if shape == Shape::Embedding { 0.5 } else { 0.0 };
            let built = build(
                shape,
                &LoraConfig {
                    dropout,
                    ..config()
                },
                DType::F32,
                device,
            )?;
            built.stir("default")?;
            let train = built.layer.forward_t(&built.x, true)?;
            assert_same(&train, &built.eval()?, &format!("{shape:?}"))?;
        }
    }
    Ok(())
}
