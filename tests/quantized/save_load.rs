//! Saving and loading packed layers.

use super::*;
use crate::devices::devices;
use candle_core::{safetensors, Module};
use candle_fused::nn::quantized::PackedLinear;
use candle_fused::nn::{QuantLinear, VarBuilder};
use candle_fused::ops::FrozenWeight;
use candle_fused::quant::{Levels, Packing, Rounding, ScaleScope};

/// Layers of all kinds, by names.
pub fn all(device: &Device) -> Result<Vec<(String, PackedLinear)>> {
    let mut layers: Vec<PackedLinear> = vec![];
    for scheme in [
        Scheme::ternary(ScaleScope::Tensor),
        Scheme::ternary(ScaleScope::Row),
        Scheme::sign(ScaleScope::Tensor),
        Scheme::new(Levels::Sign { centred: false }, ScaleScope::Row),
    ] {
        for dtype in DTYPES {
            let full = bit_layer((6, 67), scheme, dtype, device)?;
            let norm = Some(SubNorm::new(3e-7));
            layers.push(PackedBitLinear::new(full.weight().clone(), None, norm)?.into());
            layers.push(PackedBitLinear::new(full.weight().clone(), None, None)?.into());
            layers.push(full.into());
        }
    }
    let new = |grid, per| Scheme::new(grid, per);
    for scheme in [
        Scheme::mlx(2, 32),
        Scheme::mlx(4, 64),
        Scheme::mlx(8, 128),
        Scheme::int8(ScaleScope::Row),
        Scheme::uint8(ScaleScope::Tensor),
        Scheme::gradient(32, u64::MAX),
        new(Levels::ZeroPoint { bits: 2 }, ScaleScope::Group(64)),
        new(Levels::Sign { centred: true }, ScaleScope::Group(16)),
        Scheme::ternary(ScaleScope::Group(32)).with_packing(Packing::Base3),
        Scheme::mlx(4, 32).with_rounding(Rounding::Stochastic { seed: 5 }),
        Scheme {
            eps: 1.2345678e-7,
            ..Scheme::mlx(4, 32)
        },
    ] {
        let weight = quantize(&signal(&[5, 128], 1, DType::F32, device)?, scheme)?;
        let bias = signal(&[5], 2, DType::BF16, device)?;
        layers.push(QuantLinear::new(weight.clone(), None)?.into());
        layers.push(QuantLinear::new(weight, Some(bias))?.into());
    }
    let name = |i| format!("model.layers.{i}");
    Ok(layers
        .into_iter()
        .enumerate()
        .map(|(i, layer)| (name(i), layer))
        .collect())
}

fn assert_same_layer(got: &PackedLinear, want: &PackedLinear, what: &str) -> Result<()> {
    let codes = |layer: &PackedLinear| layer.weight().quantized().expect("codes").clone();
    assert_same_weight(&codes(got), &codes(want), what)?;
    let same = |got: Option<&Tensor>, want: Option<&Tensor>| match (got, want) {
        (Some(got), Some(want)) => assert_same(got, want, what),
        (got, want) => {
            assert!(got.is_none() && want.is_none(), "{what}");
            Ok(())
        }
    };
    same(got.bias(), want.bias())?;
    let norms = (got.norm(), want.norm());
    assert_eq!(
        norms.0.map(SubNorm::eps),
        norms.1.map(SubNorm::eps),
        "{what}"
    );
    same(
        norms.0.and_then(SubNorm::weight),
        norms.1.and_then(SubNorm::weight),
    )?;
    let (_, cols) = want.weight().dims()?;
    let x = signal(&[3, cols], 7, DType::F32, &want.weight().device())?;
    assert_same(&got.forward(&x)?, &want.forward(&x)?, what)
}

/// All of them in one file, bit for bit, by both ways to load.
#[test]
fn layers_come_back_bit_for_bit() -> Result<()> {
    for device in devices() {
        let layers = all(device)?;
        let mut tensors = Tensors::new();
        for (name, layer) in &layers {
            tensors.extend(layer.tensors(name)?);
        }
        let dir = TempDir::new("packed");
        let path = dir.path().join("model.safetensors");
        safetensors::save(&tensors, &path)?;
        let loaded = safetensors::load(&path, device)?;
        // The builder's dtype is that of other layers.
        let data = std::fs::read(&path)?;
        let vb = VarBuilder::from_buffered_safetensors(data, DType::F16, device)?;
        for (name, layer) in &layers {
            let what = format!(
                "{name}: {:?}",
                layer.weight().quantized().map(|w| *w.scheme())
            );
            assert_same_layer(&PackedLinear::from_tensors(&loaded, name)?, layer, &what)?;
            assert_same_layer(&PackedLinear::load(vb.pp(name))?, layer, &what)?;
            match layer.weight() {
                FrozenWeight::BitNet(_) => {
                    let again = PackedBitLinear::load(vb.pp(name))?;
                    assert_same_layer(&again.into(), layer, &what)?;
                    let says = ["QuantLinear", "got the tensors of a PackedBitLinear"];
                    assert_refused(QuantLinear::from_tensors(&loaded, name), &says);
                }
                _ => {
                    let again = QuantLinear::load(vb.pp(name))?;
                    assert_same_layer(&again.into(), layer, &what)?;
                    let says = ["PackedBitLinear", "got the tensors of a QuantLinear"];
                    assert_refused(PackedBitLinear::from_tensors(&loaded, name), &says);
                }
            }
        }
        // Without a prefix, too.
        let alone = layers[0].1.tensors("")?.into_iter();
        let alone = alone.map(|(name, t)| Ok((name, t.to_device(device)?)));
        let alone = alone.collect::<Result<Tensors>>()?;
        assert!(alone.contains_key("scheme"));
        assert_same_layer(
            &PackedLinear::from_tensors(&alone, "")?,
            &layers[0].1,
            "alone",
        )?;
    }
    Ok(())
}

