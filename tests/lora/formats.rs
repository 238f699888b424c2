//! Files that PEFT and mlx-lm wrote (tests/fixtures/make_lora_fixtures.py): our outputs are theirs, and what we write is
//! what we read, bit for bit.

use super::*;
use crate::devices::devices;
use candle_fused::nn::lora::{conv2d, conv2d_no_bias, embedding, linear, linear_no_bias};
use candle_fused::nn::lora::{LoraBuilder, LoraModel};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

pub fn fixture(name: &str) -> PathBuf {
    crate::fixtures::fixture("lora").join(name)
}

pub struct Attention {
    pub q_proj: LoraLinear,
    pub v_proj: LoraLinear,
}

impl Attention {
    fn new(vb: LoraBuilder) -> Result<Self> {
        Ok(Attention {
            q_proj: linear(6, 8, vb.pp("q_proj"))?,
            v_proj: linear_no_bias(8, 6, vb.pp("v_proj"))?,
        })
    }
}

/// The models of the script.
pub enum Model {
    Linears(Vec<Attention>, Option<LoraLinear>),
    Tokens(LoraEmbedding, LoraLinear),
    Image(LoraConv2d, LoraConv2d),
    Grouped(LoraConv2d),
}

impl Model {
    pub fn linears(vb: &LoraBuilder) -> Result<Self> {
        Ok(Self::Linears(
            Self::blocks(vb)?,
            Some(linear(6, 3, vb.pp("head"))?),
        ))
    }

    fn blocks(vb: &LoraBuilder) -> Result<Vec<Attention>> {
        (0..2)
            .map(|i| Attention::new(vb.pp("layers").pp(i)))
            .collect()
    }

    fn new(fixture: &str, vb: &LoraBuilder) -> Result<Self> {
        Ok(match fixture {
            name if name.starts_with("mlx") => Self::Linears(Self::blocks(vb)?, None),
            "peft_layers" => Self::linears(&vb.pp("model"))?,
            name if name.contains("embedding") => Self::Tokens(
                embedding(11, 6, vb.pp("embed"))?,
                linear(6, 3, vb.pp("head"))?,
            ),
            name if name.contains("groups") => {
                let config = Conv2dConfig {
                    padding: 1,
                    groups: 2,
                    ..Default::default()
                };
                Self::Grouped(conv2d(4, 6, 3, config, vb.pp("first"))?)
            }
            name if name.contains("conv2d") => {
                let config = Conv2dConfig {
                    padding: 1,
                    stride: 2,
                    ..Default::default()
                };
                let point = conv2d_no_bias(4, 6, 1, Default::default(), vb.pp("point"))?;
                Self::Image(conv2d(3, 4, 3, config, vb.pp("first"))?, point)
            }
            _ => Self::linears(vb)?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Linears(layers, head) => {
                let mut x = x.clone();
                for layer in layers {
                    x = (&x + layer.v_proj.forward(&layer.q_proj.forward(&x)?.relu()?)?)?;
                }
                head.as_ref().map_or(Ok(x.clone()), |head| head.forward(&x))
            }
            Self::Tokens(embed, head) => head.forward(&embed.forward(x)?),
            Self::Image(first, point) => point.forward(&first.forward(x)?.relu()?),
            Self::Grouped(first) => first.forward(x),
        }
    }
}

/// The base weights, an input and the package's output for it.
pub fn known(name: &str, device: &Device) -> Result<HashMap<String, Tensor>> {
    candle_core::safetensors::load(fixture(name).join("model.safetensors"), device)
}

pub fn base(tensors: &HashMap<String, Tensor>, device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_tensors(tensors.clone(), DType::F32, device)
}

fn load(name: &str, device: &Device) -> Result<(Model, LoraModel)> {
    let vb = base(&known(name, device)?, device);
    let lb = match name.starts_with("mlx") {
        true => LoraBuilder::from_mlx(vb, fixture(name))?,
        false => LoraBuilder::from_peft(vb, fixture(name))?,
    };
    Ok((Model::new(name, &lb)?, lb.finish()?))
}

const PEFT: [&str; 11] = [
    "peft_list",
    "peft_patterns",
    "peft_regex",
    "peft_all_linear",
    "peft_layers",
    "peft_embedding",
    "peft_conv2d",
    "peft_conv2d_groups",
    "peft_dora",
    "peft_dora_embedding",
    "peft_dora_conv2d",
];

const MLX: [&str; 3] = ["mlx_lora", "mlx_last_layer", "mlx_dora"];

#[test]
fn outputs_are_the_packages() -> Result<()> {
    for device in devices() {
        for name in PEFT.into_iter().chain(MLX) {
            let known = known(name, device)?;
            let (x, y) = (&known["input"], &known["output"]);
            let (model, lora) = load(name, device)?;
            assert_close(&model.forward(x)?, y, 2e-5, name)?;
            if name != "peft_conv2d_groups" {
                lora.merge()?;
                assert_close(&model.forward(x)?, y, 2e-5, &format!("{name} merged"))?;
                lora.unmerge();
            }
            lora.disable();
            assert_differ(&model.forward(x)?, y, name)?;
        }
    }
    Ok(())
}

/// Names, shapes, dtypes and bytes of a safetensors file.
fn contents(path: PathBuf) -> BTreeMap<String, (Vec<usize>, String, Vec<u8>)> {
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let entry = |(name, view): (String, safetensors::tensor::TensorView)| {
        let dtype = format!("{:?}", view.dtype());
        (name, (view.shape().to_vec(), dtype, view.data().to_vec()))
    };
    file.tensors().into_iter().map(entry).collect()
}

fn json(path: PathBuf) -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    serde_json::from_str(&text).expect("a JSON object")
}

