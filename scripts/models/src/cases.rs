// The models, by name. This file is compiled once for each variant of candle-transformers, in a module that has its `models`.

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use serde_json::json;

/// One forward pass. Each call gives the same result.
pub type Run = Box<dyn FnMut() -> Result<Tensor>>;

/// A config as its file would be.
fn config<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> Result<T> {
    serde_json::from_value(json).map_err(candle_core::Error::wrap)
}

/// Token ids `[batch, tokens]` below `vocabulary`.
fn ids(batch: usize, tokens: usize, vocabulary: u32) -> Result<Tensor> {
    let id = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocabulary;
    let ids: Vec<u32> = (0..batch * tokens).map(id).collect();
    Tensor::from_vec(ids, (batch, tokens), &Device::Cpu)
}

/// An image, or anything else with values from −1 to 1.
fn wave(dims: &[usize], dtype: DType) -> Result<Tensor> {
    let value = |i: usize| ((i % 100_003) as f32 * 0.37).sin();
    let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
}

/// A prompt of 128 tokens, or the token after it. Clones of the model start from the same cache.
macro_rules! language_model {
    ($name:expr, $model:expr, $vocabulary:expr, |$m:ident, $ids:ident, $at:ident| $forward:expr) => {{
        let mut model = $model;
        let ids = if $name.ends_with("decode") {
            let ($m, $ids, $at) = (&mut model, &ids(1, 128, $vocabulary)?, 0usize);
            let _ = $at;
            $forward?;
            ids(1, 1, $vocabulary)?
        } else {
            ids(1, 128, $vocabulary)?
        };
        let at = if $name.ends_with("decode") { 128usize } else { 0 };
        Box::new(move || {
            let mut fresh = model.clone();
            let ($m, $ids, $at) = (&mut fresh, &ids, at);
            let _ = $at;
            $forward
        })
    }};
}

/// A model that is a `Module` of one image.
macro_rules! vision {
    ($model:expr, $dims:expr, $dtype:expr) => {{
        let (model, x) = ($model, wave(&$dims, $dtype)?);
        Box::new(move || model.forward(&x))
    }};
}

/// The model of this name, with the weights of `vb`, ready to run.
pub fn build(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    match name.split(' ').next().unwrap_or("") {
        "bert" | "bertenc" | "distilbert" | "modernbert" | "t5" | "flan-t5" | "clip" | "whisper" => encoder(name, vb),
        "mamba" | "rwkv5" => recurrent(name, vb),
        "quantized_llama" => quantized(name),
        "vit" | "dinov2" | "sam" | "sd" | "segformer" => image_model(name, vb),
        "llama" | "qwen2" | "qwen3" | "mistral" | "phi" | "phi3" | "gemma2" | "gemma3" | "falcon" | "stablelm" => {
            decoder(name, vb)
        }
        _ => convolutional(name, vb),
    }
}

fn bert_config(layers: usize) -> Result<models::bert::Config> {
    config(json!({
        "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": layers, "num_attention_heads": 12,
        "intermediate_size": 1536, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02,
        "layer_norm_eps": 1e-12, "pad_token_id": 0, "classifier_dropout": null, "model_type": "bert"
    }))
}

/// BERT on real ids, with a mask of ones.
pub fn bert(vb: VarBuilder<'static>, batch: usize, tokens: usize) -> Result<Run> {
    let model = models::bert::BertModel::load(vb, &bert_config(6)?)?;
    let ids = (ids(batch, tokens, 30000)? + 500.)?;
    let types = ids.zeros_like()?;
    Ok(Box::new(move || model.forward(&ids, &types, None)))
}

