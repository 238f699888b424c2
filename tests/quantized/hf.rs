//! BitNet checkpoints as transformers writes and runs them.

use super::*;
use crate::devices::devices;
use candle_core::Module;
use candle_fused::nn::quantized::{
    hf_bit_linear, hf_bit_linear_no_bias, hf_weight, HfConfig, LinearClass,
};
use candle_fused::nn::{BitLinear, VarBuilder};
use candle_fused::quant::ScaleScope;

const CLASSES: [(&str, LinearClass); 2] = [
    ("bitlinear", LinearClass::BitLinear),
    ("autobitlinear", LinearClass::AutoBitLinear),
];

#[test]
fn outputs_of_transformers() -> Result<()> {
    for device in devices() {
        let expected = fixture("hf_bitnet_expected.safetensors", device)?;
        for (number, (out, cols), bias, dtype) in [
            (0, (24, 40), false, DType::F32),
            (1, (12, 16), true, DType::F32),
            (2, (12, 16), false, DType::BF16),
        ] {
            for (kind, class) in CLASSES {
                let name = format!("model.layers.{number}.{kind}");
                let get = |part: &str| &expected[&format!("{name}.{part}")];
                let vb = |dtype| {
                    let data = std::fs::read(path("hf_bitnet.safetensors"))?;
                    VarBuilder::from_buffered_safetensors(data, dtype, device)
                };
                let load = |class| match bias {
                    true => hf_bit_linear(cols, out, class, vb(dtype)?.pp(&name)),
                    false => hf_bit_linear_no_bias(cols, out, class, vb(dtype)?.pp(&name)),
                };
                let layer = load(class)?;
                let weight = layer.weight();
                let codes = weight
                    .dequantize(DType::F32)?
                    .broadcast_div(weight.scales())?;
                assert_close(&codes, get("ternary"), 1e-6, &name)?;
                let y = layer.forward(get("input"))?;
                // In bf16 transformers rounds on the way.
                let bound = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
                assert_near(&y, get("output"), bound, &name)?;

                let (_, other) = CLASSES[usize::from(kind == "bitlinear")];
                let wrong = load(other)?.forward(get("input"))?;
                let (wrong, y) = (values(&wrong)?, values(&y)?);
                assert!(wrong
                    .iter()
                    .zip(&y)
                    .any(|(a, b)| (a - b).abs() > 0.5 * b.abs()));

                // What training would have packed.
                let scheme = Scheme::ternary(ScaleScope::Tensor);
                let ours = BitLinear::new(get("master").clone(), None, None, scheme)?.freeze()?;
                let bytes = |q: &Quantized| q.codes().to_vec2::<u8>();
                assert_eq!(bytes(ours.weight())?, bytes(weight)?, "{name}");
                let bound = if dtype == DType::F32 { 1e-6 } else { 4e-3 };
                assert_near(ours.weight().scales(), weight.scales(), bound, &name)?;
            }
        }
    }
    Ok(())
}

/// transformers' documented example.
#[test]
fn rows_lie_in_quarters() -> Result<()> {
    for device in devices() {
        let packed = [[0b10100001u8, 0b00011000], [0b10010000, 0b00001010]];
        let packed = Tensor::new(&packed, device)?;
        let scale = Tensor::new(&[1f32], device)?;
        let weight = hf_weight(&packed, &scale, LinearClass::BitLinear)?;
        let columns = weight.dequantize(DType::F32)?.t()?.contiguous()?;
        let want = [
            [0f32, -1., -1., -1., 1., 0., 1., 1.],
            [-1., 1., 1., 1., 0., -1., -1., -1.],
        ];
        assert_eq!(columns.to_vec2::<f32>()?, want);
    }
    Ok(())
}

/// The norm is that of transformers' `use_rms_norm`, and never left out silently.
#[test]
fn a_norm_must_be_named() -> Result<()> {
    for device in devices() {
        let norm = Fill::Weight.tensor(&[8], 3, DType::F32, device)?;
        let tensors = [
            (
                "weight",
                Tensor::new(&[[0u8, 1, 2, 4, 5, 6, 8, 9]], device)?,
            ),
            ("weight_scale", Tensor::new(&[2f32], device)?),
            ("rms_norm.weight", norm.clone()),
        ];
        let tensors: Tensors = tensors.map(|(name, t)| (format!("a.{name}"), t)).into();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
        let class = LinearClass::AutoBitLinear;
        assert_refused(
            hf_bit_linear_no_bias(8, 4, class, vb.pp("a")),
            &["hf_bit_linear", "rms_norm.weight"],
        );
        let config = HfConfig {
            linear_class: class,
            rms_norm_eps: Some(1e-6),
        };
        let layer = hf_bit_linear_no_bias(8, 4, config, vb.pp("a"))?;
        let x = signal(&[3, 8], 1, DType::F32, device)?;
        let plain = PackedBitLinear::new(layer.weight().clone(), None, None)?;
        let want = plain.forward(&candle_fused::ops::rms_norm(&x, Some(&norm), 1e-6)?)?;
        assert_same(&layer.forward(&x)?, &want, "normed")?;
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    for device in devices() {
        let class = LinearClass::BitLinear;
        let scale = |s: f32| Tensor::new(&[s], device);
        let packed = Tensor::zeros((2, 5), DType::U8, device)?;
        for bad in [0., f32::NAN, -1., f32::INFINITY] {
            let result = hf_weight(&packed, &scale(bad)?, class);
            match bad == f32::INFINITY {
                // 1 / ∞ is 0, a weight of zeros.
                true => assert!(result.is_ok()),
                false => assert_refused(result, &["weight_scale", "positive"]),
            }
        }
        let auto = LinearClass::AutoBitLinear;
        assert_refused(
            hf_weight(&packed, &scale(f32::INFINITY)?, auto),
            &["weight_scale inf"],
        );
        let three = Tensor::new(&[[0u8, 0b1100]], device)?;
        assert_refused(hf_weight(&three, &scale(1.)?, class), &["the code 3"]);
        let floats = Tensor::zeros((2, 5), DType::F32, device)?;
        assert_refused(hf_weight(&floats, &scale(1.)?, class), &["F32", "of U8"]);
        let two = Tensor::new(&[1f32, 2.], device)?;
        assert_refused(
            hf_weight(&packed, &two, class),
            &["weight_scale of shape [2]"],
        );
        // A weight of nothing.
        let none = Tensor::zeros((0, 5), DType::U8, device)?;
        assert_eq!(hf_weight(&none, &scale(1.)?, class)?.shape().dims(), [0, 5]);

        let tensors = [("weight", packed), ("weight_scale", scale(1.)?)];
        let tensors: Tensors = tensors.map(|(name, t)| (name.to_string(), t)).into();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
        let load = |cols, out| hf_bit_linear_no_bias(cols, out, class, vb.clone());
        assert!(load(5, 8).is_ok());
        assert_refused(load(5, 12), &["shape mismatch", "weight"]);
        assert_refused(load(5, 9), &["9 outputs", "multiple of 4"]);
        assert_refused(hf_bit_linear(5, 8, class, vb.clone()), &["bias"]);
    }
    Ok(())
}
