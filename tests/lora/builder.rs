//! Which modules get an adapter, and a whole model's adapters together.

use super::formats::Model;
use super::*;
use crate::devices::devices;
use candle_fused::nn::lora::{LoraBuilder, LoraModel, PeftConfig, Targets};

/// Of two blocks with `q_proj` and `v_proj`, and a `head`.
fn build(
    make: impl Fn(VarBuilder<'static>) -> Result<LoraBuilder<'static>>,
    device: &Device,
) -> Result<(Model, LoraModel, VarMap)> {
    let vars = VarMap::new();
    let lb = make(VarBuilder::from_varmap(&vars, DType::F32, device))?;
    let model = Model::linears(&lb)?;
    Ok((model, lb.finish()?, vars))
}

fn adapted(lora: &LoraModel) -> Vec<String> {
    let layers = lora
        .layers()
        .iter()
        .filter(|layer| !layer.adapter_names().is_empty());
    layers.map(|layer| layer.name().to_string()).collect()
}

fn small() -> LoraConfig {
    LoraConfig {
        rank: 2,
        ..config()
    }
}

fn targets(targets: impl Into<Targets>) -> Result<Vec<String>> {
    let targets = targets.into();
    let make = |vb| LoraBuilder::new(vb, &small(), targets.clone());
    Ok(adapted(&build(make, &Device::Cpu)?.1))
}

#[test]
fn targets_are_found_as_peft_finds_them() -> Result<()> {
    assert_eq!(targets(["q_proj"])?, ["layers.0.q_proj", "layers.1.q_proj"]);
    assert_eq!(
        targets(["layers.1.q_proj", "head"])?,
        ["layers.1.q_proj", "head"]
    );
    assert_eq!(targets(["1.v_proj"])?, ["layers.1.v_proj"]);
    let regex = |pattern: &str| targets(Targets::Regex(pattern.into()));
    assert_eq!(regex(r".*\.0\..*")?, ["layers.0.q_proj", "layers.0.v_proj"]);
    assert_eq!(
        regex(r"head|layers\.1\.q_proj")?,
        ["layers.1.q_proj", "head"]
    );
    assert_eq!(
        regex(r"(?!.*q_proj).*layers.*")?,
        ["layers.0.v_proj", "layers.1.v_proj"]
    );
    assert_eq!(targets(Targets::AllLinear)?.len(), 5);
    // The end of a name is no suffix of a path, and a regex must match the whole.
    for none in [Targets::from(["proj"]), Targets::Regex("q_proj".into())] {
        assert_refused(
            targets(none),
            &["unknown module", "proj", "layers.0.q_proj", "head"],
        );
    }
    assert_refused(
        targets(["q_proj", "gate_proj"]),
        &["unknown module", "[\"gate_proj\"]"],
    );
    Ok(())
}

#[test]
fn all_linear_leaves_the_output_layer() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let lb = LoraBuilder::new(vb, &small(), Targets::AllLinear)?;
    lb.pp("model").pp("embed").embedding(10, 4)?;
    lb.pp("model").pp("up").linear(4, 4)?;
    lb.pp("lm_head").linear_no_bias(4, 10)?;
    assert_eq!(adapted(&lb.finish()?), ["model.up"]);
    Ok(())
}

#[test]
fn patterns_and_exclusions() -> Result<()> {
    let mut config = PeftConfig::new(&small(), ["q_proj", "v_proj", "head"].into());
    config.exclude_modules = Some(["0.v_proj"].into());
    config.rank_pattern.insert(r"layers\.1\.q_proj", 5);
    // The first match counts.
    config.rank_pattern.insert("q_proj", 4);
    config.alpha_pattern.insert("head", 1.0);
    let (_, lora, _) = build(
        |vb| LoraBuilder::from_config(vb, config.clone()),
        &Device::Cpu,
    )?;
    let ranks = lora.layers().iter().map(|layer| {
        let adapter = layer.adapter("default")?;
        Some((adapter.config().rank, adapter.config().alpha))
    });
    let expected = [
        Some((4, 7.0)),
        None,
        Some((5, 7.0)),
        Some((2, 7.0)),
        Some((2, 1.0)),
    ];
    assert_eq!(ranks.collect::<Vec<_>>(), expected);
    Ok(())
}

#[test]
fn gradients_reach_the_adapters_alone() -> Result<()> {
    for device in devices() {
        let make = |vb| {
            LoraBuilder::new(
                vb,
                &LoraConfig {
                    use_dora: true,
                    ..small()
                },
                ["q_proj"],
            )
        };
        let (model, lora, vars) = build(make, device)?;
        assert_eq!(lora.adapter_vars().len(), 6);
        for var in lora.adapter_vars() {
            var.set(&waves(var.dims(), 1.0, DType::F32, device)?)?;
        }
        let x = waves(&[4, 6], 0.5, DType::F32, device)?;
        let grads = model.forward(&x)?.sqr()?.sum_all()?.backward()?;
        for var in lora.adapter_vars() {
            let grad = grads.get(&var).expect("a gradient to the adapter");
            assert!(values(grad)?.iter().any(|g| g.abs() > 1e-6));
        }
        assert!(vars.all_vars().iter().all(|var| grads.get(var).is_none()));
    }
    Ok(())
}