fn encoder(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    let dtype = vb.dtype();
    Ok(match name {
        "bert b1" => bert(vb, 1, 128)?,
        "bert b32" => bert(vb, 32, 128)?,
        "bert train" => bert(vb, 8, 64)?,
        // Without the mask of BertModel, which is NaN in 16 bits: 0 · f32::MIN as −∞.
        "bertenc b1" | "bertenc b8" => {
            let model = models::bert::BertEncoder::load(vb.pp("encoder"), &bert_config(6)?)?;
            let batch = if name == "bertenc b8" { 8 } else { 1 };
            let x = wave(&[batch, 128, 384], dtype)?;
            let mask = Tensor::zeros((batch, 1, 1, 128), dtype, &Device::Cpu)?;
            Box::new(move || model.forward(&x, &mask))
        }
        "distilbert b1" | "distilbert b8" => {
            let config = config(json!({
                "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
                "activation": "gelu", "max_position_embeddings": 512, "initializer_range": 0.02,
                "pad_token_id": 0, "model_type": "distilbert"
            }))?;
            let model = models::distilbert::DistilBertModel::load(vb, &config)?;
            let ids = ids(if name == "distilbert b8" { 8 } else { 1 }, 128, 30000)?;
            let mask = Tensor::zeros((128, 128), DType::U8, &Device::Cpu)?;
            Box::new(move || model.forward(&ids, &mask))
        }
        "modernbert" => {
            let config = config(json!({
                "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
                "intermediate_size": 1152, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
                "pad_token_id": 50283, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
                "local_attention": 128, "local_rope_theta": 10000.0
            }))?;
            let model = models::modernbert::ModernBert::load(vb, &config)?;
            let (ids, mask) = (ids(1, 128, 50000)?, Tensor::ones((1, 128), DType::U32, &Device::Cpu)?);
            Box::new(move || model.forward(&ids, &mask))
        }
        "t5 encoder" | "flan-t5 encoder" => {
            let flan = name == "flan-t5 encoder";
            let config = config(json!({
                "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": if flan { 1024 } else { 2048 },
                "num_layers": if flan { 8 } else { 6 }, "num_heads": if flan { 6 } else { 8 },
                "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
                "initializer_factor": 1.0, "feed_forward_proj": if flan { "gated-gelu" } else { "relu" },
                "is_encoder_decoder": true, "use_cache": false, "pad_token_id": 0, "eos_token_id": 1
            }))?;
            let mut model = models::t5::T5EncoderModel::load(vb, &config)?;
            let ids = ids(1, 128, 32000)?;
            Box::new(move || model.forward(&ids))
        }
        "clip vision" => {
            use models::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
            let config = ClipVisionConfig { num_hidden_layers: 6, ..ClipVisionConfig::vit_base_patch32() };
            vision!(ClipVisionTransformer::new(vb, &config)?, [1, 3, 224, 224], dtype)
        }
        "clip text" => {
            use models::clip::text_model::{ClipTextConfig, ClipTextTransformer};
            let config = ClipTextConfig { num_hidden_layers: 6, ..ClipTextConfig::vit_base_patch32() };
            let (model, ids) = (ClipTextTransformer::new(vb, &config)?, ids(4, 77, 49000)?);
            Box::new(move || model.forward(&ids))
        }
        "whisper encoder" | "whisper decoder" => {
            let config: models::whisper::Config = config(json!({
                "num_mel_bins": 80, "max_source_positions": 1500, "d_model": 512, "encoder_attention_heads": 8,
                "encoder_layers": 6, "vocab_size": 51865, "max_target_positions": 448,
                "decoder_attention_heads": 8, "decoder_layers": 6
            }))?;
            let mut model = models::whisper::model::Whisper::load(&vb, config)?;
            if name == "whisper encoder" {
                let mel = wave(&[1, 80, 3000], dtype)?;
                Box::new(move || model.encoder.forward(&mel, true))
            } else {
                let (ids, audio) = (ids(1, 16, 51000)?, wave(&[1, 1500, 512], dtype)?);
                model.decoder.forward(&ids, &audio, true)?;
                Box::new(move || model.decoder.forward(&ids, &audio, false))
            }
        }
        _ => candle_core::bail!("no model is called {name}"),
    })
}

