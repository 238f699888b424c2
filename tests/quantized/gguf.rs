//! GGUF files with ternary tensors.

use super::*;
use crate::devices::devices;
use candle_core::quantized::gguf_file::Value;
use candle_core::{Module, Var};
use candle_fused::nn::quantized::Gguf;
use candle_fused::nn::QuantLinear;
use candle_fused::quant::{Packing, ScaleScope};
use std::io::Cursor;

const NAMES: [&str; 3] = ["small", "wide", "general"];

#[test]
fn values_of_the_gguf_package() -> Result<()> {
    for device in devices() {
        let expected = fixture("tq.safetensors", device)?;
        let mut file = Gguf::open(path("tq.gguf"))?;
        assert_eq!(file.tensors().len(), 7);
        let architecture = file.metadata().get("general.architecture");
        assert!(matches!(architecture, Some(Value::String(s)) if s == "llama"));
        for shape in NAMES {
            let mut codes = vec![];
            for kind in ["tq1_0", "tq2_0"] {
                let name = format!("{kind}.{shape}.weight");
                let weight = file.quantized(&name, device)?;
                assert_eq!(*weight.scheme(), Scheme::ternary(ScaleScope::Group(256)));
                let want = &expected[&name];
                assert_same(&weight.dequantize(DType::F32)?, want, &name)?;
                assert_same(&file.tensor(&name, device)?, want, &name)?;
                codes.push(weight.codes().to_vec2::<u8>()?);

                let x = signal(&[3, want.dims()[1]], 1, DType::F32, device)?;
                let y = x.matmul(&want.t()?)?;
                let layer = QuantLinear::new(weight.clone(), None)?;
                assert_near(&layer.forward(&x)?, &y, 1e-5, &name)?;

                let layer = PackedBitLinear::from_groups(&weight, None, None)?;
                let per = if shape == "wide" {
                    ScaleScope::Tensor
                } else {
                    ScaleScope::Row
                };
                assert_eq!(layer.weight().scheme().scope, per, "{name}");
                assert_same(&layer.weight().dequantize(DType::F32)?, want, &name)?;
                // x is rounded to 8 bits.
                assert_near(&layer.forward(&x)?, &y, 2e-2, &name)?;
            }
            assert_eq!(codes[0], codes[1], "{shape}");
        }
        let norm = file.tensor("norm.weight", device)?;
        assert_same(&norm, &expected["norm.weight"], "norm")?;
        let norm = file.qtensor("norm.weight", device)?.dequantize(device)?;
        assert_same(&norm, &expected["norm.weight"], "norm")?;
    }
    Ok(())
}

#[test]
fn errors_name_the_problem() -> Result<()> {
    let mut file = Gguf::open(path("tq.gguf"))?;
    let cpu = Device::Cpu;
    assert_refused(
        file.quantized("nothing", &cpu),
        &["tq.gguf", "no tensor \"nothing\""],
    );
    assert_refused(
        file.quantized("norm.weight", &cpu),
        &["norm.weight of type 0", "TQ1_0"],
    );
    assert_refused(file.qtensor("tq1_0.wide.weight", &cpu), &["of type 34"]);
    assert_refused(Gguf::open(path("nothing.gguf")), &["nothing.gguf"]);
    assert_refused(
        Gguf::open(path("tq.safetensors")),
        &["tq.safetensors", "the magic"],
    );
    let of = |bytes: &[u8]| Gguf::new(Cursor::new(bytes.to_vec()));
    assert_refused(of(b""), &["truncated: the magic"]);
    assert_refused(of(b"GGUF\x01\0\0\0"), &["version 1", "2 or 3"]);
    assert_refused(of(b"GGUF\x03\0\0\0"), &["truncated: the number of tensors"]);

    let good = std::fs::read(path("tq.gguf"))?;
    let mut file = of(&good[..good.len() - 8])?;
    // The last tensor in the file.
    assert_refused(
        file.tensor("norm.weight", &cpu),
        &["truncated: norm.weight has 1024 bytes"],
    );
    assert!(file.quantized("tq2_0.general.weight", &cpu).is_ok());
    Ok(())
}

