//! What is refused, and how it is said.

use super::formats::{base, fixture, known, Model};
use super::*;
use candle_fused::nn::lora::{LoraBuilder, LoraModel, PeftConfig, Targets};
use serde_json::{json, Value};

fn layer(shape: Shape, config: &LoraConfig) -> Result<Adapters> {
    Ok(build(shape, config, DType::F32, &Device::Cpu)?.adapters)
}

#[test]
fn configs() {
    let rank = |rank| LoraConfig { rank, ..config() };
    for shape in SHAPES {
        let name = format!("Lora{shape:?}");
        assert_refused(layer(shape, &rank(0)), &[&name, "rank 0", "1 or more"]);
        assert_refused(layer(shape, &rank(1 << 60)), &[&name, "memory"]);
        // More than the layer has inputs or outputs, which PEFT takes too.
        assert!(layer(shape, &rank(12)).is_ok());
    }
    for dropout in [1.0, -0.1, f32::NAN] {
        let config = LoraConfig {
            dropout,
            ..config()
        };
        assert_refused(
            layer(Shape::Linear, &config),
            &["dropout", "0 ≤ dropout < 1"],
        );
    }
    for alpha in [f64::NAN, f64::INFINITY] {
        assert_refused(
            layer(Shape::Linear, &LoraConfig { alpha, ..config() }),
            &["alpha", "finite"],
        );
    }
}

#[test]
fn shapes_of_the_base() -> Result<()> {
    let device = &Device::Cpu;
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, device).pp("up");
    let cube = Tensor::zeros((3, 3, 3), DType::F32, device)?;
    let linear = LoraLinear::new(Linear::new(cube.clone(), None), &config(), vb.clone());
    assert_refused(linear, &["LoraLinear up", "[3, 3, 3]", "[out, in]"]);
    let conv = LoraConv2d::new(Conv2d::new(cube, None, CONV), &config(), vb.clone());
    assert_refused(
        conv,
        &[
            "LoraConv2d up",
            "[3, 3, 3]",
            "[out, in / groups, height, width]",
        ],
    );

    let groups = Conv2dConfig {
        groups: 2,
        ..Default::default()
    };
    let base = || {
        Conv2d::new(
            Tensor::zeros((6, 2, 3, 3), DType::F32, device).unwrap(),
            None,
            groups,
        )
    };
    assert_refused(
        LoraConv2d::new(base(), &config(), vb.clone()),
        &["rank 3", "2 groups"],
    );
    let even = LoraConfig {
        rank: 2,
        ..config()
    };
    let dora = LoraConfig {
        use_dora: true,
        ..even.clone()
    };
    assert_refused(
        LoraConv2d::new(base(), &dora, vb.clone()),
        &["use_dora", "2 groups"],
    );
    let layer = LoraConv2d::new(base(), &even, vb)?;
    assert_refused(layer.merge(), &["merge", "2 groups"]);
    Ok(())
}

#[test]
fn inputs() -> Result<()> {
    let device = &Device::Cpu;
    let linear = build(Shape::Linear, &config(), DType::F32, device)?;
    let wide = Tensor::zeros((2, 8), DType::F32, device)?;
    assert_refused(
        linear.layer.forward_t(&wide, false),
        &["[9, 7]", "last dim of 8"],
    );
    let half = Tensor::zeros((2, 7), DType::F16, device)?;
    assert_refused(
        linear.layer.forward_t(&half, false),
        &["weight", "F32", "F16"],
    );
    let embedding = build(Shape::Embedding, &config(), DType::F32, device)?;
    assert_refused(
        embedding.layer.forward_t(&wide, false),
        &["LoraEmbedding", "F32", "u32"],
    );
    let beyond = Tensor::new(&[11u32], device)?;
    assert!(embedding.layer.forward_t(&beyond, false).is_err());
    Ok(())
}

#[test]
fn names_of_adapters() -> Result<()> {
    let adapters = layer(Shape::Linear, &config())?;
    let vars = VarMap::new();
    let vb = || VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    assert_refused(
        adapters.add_adapter("default", &config(), vb()),
        &["default", "already"],
    );
    assert_refused(adapters.add_adapter("", &config(), vb()), &["without dots"]);
    assert_refused(
        adapters.add_adapter("a.b", &config(), vb()),
        &["a.b", "without dots"],
    );
    assert_refused(adapters.set_adapter("other"), &["other", "default"]);
    assert_refused(adapters.remove_adapter("other"), &["other", "default"]);
    adapters.remove_adapter("default")?;
    assert_refused(adapters.merge(), &["no active adapter"]);
    Ok(())
}

/// With PEFT's `peft_list` changed before it is read.
fn changed(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut std::collections::HashMap<String, Tensor>),
) -> Result<LoraModel> {
    let dir = TempDir::new(name);
    let text = std::fs::read_to_string(fixture("peft_list").join("adapter_config.json"))?;
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    config(&mut value);
    std::fs::write(dir.path().join("adapter_config.json"), value.to_string())?;
    let file = "adapter_model.safetensors";
    let mut all = candle_core::safetensors::load(fixture("peft_list").join(file), &Device::Cpu)?;
    tensors(&mut all);
    candle_core::safetensors::save(&all, dir.path().join(file))?;
    let vb = base(&known("peft_list", &Device::Cpu)?, &Device::Cpu);
    let lb = LoraBuilder::from_peft(vb, dir.path())?;
    Model::linears(&lb)?;
    lb.finish()
}