/// The text is what the docs say.
#[test]
fn the_scheme_is_a_text() -> Result<()> {
    let layer = bit_layer(
        (4, 8),
        Scheme::ternary(ScaleScope::Tensor),
        DType::BF16,
        &Device::Cpu,
    )?;
    let tensors: Tensors = layer.tensors("up")?.into_iter().collect();
    let text = String::from_utf8(tensors["up.scheme"].to_vec1()?).expect("a text");
    assert_eq!(
        text,
        r#"{"format":1,"layer":"bit_linear","shape":[4,8],"grid":"ternary","per":"tensor","rounding":"nearest","packing":"bits","eps":"1e-5","bias":"bf16","norm":{"eps":"1e-6","weight":"bf16"}}"#
    );
    let mut names: Vec<&str> = tensors.keys().map(String::as_str).collect();
    names.sort();
    let expected = [
        "up.bias",
        "up.rms_norm.weight",
        "up.scales",
        "up.scheme",
        "up.weight",
    ];
    assert_eq!(names, expected);
    Ok(())
}

#[test]
fn wrong_and_missing_parts_are_named() -> Result<()> {
    for device in devices() {
        let w = signal(&[4, 64], 1, DType::F32, device)?;
        let weight = quantize(&w, Scheme::mlx(4, 32))?;
        let bias = Some(signal(&[4], 2, DType::F16, device)?);
        let quant = PackedLinear::from(QuantLinear::new(weight, bias)?);
        let bit = bit_layer(
            (4, 64),
            Scheme::ternary(ScaleScope::Row),
            DType::F32,
            device,
        )?;
        for layer in [quant.clone(), bit.clone().into()] {
            let good = layer.tensors("up")?;
            for (name, tensor) in &good {
                let without = good.iter().filter(|(other, _)| other != name).cloned();
                let without: Tensors = without.collect();
                let says = ["PackedLinear", name, "missing"];
                assert_refused(PackedLinear::from_tensors(&without, "up"), &says);
                let vb = VarBuilder::from_tensors(without.clone(), DType::F32, device);
                assert_refused(PackedLinear::load(vb.pp("up")), &says);

                let with = |tensor: Tensor| {
                    let mut all = without.clone();
                    all.insert(name.clone(), tensor);
                    PackedLinear::from_tensors(&all, "up")
                };
                let other = tensor.to_dtype(DType::I64)?;
                assert_refused(with(other), &[name, "I64", "expected"]);
                if !name.ends_with("scheme") {
                    let longer = tensor.pad_with_zeros(0, 0, 1)?;
                    assert_refused(with(longer), &[name, "expected"]);
                }
            }
        }
        let with_text = |text: &str| {
            let mut all: Tensors = bit.tensors("")?.into_iter().collect();
            let text = Tensor::from_slice(text.as_bytes(), text.len(), device)?;
            all.insert("scheme".into(), text);
            PackedLinear::from_tensors(&all, "")
        };
        let good = bit.tensors("")?[0].1.to_vec1::<u8>()?;
        let good = String::from_utf8(good).expect("a text");
        assert!(with_text(&good).is_ok());
        for (from, to, says) in [
            ("{", "[", "scheme"),
            (
                "\"format\":1",
                "\"format\":2",
                "got format Some(Number(2)), expected 1",
            ),
            ("\"format\":1,", "", "format None"),
            ("\"ternary\"", "\"quinary\"", "quinary"),
            ("\"ternary\"", "{\"affine\":{\"bits\":3}}", "3 bits"),
            ("\"row\"", "{\"group\":0}", "groups of 0"),
            ("\"row\"", "{\"group\":48}", "groups of 48"),
            ("\"row\"", "{\"group\":32}", "scales"),
            ("\"row\"", "\"tensor\"", "scales"),
            ("[4,64]", "[4,63]", "the norm"),
            ("[4,64]", "[18446744073709551615,64]", "memory"),
            ("[4,64]", "[4,4,64]", "scheme"),
            ("\"bit_linear\"", "\"quant_linear\"", "got a norm"),
            ("\"1e-5\"", "\"a\"", "float"),
            ("\"1e-5\"", "\"NaN\"", "eps = NaN"),
            ("\"bias\"", "\"bios\"", "bios"),
        ] {
            assert!(good.contains(from), "{from}");
            match says {
                // 63 codes need as many bytes as 64 do.
                "the norm" => {
                    assert_refused(with_text(&good.replace(from, to)), &["rms_norm.weight"])
                }
                says => assert_refused(with_text(&good.replace(from, to)), &[says]),
            }
        }
        let mut all: Tensors = bit.tensors("")?.into_iter().collect();
        let mut bytes = all["weight"].to_vec2::<u8>()?;
        bytes[2][5] = 0b0011_0001;
        all.insert("weight".into(), Tensor::new(bytes, device)?);
        let says = ["weight", "got the code 3"];
        assert_refused(PackedLinear::from_tensors(&all, ""), &says);
    }
    Ok(())
}