#[test]
fn a_model_switches_as_one() -> Result<()> {
    for device in devices() {
        let (model, lora, _) = build(|vb| LoraBuilder::new(vb, &small(), ["q_proj"]), device)?;
        let x = waves(&[4, 6], 0.5, DType::F32, device)?;
        let base = model.forward(&x)?;
        let other = PeftConfig::new(
            &LoraConfig {
                rank: 3,
                ..config()
            },
            ["head", "v_proj"].into(),
        );
        lora.add_adapter("other", &other)?;
        assert_eq!(lora.adapter_names(), ["default", "other"]);
        for (i, var) in lora.adapter_vars().iter().enumerate() {
            var.set(&waves(var.dims(), i as f32, DType::F32, device)?)?;
        }

        let first = model.forward(&x)?;
        assert_differ(&first, &base, "the first")?;
        lora.set_adapter("other")?;
        assert_eq!(lora.active_adapter().as_deref(), Some("other"));
        let second = model.forward(&x)?;
        assert_differ(&second, &first, "the second")?;
        assert_differ(&second, &base, "the second")?;
        let grads = second.sum_all()?.backward()?;
        let reached = lora
            .adapter_vars()
            .iter()
            .filter(|var| grads.get(var).is_some())
            .count();
        assert_eq!(reached, 6, "three modules have the second");

        lora.merge()?;
        assert_close(&model.forward(&x)?, &second, 1e-4, "merged")?;
        assert_refused(lora.set_adapter("default"), &["other", "unmerge"]);
        assert_refused(lora.remove_adapter("other"), &["unmerge"]);
        lora.unmerge();
        lora.disable();
        assert_same(&model.forward(&x)?, &base, "disabled")?;
        lora.enable();
        lora.set_adapter("default")?;
        assert_same(&model.forward(&x)?, &first, "the first again")?;
        lora.remove_adapter("default")?;
        assert_same(&model.forward(&x)?, &base, "without an active one")?;
        assert_eq!(lora.adapter_names(), ["other"]);
    }
    Ok(())
}

#[test]
fn seeds_of_a_model() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let lb = LoraBuilder::new(
        vb,
        &LoraConfig {
            dropout: 0.5,
            ..small()
        },
        ["a", "b"],
    )?;
    let layers = [lb.pp("a").linear(8, 8)?, lb.pp("b").linear(8, 8)?];
    let lora = lb.finish()?;
    for var in lora.adapter_vars() {
        var.set(&waves(var.dims(), 1.0, DType::F32, &Device::Cpu)?)?;
    }
    let x = Tensor::ones((4, 8), DType::F32, &Device::Cpu)?;
    let run = |layer: &LoraLinear| layer.forward_t(&x, true)? - layer.forward_t(&x, false)?;
    lora.set_seed(1);
    let first = [run(&layers[0])?, run(&layers[1])?];
    assert_differ(&first[0], &first[1], "each layer has its own mask")?;
    lora.set_seed(1);
    assert_same(&run(&layers[0])?, &first[0], "the same seed")?;
    assert_same(&run(&layers[1])?, &first[1], "the same seed")?;
    Ok(())
}

/// A weight that is stored as [in, out], and one that is quantised.
#[test]
fn other_weights() -> Result<()> {
    use candle_core::quantized::{GgmlDType, QTensor};
    for device in devices() {
        let weight = waves(&[32, 8], 1.0, DType::F32, device)?;
        let bias = waves(&[8], 2.0, DType::F32, device)?;
        let stock = Linear::new(weight.t()?.contiguous()?, Some(bias.clone()));
        let quantized = QTensor::quantize(stock.weight(), GgmlDType::Q8_0)?;
        let tensors = [
            ("c_fc.weight".to_string(), weight),
            ("c_fc.bias".to_string(), bias.clone()),
        ];
        let vb = VarBuilder::from_tensors(tensors.into(), DType::F32, device);
        let lb = LoraBuilder::new(vb, &small(), ["c_fc", "q"])?;
        let transposed = lb.pp("c_fc").linear_transposed(32, 8)?;
        let quantized = lb.pp("q").linear_quantized(quantized.into(), Some(bias))?;
        let lora = lb.finish()?;
        let x = waves(&[3, 32], 0.3, DType::F32, device)?;
        assert_close(
            &transposed.forward(&x)?,
            &stock.forward(&x)?,
            1e-5,
            "transposed",
        )?;
        assert_close(
            &quantized.forward(&x)?,
            &stock.forward(&x)?,
            3e-2,
            "quantised",
        )?;
        // One module can't be merged: none is.
        assert_refused(lora.merge(), &["LoraLinear q", "quantised"]);
        assert!(lora.layers().iter().all(|layer| !layer.is_merged()));
    }
    Ok(())
}

#[test]
fn adapters_are_f32_beside_sixteen_bits() -> Result<()> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::BF16, &Device::Cpu);
    let lb = LoraBuilder::new(vb, &small(), ["a"])?;
    let layer = lb.pp("a").linear(8, 8)?;
    let lora = lb.finish()?;
    assert!(lora
        .adapter_vars()
        .iter()
        .all(|var| var.dtype() == DType::F32));
    let y = layer.forward(&waves(&[2, 8], 0.0, DType::BF16, &Device::Cpu)?)?;
    assert_eq!(y.dtype(), DType::BF16);
    assert!(y
        .to_dtype(DType::F32)?
        .sum_all()?
        .backward()?
        .get(&lora.adapter_vars()[1])
        .is_some());
    Ok(())
}