/// Where a tensor's type stands, behind its name, the number of dims and two dims.
fn type_of(bytes: &[u8], name: &str) -> usize {
    let found = bytes.windows(name.len()).position(|w| w == name.as_bytes());
    found.expect("the name") + name.len() + 4 + 16
}

#[test]
fn unknown_types_hinder_nobody() -> Result<()> {
    let mut bytes = std::fs::read(path("tq.gguf"))?;
    let at = type_of(&bytes, "tq1_0.wide.weight");
    bytes[at..at + 4].copy_from_slice(&999u32.to_le_bytes());
    let mut file = Gguf::new(Cursor::new(&bytes))?;
    assert_eq!(file.tensors()["tq1_0.wide.weight"].type_id, 999);
    for name in ["tq2_0.wide.weight", "norm.weight"] {
        assert!(file.tensor(name, &Device::Cpu).is_ok());
    }
    let name = "tq1_0.wide.weight";
    assert_refused(file.tensor(name, &Device::Cpu), &["of type 999"]);
    assert_refused(file.quantized(name, &Device::Cpu), &["of type 999"]);
    assert_refused(file.qtensor(name, &Device::Cpu), &["of type 999"]);

    // A fourth code of two bits.
    let mut file = Gguf::new(Cursor::new(&bytes))?;
    let tensor = file.tensors()["tq2_0.small.weight"].clone();
    assert!(file.quantized("tq2_0.small.weight", &Device::Cpu).is_ok());
    let all: u64 = 3 * 66 + tensor.offset;
    let start = bytes.len() as u64 - 1024 - file.tensors()["norm.weight"].offset;
    bytes[(start + all) as usize - 66] = 0xff;
    let mut file = Gguf::new(Cursor::new(&bytes))?;
    let says = ["tq2_0.small.weight", "the code 3"];
    assert_refused(file.quantized("tq2_0.small.weight", &Device::Cpu), &says);
    Ok(())
}

/// Where groups of a row differ, floats are multiplied; a group of zeros fits every scale.
#[test]
fn one_scale_of_many() -> Result<()> {
    for device in devices() {
        let w = signal(&[3, 512], 1, DType::F32, device)?;
        let groups = quantize(&w, Scheme::ternary(ScaleScope::Group(256)))?;
        assert_refused(
            PackedBitLinear::from_groups(&groups, None, None),
            &["row 0", "QuantLinear"],
        );
        assert!(QuantLinear::new(groups, None).is_ok());
        // Two rows of one scale, of which one has zeros that were given none; and a row of zeros.
        let ones = Tensor::ones((1, 256), DType::F32, device)?;
        let zeros = ones.zeros_like()?;
        let rows = [[&ones, &ones], [&zeros, &ones], [&zeros, &zeros]];
        let rows = rows.map(|row| Tensor::cat(&row, 1));
        let rows = rows.into_iter().collect::<Result<Vec<_>>>()?;
        let w = Tensor::cat(&rows, 0)?;
        for packing in [Packing::Bits, Packing::Base3] {
            let scheme = Scheme::ternary(ScaleScope::Group(256)).with_packing(packing);
            let groups = quantize(&(&w * 0.5)?, scheme)?;
            let layer = PackedBitLinear::from_groups(&groups, None, None)?;
            assert_eq!(
                *layer.weight().scheme(),
                Scheme::ternary(ScaleScope::Tensor)
            );
            let (got, want) = (layer.weight(), &groups);
            let values = |q: &Quantized| q.dequantize(DType::F32);
            assert_same(&values(got)?, &values(want)?, "zeros")?;
            let x = Var::from_tensor(&signal(&[2, 512], 2, DType::F32, device)?)?.into_inner();
            let grads = layer.forward(&x)?.sum_all()?.backward()?;
            let want = values(want)?.sum_keepdim(0)?.broadcast_as((2, 512))?;
            assert_near(grads.get(&x).expect("dx"), &want.contiguous()?, 1e-5, "dx")?;
        }
    }
    Ok(())
}
