//! Files with any byte wrong or cut off at any: an error or other numbers, never a panic.

use super::*;
use candle_core::{safetensors, Module};
use candle_fused::nn::quantized::{
    hf_bit_linear_no_bias, mlx_linear_no_bias, Gguf, LinearClass, MlxQuantization, PackedLinear,
};
use candle_fused::nn::VarBuilder;
use candle_fused::quant::ScaleScope;
use std::io::Cursor;

/// The file cut off at many places, and with single bytes changed; most of them in its head.
fn damaged(good: &[u8], head: usize, check: impl Fn(&[u8]) -> bool) -> usize {
    let step = (good.len() / 100).max(1);
    let mut refused = 0;
    for end in (0..good.len()).filter(|end| *end < head || end % step == 0) {
        assert!(!check(&good[..end]), "whole at {end}");
    }
    for i in (0..good.len()).filter(|i| *i < head || i % step == 0) {
        for change in [0xff, 0x80, 0x01] {
            let mut bytes = good.to_vec();
            bytes[i] ^= change;
            refused += usize::from(!check(&bytes));
        }
    }
    refused
}

#[test]
fn gguf() -> Result<()> {
    let good = std::fs::read(path("tq.gguf"))?;
    let read = |bytes: &[u8]| {
        let all = |bytes: &[u8]| -> Result<()> {
            let mut file = Gguf::new(Cursor::new(bytes))?;
            let names: Vec<String> = file.tensors().keys().cloned().collect();
            let mut whole = Ok(());
            for name in names {
                for result in [
                    file.tensor(&name, &Device::Cpu).map(drop),
                    file.quantized(&name, &Device::Cpu).map(drop),
                    file.qtensor(&name, &Device::Cpu).map(drop),
                ] {
                    if let Err(e) = &result {
                        assert!(e.to_string().starts_with("gguf"), "{e}");
                    }
                }
                whole = whole.and(file.tensor(&name, &Device::Cpu).map(drop));
            }
            whole
        };
        all(bytes).is_ok()
    };
    assert!(read(&good));
    assert!(damaged(&good, 500, read) > 500);
    Ok(())
}

#[test]
fn layers_of_our_own() -> Result<()> {
    let layer = bit_layer(
        (4, 64),
        Scheme::ternary(ScaleScope::Row),
        DType::F16,
        &Device::Cpu,
    )?;
    let dir = TempDir::new("corrupt");
    let path = dir.path().join("layer.safetensors");
    safetensors::save(&layer.tensors("up")?.into_iter().collect(), &path)?;
    let good = std::fs::read(&path)?;
    let x = signal(&[2, 64], 1, DType::F32, &Device::Cpu)?;
    let read = |bytes: &[u8]| {
        let load = |bytes: &[u8]| -> Result<Tensor> {
            let tensors = safetensors::load_buffer(bytes, &Device::Cpu)?;
            let layer = PackedLinear::from_tensors(&tensors, "up")?;
            layer.forward(&x)
        };
        load(bytes).is_ok()
    };
    assert!(read(&good));
    assert!(damaged(&good, good.len(), read) > 500);
    Ok(())
}

#[test]
fn layers_of_others() -> Result<()> {
    type Load = fn(VarBuilder) -> Result<PackedLinear>;
    let hf: Load = |vb| {
        let vb = vb.pp("model.layers.1.bitlinear");
        hf_bit_linear_no_bias(16, 12, LinearClass::BitLinear, vb).map(Into::into)
    };
    let mlx: Load = |vb| {
        let (bits, group_size) = (4, 128);
        let config = MlxQuantization { bits, group_size };
        mlx_linear_no_bias(256, 6, config, vb).map(Into::into)
    };
    for (name, load) in [
        ("hf_bitnet.safetensors", hf),
        ("mlx_4_128.safetensors", mlx),
    ] {
        let good = std::fs::read(path(name))?;
        let read = |bytes: &[u8]| {
            let vb =
                VarBuilder::from_buffered_safetensors(bytes.to_vec(), DType::F32, &Device::Cpu);
            vb.and_then(load).is_ok()
        };
        assert!(read(&good), "{name}");
        assert!(damaged(&good, 100, read) > 50, "{name}");
    }
    Ok(())
}