#[test]
fn files_that_do_not_fit() {
    let key = "base_model.model.layers.0.q_proj.lora_A.weight";
    let other = "base_model.model.layers.0.v_proj.lora_B.weight";
    let missing = changed(
        "missing",
        |_| {},
        |t| {
            t.remove(key);
            t.remove(other);
        },
    );
    assert_refused(
        missing,
        &["adapter_model.safetensors", "missing keys", key, other],
    );
    let strange = "base_model.model.layers.7.q_proj.lora_A.weight";
    let unexpected = changed(
        "unexpected",
        |_| {},
        |t| {
            let value = t[key].clone();
            t.insert(strange.into(), value);
        },
    );
    assert_refused(unexpected, &["unexpected keys", strange]);
    let shape = changed(
        "shape",
        |_| {},
        |t| {
            let value = Tensor::zeros((4, 7), DType::F32, &Device::Cpu).expect("zeros");
            t.insert(key.into(), value);
        },
    );
    assert_refused(shape, &[key, "[4, 7]", "[4, 6]"]);
    let dtype = changed(
        "dtype",
        |_| {},
        |t| {
            let value = Tensor::zeros((4, 6), DType::U32, &Device::Cpu).expect("zeros");
            t.insert(key.into(), value);
        },
    );
    assert_refused(dtype, &[key, "U32", "float"]);
    let rank = changed("rank", |c| c["r"] = json!(3), |_| {});
    assert_refused(rank, &[key, "[4, 6]", "[3, 6]"]);
    let dora = changed("dora", |c| c["use_dora"] = json!(true), |_| {});
    assert_refused(
        dora,
        &["missing keys", "layers.0.q_proj.lora_magnitude_vector"],
    );
    let none = changed("none", |c| c["target_modules"] = json!(["gate"]), |_| {});
    assert_refused(none, &["unknown module", "gate", "layers.0.q_proj"]);
    let whole = changed("whole", |_| {}, |_| {});
    assert!(whole.is_ok(), "the fixture itself is refused");
}

#[test]
fn configs_that_are_not_supported() {
    let refused = |field: &str, value: Value, says: &[&str]| {
        let name = format!("refused-{field}");
        let result = changed(&name, |c| c[field] = value, |_| {});
        assert_refused(result, &[&["adapter_config.json", field], says].concat());
    };
    refused("peft_type", json!("LOHA"), &["LOHA", "LORA"]);
    refused("bias", json!("all"), &["all", "none"]);
    refused("modules_to_save", json!(["lm_head"]), &["lm_head", "null"]);
    refused("init_lora_weights", json!("pissa"), &["pissa", "gaussian"]);
    refused("lora_bias", json!(true), &["true", "false"]);
    refused("layer_replication", json!([[0, 1]]), &["null"]);
    refused("trainable_token_indices", json!([1]), &["null"]);
    refused("target_parameters", json!(["x"]), &["null"]);
    refused("layers_to_transform", json!("one"), &["one", "number"]);
    refused("r", json!("eight"), &["eight"]);
    let none = changed("no-targets", |c| c["target_modules"] = Value::Null, |_| {});
    assert_refused(none, &["got no target_modules", "all-linear"]);
    let regex = changed("regex", |c| c["target_modules"] = json!("(q_proj"), |_| {});
    assert_refused(regex, &["target_modules", "(q_proj"]);
}

#[test]
fn files_that_are_not_there() {
    let vb = || VarBuilder::zeros(DType::F32, &Device::Cpu);
    let none = LoraBuilder::from_peft(vb(), "/nowhere/at/all").map(drop);
    assert_refused(none, &["/nowhere/at/all/adapter_model.safetensors"]);
    let mlx = LoraBuilder::from_mlx(vb(), fixture("peft_list")).map(drop);
    assert_refused(mlx, &["adapters.safetensors"]);
    let dir = TempDir::new("broken");
    std::fs::copy(
        fixture("peft_list").join("adapter_model.safetensors"),
        dir.path().join("adapter_model.safetensors"),
    )
    .expect("a copy");
    std::fs::write(dir.path().join("adapter_config.json"), "{ \"r\": ").expect("a file");
    assert_refused(
        LoraBuilder::from_peft(vb(), dir.path()).map(drop),
        &["adapter_config.json"],
    );
}

#[test]
fn builders() -> Result<()> {
    let vars = VarMap::new();
    let vb = || VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let lb = LoraBuilder::new(vb(), &config(), ["up"])?;
    lb.pp("up").linear(4, 4)?;
    assert_refused(lb.pp("up").linear(4, 4), &["LoraBuilder", "up", "twice"]);
    let lb = LoraBuilder::new(
        vb(),
        &LoraConfig {
            rank: 0,
            ..config()
        },
        ["up"],
    )?;
    assert_refused(
        lb.pp("mlp.up").linear(4, 9).map(drop),
        &["LoraLinear mlp.up", "rank 0", "1 or more"],
    );
    let regex = LoraBuilder::new(vb(), &config(), Targets::Regex("(".into()));
    assert_refused(regex.map(drop), &["target_modules", "("]);
    let mut config = PeftConfig::new(&config(), ["up"].into());
    config.rank_pattern.insert("[", 2);
    assert_refused(
        LoraBuilder::from_config(vb(), config).map(drop),
        &["regex", "["],
    );
    Ok(())
}
