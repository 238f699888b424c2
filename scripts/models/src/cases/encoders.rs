// Encoders of text, images and sound.

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
            let (ids, mask) = (
                ids(1, 128, 50000)?,
                Tensor::ones((1, 128), DType::U32, &Device::Cpu)?,
            );
            Box::new(move || model.forward(&ids, &mask))
        }
        "t5 encoder" | "flan-t5 encoder" | "t5 encoder train" => {
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
            let config = ClipVisionConfig {
                num_hidden_layers: 6,
                ..ClipVisionConfig::vit_base_patch32()
            };
            vision!(
                ClipVisionTransformer::new(vb, &config)?,
                [1, 3, 224, 224],
                dtype
            )
        }
        "clip text" => {
            use models::clip::text_model::{ClipTextConfig, ClipTextTransformer};
            let config = ClipTextConfig {
                num_hidden_layers: 6,
                ..ClipTextConfig::vit_base_patch32()
            };
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