#[test]
fn what_is_read_is_written() -> Result<()> {
    for device in devices() {
        for name in PEFT.into_iter().chain(MLX) {
            let (_, lora) = load(name, device)?;
            let dir = TempDir::new(name);
            let file = match name.starts_with("mlx") {
                true => {
                    lora.save_mlx("default", dir.path())?;
                    "adapters.safetensors"
                }
                false => {
                    lora.save_peft("default", dir.path())?;
                    "adapter_model.safetensors"
                }
            };
            let (ours, theirs) = (
                contents(dir.path().join(file)),
                contents(fixture(name).join(file)),
            );
            assert!(ours.len() >= 2 && ours == theirs, "{name}: other tensors");
            let config = "adapter_config.json";
            let (ours, theirs) = (
                json(dir.path().join(config)),
                json(fixture(name).join(config)),
            );
            assert_eq!(ours, theirs, "{name}");
        }
    }
    Ok(())
}

/// A model that was built with other targets takes PEFT's adapter under a name of its own.
#[test]
fn adapters_are_loaded_beside_others() -> Result<()> {
    for device in devices() {
        let known = known("peft_list", device)?;
        let lb = LoraBuilder::new(base(&known, device), &config(), ["head"])?;
        let model = Model::new("peft_list", &lb)?;
        let lora = lb.finish()?;
        let x = &known["input"];
        let start = model.forward(x)?;
        lora.load_peft("theirs", fixture("peft_list"))?;
        assert_same(&model.forward(x)?, &start, "not active yet")?;
        lora.set_adapter("theirs")?;
        assert_close(&model.forward(x)?, &known["output"], 2e-5, "theirs")?;
        lora.set_adapter("default")?;
        assert_same(&model.forward(x)?, &start, "ours again")?;

        let says = ["default", "head", "new name"];
        assert_refused(lora.load_peft("default", fixture("peft_list")), &says);
        lora.remove_adapter("theirs")?;
        assert_refused(lora.set_adapter("theirs"), &["theirs", "default"]);
    }
    Ok(())
}

#[test]
fn from_one_format_to_the_other() -> Result<()> {
    let device = &Device::Cpu;
    let known = known("peft_all_linear", device)?;
    let (_, lora) = load("peft_all_linear", device)?;
    let dir = TempDir::new("to-mlx");
    lora.save_mlx("default", dir.path())?;
    let tensors = contents(dir.path().join("adapters.safetensors"));
    assert_eq!(tensors["layers.0.q_proj.lora_a"].0, [6, 2]);
    assert_eq!(tensors["layers.0.q_proj.lora_b"].0, [2, 8]);
    let config = json(dir.path().join("adapter_config.json"));
    assert_eq!(config["lora_parameters"]["scale"], 1.5);

    let lb = LoraBuilder::from_mlx(base(&known, device), dir.path())?;
    let model = Model::new("peft_all_linear", &lb)?;
    let lora = lb.finish()?;
    assert_close(
        &model.forward(&known["input"])?,
        &known["output"],
        2e-5,
        "by mlx-lm's files",
    )?;
    lora.save_peft("default", dir.path().join("back"))?;
    let file = "adapter_model.safetensors";
    let (back, first) = (
        dir.path().join("back").join(file),
        fixture("peft_all_linear").join(file),
    );
    assert_eq!(contents(back), contents(first));

    let (_, lora) = load("peft_patterns", device)?;
    assert_refused(
        lora.save_mlx("default", dir.path()),
        &["one rank and scale", "layers.0.q_proj"],
    );
    let (_, lora) = load("peft_conv2d", device)?;
    assert_refused(
        lora.save_mlx("default", dir.path()),
        &["LoraConv2d", "mlx-lm"],
    );
    let (_, lora) = load("peft_dora_embedding", device)?;
    assert_refused(
        lora.save_mlx("default", dir.path()),
        &["LoraEmbedding embed", "DoRA"],
    );
    Ok(())
}

/// Files in 16 bits stay so, unless another dtype is asked for.
#[test]
fn dtypes_are_the_files() -> Result<()> {
    let device = &Device::Cpu;
    let known = known("peft_list", device)?;
    let dir = TempDir::new("dtypes");
    let build = |lb: LoraBuilder| {
        Model::new("peft_list", &lb)?;
        lb.finish()
    };
    let lb = LoraBuilder::from_peft(base(&known, device), fixture("peft_list"))?;
    build(lb.adapter_dtype(DType::BF16))?.save_peft("default", dir.path())?;
    let halves = contents(dir.path().join("adapter_model.safetensors"));
    assert!(halves.values().all(|(_, dtype, _)| dtype == "BF16"));

    let lora = build(LoraBuilder::from_peft(base(&known, device), dir.path())?)?;
    assert!(lora
        .adapter_vars()
        .iter()
        .all(|var| var.dtype() == DType::BF16));
    let again = dir.path().join("again");
    lora.save_peft("default", &again)?;
    assert_eq!(contents(again.join("adapter_model.safetensors")), halves);
    Ok(())
}