fn decoder(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    Ok(match name.split(' ').next().unwrap_or("") {
        "llama" => {
            use models::llama::{Cache, Llama, LlamaConfig};
            let train = name == "llama train";
            let vocabulary = if train { 8000 } else { 32000 };
            let config: LlamaConfig = config(json!({
                "hidden_size": if train { 512 } else { 1024 }, "intermediate_size": if train { 1408 } else { 2816 },
                "vocab_size": vocabulary, "num_hidden_layers": 4,
                "num_attention_heads": if train { 8 } else { 16 },
                "num_key_value_heads": if train { 2 } else { 4 }, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "max_position_embeddings": 2048, "tie_word_embeddings": false
            }))?;
            let config = config.into_config(false);
            let cache = Cache::new(true, vb.dtype(), &config, &Device::Cpu)?;
            let model = (Llama::load(vb, &config)?, cache);
            language_model!(name, model, vocabulary, |m, ids, at| m.0.forward(ids, at, &mut m.1))
        }
        "qwen2" => {
            let config = config(json!({
                "vocab_size": 32000, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 4,
                "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 2048,
                "sliding_window": 2048, "max_window_layers": 4, "tie_word_embeddings": false,
                "rope_theta": 1e6, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu"
            }))?;
            let model = models::qwen2::ModelForCausalLM::new(&config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at))
        }
        "qwen3" => {
            let config = config(json!({
                "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4,
                "num_attention_heads": 16, "head_dim": 128, "attention_bias": false, "num_key_value_heads": 8,
                "max_position_embeddings": 2048, "sliding_window": null, "max_window_layers": 4,
                "tie_word_embeddings": false, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
                "use_sliding_window": false, "hidden_act": "silu"
            }))?;
            let model = models::qwen3::ModelForCausalLM::new(&config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at))
        }
        "mistral" => {
            let config = config(json!({
                "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 4,
                "num_attention_heads": 16, "head_dim": null, "num_key_value_heads": 4, "hidden_act": "silu",
                "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "sliding_window": null, "use_flash_attn": false
            }))?;
            let model = models::mistral::Model::new(&config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at))
        }
        "phi" => {
            let config = config(json!({
                "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
                "num_attention_heads": 16, "num_key_value_heads": null, "hidden_act": "gelu_new",
                "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "tie_word_embeddings": false,
                "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "qk_layernorm": false
            }))?;
            let model = models::phi::Model::new(&config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids))
        }
        "phi3" => {
            let config = config(json!({
                "vocab_size": 32000, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 2816,
                "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
                "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": 2,
                "rope_scaling": null, "max_position_embeddings": 2048
            }))?;
            let model = models::phi3::Model::new(&config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at))
        }
        "gemma2" => {
            let config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 4,
                "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                "vocab_size": 32000, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
                "query_pre_attn_scalar": 256, "sliding_window": 4096, "max_position_embeddings": 2048
            }))?;
            let model = models::gemma2::Model::new(false, &config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at))
        }
        "gemma3" => {
            let config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4,
                "num_hidden_layers": 6, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                "rope_local_base_freq": 10000.0, "vocab_size": 32000, "final_logit_softcapping": null,
                "attn_logit_softcapping": null, "query_pre_attn_scalar": 256, "sliding_window": 512,
                "sliding_window_pattern": 6, "max_position_embeddings": 2048
            }))?;
            let model = models::gemma3::Model::new(false, &config, vb)?;
            language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at))
        }
        "falcon" => {
            let config = config(json!({
                "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
                "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "use_cache": true, "bos_token_id": 1,
                "eos_token_id": 1, "hidden_dropout": 0.0, "attention_dropout": 0.0, "n_head_kv": null,
                "alibi": false, "new_decoder_architecture": false, "multi_query": true,
                "parallel_attn": true, "bias": false
            }))?;
            let model = models::falcon::Falcon::load(vb, config)?;
            falcon(name, model)?
        }
        "stablelm" => {
            let config = config(json!({
                "vocab_size": 32000, "intermediate_size": 2816, "hidden_size": 1024, "num_hidden_layers": 4,
                "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
                "partial_rotary_factor": 0.25, "rope_theta": 10000.0, "max_position_embeddings": 2048,
                "layer_norm_eps": 1e-5, "use_cache": true
            }))?;
            // Not a model that can be cloned: each prompt replaces the cache.
            let mut model = models::stable_lm::Model::new(&config, vb)?;
            let ids = ids(1, 128, 32000)?;
            Box::new(move || model.forward(&ids, 0))
        }
        _ => candle_core::bail!("no model is called {name}"),
    })
}

