//! What MLX quantised, and what it computes with it.

use super::*;
use crate::devices::devices;
use candle_core::Module;
use candle_fused::nn::quantized::{mlx_linear, mlx_linear_no_bias, mlx_weight, MlxQuantization};
use candle_fused::nn::{Linear, QuantLinear, VarBuilder};

fn files() -> Vec<(String, MlxQuantization, DType)> {
    let name = |bits, group_size, suffix, dtype| {
        let file = format!("mlx_{bits}_{group_size}{suffix}.safetensors");
        (file, MlxQuantization { bits, group_size }, dtype)
    };
    let plain = [2, 4, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group| name(bits, group, "", DType::F32)));
    let narrow = [
        name(4, 64, "_f16", DType::F16),
        name(4, 64, "_bf16", DType::BF16),
    ];
    plain.chain(narrow).collect()
}

#[test]
fn outputs_of_mlx() -> Result<()> {
    for device in devices() {
        for (name, config, dtype) in files() {
            let file = fixture(&name, device)?;
            // The layer's bias is no part of MLX's own function.
            let bias = signal(&[6], 1, dtype, device)?;
            let mut tensors: Tensors = ["weight", "scales", "biases"]
                .map(|part| (format!("q_proj.{part}"), file[part].clone()))
                .into();
            tensors.insert("q_proj.bias".into(), bias.clone());
            let vb = VarBuilder::from_tensors(tensors, dtype, device).pp("q_proj");
            let layer = mlx_linear_no_bias(256, 6, config, vb.clone())?;
            let dequantized = layer.weight().dequantize(DType::F32)?;
            let want = file["dequantized"].to_dtype(DType::F32)?;
            // MLX rounds twice to the dtype.
            let bound = if dtype == DType::F32 {
                1e-6
            } else {
                tolerance(dtype)
            };
            assert_close(&dequantized, &want, bound, &name)?;

            let want = file.get("y_f32").unwrap_or(&file["y"]);
            let y = layer.forward(&file["x"])?;
            assert_eq!(y.dtype(), dtype);
            assert_near(&y, want, tolerance(dtype), &name)?;
            let with_bias = mlx_linear(256, 6, config, vb)?.forward(&file["x"])?;
            let want = want.broadcast_add(&bias.to_dtype(DType::F32)?)?;
            assert_near(&with_bias, &want, tolerance(dtype), &name)?;

            let (weight, scales, biases) = (&file["weight"], &file["scales"], &file["biases"]);
            let same = mlx_weight(weight, scales, biases, config)?;
            assert_same_weight(layer.weight(), &same, &name)?;
        }
    }
    Ok(())
}

/// Our own quantiser gives MLX's codes; its scales and biases, which MLX rounds to the dtype, stay in f32.
#[test]
fn codes_of_mlx() -> Result<()> {
    for device in devices() {
        for (name, config, dtype) in files() {
            let file = fixture(&name, device)?;
            let (weight, scales, biases) = (&file["weight"], &file["scales"], &file["biases"]);
            let theirs = mlx_weight(weight, scales, biases, config)?;
            let scheme = Scheme::mlx(config.bits, config.group_size);
            let ours = QuantLinear::quantize(Linear::new(file["w"].clone(), None), scheme)?;
            let ours = ours.weight();
            assert_eq!(ours.scheme(), theirs.scheme());
            let bytes = |q: &Quantized| q.codes().to_vec2::<u8>();
            assert_eq!(bytes(ours)?, bytes(&theirs)?, "{name}");
            let bound = if dtype == DType::F32 {
                1e-6
            } else {
                tolerance(dtype)
            };
            assert_near(ours.scales(), theirs.scales(), bound, &name)?;
            let biases = (ours.offsets().unwrap(), theirs.offsets().unwrap());
            assert_near(biases.0, biases.1, bound, &name)?;
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    for device in devices() {
        let config = |bits, group_size| MlxQuantization { bits, group_size };
        let words = Tensor::zeros((3, 8), DType::U32, device)?;
        let scales = Tensor::zeros((3, 1), DType::F16, device)?;
        let load = |w: &Tensor, s: &Tensor, config| mlx_weight(w, s, s, config);
        assert!(load(&words, &scales, config(4, 64)).is_ok());
        for bad in [
            config(3, 64),
            config(0, 64),
            config(4, 48),
            config(4, 128),
            config(4, 0),
        ] {
            assert_refused(
                load(&words, &scales, bad),
                &["mlx_linear", "bits in groups of"],
            );
        }
        assert_refused(
            load(&words, &scales, config(4, 32)),
            &["scales of shape [3, 1]", "[3, 2]"],
        );
        assert_refused(load(&scales, &scales, config(4, 64)), &["F16", "of U32"]);
        assert_refused(load(&words, &words, config(4, 64)), &["U32"]);
        let tensors: Tensors = [("weight".to_string(), words)].into();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
        let load = |cols, out| mlx_linear_no_bias(cols, out, config(4, 64), vb.clone());
        assert_refused(load(64, 3), &["scales"]);
        assert_refused(load(128, 3), &["shape mismatch", "weight"]);
        assert_refused(load(65, 3), &["65 inputs"]);
    }
    Ok(())
}
