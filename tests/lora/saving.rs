//! Saving over an adapter that is there already, and failing or being killed on the way.

use super::*;
use crate::pools::is_emulated;
use candle_fused::nn::lora::{linear_no_bias, LoraBuilder, LoraModel};
use std::process::{Command, Stdio};

const SIZE: usize = 256;
/// Says to the test binary, as a child, where to save.
const SAVE_TO: &str = "CANDLE_FUSED_TEST_SAVE_TO";

/// One layer with an adapter whose A and B are `value` everywhere.
fn layer(rank: usize, value: f64) -> Result<(LoraLinear, LoraModel)> {
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    let config = LoraConfig {
        rank,
        alpha: value,
        ..Default::default()
    };
    let builder = LoraBuilder::new(vb, &config, ["up"])?;
    let layer = linear_no_bias(SIZE, SIZE, builder.pp("up"))?;
    let model = builder.finish()?;
    for var in model.adapter_vars() {
        var.set(&Tensor::ones(var.dims(), DType::F32, &Device::Cpu)?.affine(value, 0.)?)?;
    }
    Ok((layer, model))
}

fn model(rank: usize, value: f64) -> Result<LoraModel> {
    layer(rank, value).map(|(_, model)| model)
}

/// Rank, alpha and the value of all variables of what is in `dir`.
fn read(dir: &Path) -> Result<(usize, f64, f64)> {
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    let builder = LoraBuilder::from_peft(vb, dir)?;
    linear_no_bias(SIZE, SIZE, builder.pp("up"))?;
    let model = builder.finish()?;
    let adapter = model.layers()[0].adapter("default").expect("the adapter");
    let all: Vec<f64> = [values(adapter.a())?, values(adapter.b())?].concat();
    assert!(all.iter().all(|&value| value == all[0]));
    Ok((adapter.config().rank, adapter.config().alpha, all[0]))
}

#[test]
fn a_save_that_fails_changes_nothing() -> Result<()> {
    let dir = TempDir::new("failing-save");
    model(2, 3.)?.save_peft("default", dir.path())?;
    // A directory where the tensors should go can't be replaced by a file.
    let (tensors, aside) = (
        dir.path().join("adapter_model.safetensors"),
        dir.path().join("aside"),
    );
    std::fs::rename(&tensors, &aside)?;
    std::fs::create_dir(&tensors)?;
    assert!(model(4, 5.)?.save_peft("default", dir.path()).is_err());
    std::fs::remove_dir(&tensors)?;
    std::fs::rename(&aside, &tensors)?;
    assert_eq!(read(dir.path())?, (2, 3., 3.));
    model(4, 5.)?.save_peft("default", dir.path())?;
    assert_eq!(read(dir.path())?, (4, 5., 5.));
    Ok(())
}

/// PEFT makes adapters whose rank is above the layer's inputs and outputs.
#[test]
fn a_rank_above_the_layers_size() -> Result<()> {
    let dir = TempDir::new("high-rank");
    model(SIZE + 44, 3.)?.save_peft("default", dir.path())?;
    assert_eq!(read(dir.path())?, (SIZE + 44, 3., 3.));
    // A damaged config is refused before anything is allocated for it.
    let path = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replace("\"r\": 300", "\"r\": 30000000000"))?;
    assert_refused(read(dir.path()), &["lora_A", "[300, 256]", "30000000000"]);
    Ok(())
}

#[test]
fn what_is_loaded_while_merged_counts_at_once() -> Result<()> {
    let dir = TempDir::new("merged-load");
    let (layer, model) = layer(2, 3.)?;
    model.save_peft("default", dir.path())?;
    let x = waves(&[2, SIZE], 0.2, DType::F32, &Device::Cpu)?;
    model.merge()?;
    let saved = layer.forward(&x)?;
    model.unmerge();
    for var in model.adapter_vars() {
        var.set(&var.zeros_like()?)?;
    }
    model.merge()?;
    assert_differ(&layer.forward(&x)?, &saved, "zeros")?;
    model.load_peft("default", dir.path())?;
    assert_same(&layer.forward(&x)?, &saved, "loaded while merged")?;
    Ok(())
}

/// Whatever moment the process is killed at, what it leaves is one of the adapters that it saved.
#[test]
fn a_save_that_is_killed_leaves_a_whole_adapter() -> Result<()> {
    let dir = TempDir::new("killed-save");
    let dir = dir.path();
    model(2, 3.)?.save_peft("default", dir)?;
    for after in 0..12 {
        let ready = dir.join("ready");
        let _ = std::fs::remove_file(&ready);
        let child = Command::new(std::env::current_exe()?)
            .args(["--exact", "lora::saving::saves_until_it_is_killed"])
            .env(SAVE_TO, dir)
            .stdout(Stdio::null())
            .spawn();
        if child.is_err() && is_emulated() {
            return Ok(());
        }
        let mut child = child?;
        while !ready.exists() && child.try_wait()?.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_micros(700 * after));
        child.kill()?;
        child.wait()?;
        let found = read(dir)?;
        assert!([(2, 3., 3.), (4, 5., 5.)].contains(&found), "{found:?}");
    }
    Ok(())
}

/// The child of the test above; on its own it does nothing.
#[test]
fn saves_until_it_is_killed() -> Result<()> {
    let Some(dir) = std::env::var_os(SAVE_TO) else {
        return Ok(());
    };
    let models = [model(2, 3.)?, model(4, 5.)?];
    std::fs::write(Path::new(&dir).join("ready"), [])?;
    for model in models.iter().cycle() {
        model.save_peft("default", &dir)?;
    }
    Ok(())
}
