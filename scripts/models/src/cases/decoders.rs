// Language models: prompts and the token after them, and those with a state.

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
            language_model!(name, model, vocabulary, |m, ids, at| m
                .0
                .forward(ids, at, &mut m.1))
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
                "layer_norm_eps": 1e-5, "use_cache": false
            }))?;
            // Not a model that can be cloned: it keeps no cache.
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