fn falcon(name: &str, model: models::falcon::Falcon) -> Result<Run> {
    Ok(language_model!(name, model, 32000, |m, ids, at| m.forward(ids)))
}

fn recurrent(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    let tokens = ids(1, 8, 32000)?;
    Ok(match name {
        "mamba" => {
            use models::mamba::{Model, State};
            let config = config(json!({
                "d_model": 768, "n_layer": 8, "vocab_size": 32000, "pad_vocab_size_multiple": 8
            }))?;
            let model = Model::new(&config, vb)?;
            Box::new(move || {
                let mut state = State::new(1, &config, model.dtype(), &Device::Cpu)?;
                let mut step = |i| model.forward(&tokens.narrow(1, i, 1)?.squeeze(1)?, &mut state);
                (0..7).try_for_each(|i| step(i).map(|_| ()))?;
                step(7)
            })
        }
        _ => {
            use models::rwkv_v5::{Model, State};
            let config = config(json!({
                "vocab_size": 32000, "hidden_size": 768, "num_hidden_layers": 6, "attention_hidden_size": 768,
                "num_attention_heads": 64, "head_size": 64, "intermediate_size": null,
                "layer_norm_epsilon": 1e-5, "rescale_every": 6
            }))?;
            let model = Model::new(&config, vb)?;
            Box::new(move || {
                let mut state = State::new(1, &config, &Device::Cpu)?;
                let mut step = |i| model.forward(&tokens.narrow(1, i, 1)?, &mut state);
                (0..7).try_for_each(|i| step(i).map(|_| ()))?;
                step(7)
            })
        }
    })
}

fn image_model(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    let dtype = vb.dtype();
    Ok(match name {
        "vit" | "vit train" => {
            let config = config(json!({
                "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536,
                "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16,
                "num_channels": 3, "qkv_bias": true
            }))?;
            let (model, x) = (models::vit::Model::new(&config, 1000, vb)?, wave(&[1, 3, 224, 224], dtype)?);
            Box::new(move || model.forward(&x))
        }
        "dinov2" => vision!(
            models::dinov2::DinoVisionTransformer::new(vb, 3, 384, 6)?,
            [1, 3, 518, 518],
            dtype
        ),
        "segformer" => {
            let config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [2, 2, 2, 2], "sr_ratios": [8, 4, 2, 1],
                "hidden_sizes": [32, 64, 160, 256], "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
                "num_attention_heads": [1, 2, 5, 8], "mlp_ratios": [4, 4, 4, 4], "hidden_act": "gelu",
                "layer_norm_eps": 1e-6, "decoder_hidden_size": 256
            }))?;
            vision!(models::segformer::SemanticSegmentationModel::new(&config, 150, vb)?, [1, 3, 224, 224], dtype)
        }
        "sam encoder" => vision!(
            models::segment_anything::image_encoder::ImageEncoderViT::new(
                448, 16, 3, 384, 4, 6, 256, true, true, true, 14, &[1, 3], vb
            )?,
            [1, 3, 448, 448],
            dtype
        ),
        "sam tiny vit" => vision!(models::segment_anything::tiny_vit::tiny_vit_5m(vb)?, [1, 3, 1024, 1024], dtype),
        "sd unet" | "sd unet train" => {
            use models::stable_diffusion::unet_2d::{BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig};
            let block = |out_channels, use_cross_attn| BlockConfig { out_channels, use_cross_attn, attention_head_dim: 8 };
            let config = UNet2DConditionModelConfig {
                blocks: vec![block(128, Some(1)), block(256, Some(1)), block(512, None)],
                layers_per_block: 1,
                cross_attention_dim: 768,
                ..Default::default()
            };
            let model = UNet2DConditionModel::new(vb, 4, 4, false, config)?;
            let size = if name == "sd unet" { 32 } else { 8 };
            let (x, text) = (wave(&[1, 4, size, size], dtype)?, wave(&[1, 77, 768], dtype)?);
            Box::new(move || model.forward(&x, 500., &text))
        }
        "sd vae decoder" => {
            use models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
            let config = AutoEncoderKLConfig {
                block_out_channels: vec![64, 128, 256, 256],
                layers_per_block: 2,
                latent_channels: 4,
                norm_num_groups: 32,
                use_quant_conv: true,
                use_post_quant_conv: true,
            };
            let (model, x) = (AutoEncoderKL::new(vb, 3, 3, config)?, wave(&[1, 4, 16, 16], dtype)?);
            Box::new(move || model.decode(&x))
        }
        _ => candle_core::bail!("no model is called {name}"),
    })
}

fn convolutional(name: &str, vb: VarBuilder<'static>) -> Result<Run> {
    let dtype = vb.dtype();
    let train = name.ends_with(" train");
    let dims = match name {
        "resnet18 train" => [2, 3, 112, 112],
        _ if train => [1, 3, 64, 64],
        _ => [1, 3, 224, 224],
    };
    Ok(match name.trim_end_matches(" train") {
        "convnext atto" => vision!(models::convnext::convnext(&models::convnext::Config::atto(), 1000, vb)?, dims, dtype),
        "convnext tiny" => vision!(models::convnext::convnext(&models::convnext::Config::tiny(), 1000, vb)?, dims, dtype),
        "efficientnet" => {
            use models::efficientnet::{EfficientNet, MBConvConfig};
            vision!(EfficientNet::new(vb, MBConvConfig::b0(), 1000)?, dims, dtype)
        }
        "mobilenetv4" => {
            vision!(models::mobilenetv4::mobilenetv4(&models::mobilenetv4::Config::small(), 1000, vb)?, dims, dtype)
        }
        "mobileone" => vision!(models::mobileone::mobileone(&models::mobileone::Config::s0(), 1000, vb)?, dims, dtype),
        "repvgg" => vision!(models::repvgg::repvgg(&models::repvgg::Config::a0(), 1000, vb)?, dims, dtype),
        "resnet18" => vision!(models::resnet::resnet18(1000, vb)?, dims, dtype),
        "resnet50" => vision!(models::resnet::resnet50(1000, vb)?, dims, dtype),
        _ => candle_core::bail!("no model is called {name}"),
    })
}

/// A GGUF file of the Llama of `decoder`, in 4 bits.
fn quantized(name: &str) -> Result<Run> {
    let dims: [(&str, Vec<usize>); 7] = [
        ("attn_q", vec![1024, 1024]),
        ("attn_k", vec![256, 1024]),
        ("attn_v", vec![256, 1024]),
        ("attn_output", vec![1024, 1024]),
        ("ffn_gate", vec![2816, 1024]),
        ("ffn_up", vec![2816, 1024]),
        ("ffn_down", vec![1024, 2816]),
    ];
    let mut shapes = vec![
        ("token_embd.weight".to_string(), vec![32000, 1024]),
        ("output.weight".to_string(), vec![32000, 1024]),
        ("output_norm.weight".to_string(), vec![1024]),
    ];
    for i in 0..4 {
        let layer = |(part, dims): &(&str, Vec<usize>)| (format!("blk.{i}.{part}.weight"), dims.clone());
        shapes.extend(dims.iter().map(layer));
        shapes.extend(["attn_norm", "ffn_norm"].map(|part| (format!("blk.{i}.{part}.weight"), vec![1024])));
    }
    let mut tensors = vec![];
    for (name, dims) in &shapes {
        let weight = crate::weights::tensor(name, dims)?;
        let dtype = if dims.len() == 1 { GgmlDType::F32 } else { GgmlDType::Q4K };
        tensors.push((name.as_str(), QTensor::quantize(&weight, dtype)?));
    }
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, t)| (*name, t)).collect();
    use gguf_file::Value::{F32, String as Text, U32};
    let metadata = [
        ("general.architecture", Text("llama".into())),
        ("llama.attention.head_count", U32(16)),
        ("llama.attention.head_count_kv", U32(4)),
        ("llama.block_count", U32(4)),
        ("llama.embedding_length", U32(1024)),
        ("llama.rope.dimension_count", U32(64)),
        ("llama.attention.layer_norm_rms_epsilon", F32(1e-5)),
    ];
    let metadata: Vec<(&str, &gguf_file::Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let mut file = std::io::Cursor::new(vec![]);
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.set_position(0);
    let content = gguf_file::Content::read(&mut file)?;
    let model = models::quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    Ok(language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at)))
}
