// A model of a GGUF file.

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
        let layer =
            |(part, dims): &(&str, Vec<usize>)| (format!("blk.{i}.{part}.weight"), dims.clone());
        shapes.extend(dims.iter().map(layer));
        shapes.extend(
            ["attn_norm", "ffn_norm"].map(|part| (format!("blk.{i}.{part}.weight"), vec![1024])),
        );
    }
    let mut tensors = vec![];
    for (name, dims) in &shapes {
        let weight = crate::weights::tensor(name, dims)?;
        let dtype = if dims.len() == 1 {
            GgmlDType::F32
        } else {
            GgmlDType::Q4K
        };
        tensors.push((name.as_str(), QTensor::quantize(&weight, dtype)?));
    }
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, t)| (*name, t)).collect();
    use gguf_file::Value::{String as Text, F32, U32};
    let metadata = [
        ("general.architecture", Text("llama".into())),
        ("llama.attention.head_count", U32(16)),
        ("llama.attention.head_count_kv", U32(4)),
        ("llama.block_count", U32(4)),
        ("llama.embedding_length", U32(1024)),
        ("llama.rope.dimension_count", U32(64)),
        ("llama.attention.layer_norm_rms_epsilon", F32(1e-5)),
    ];
    let metadata: Vec<(&str, &gguf_file::Value)> =
        metadata.iter().map(|(key, value)| (*key, value)).collect();
    let mut file = std::io::Cursor::new(vec![]);
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.set_position(0);
    let content = gguf_file::Content::read(&mut file)?;
    let model = models::quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    Ok(language_model!(name, model, 32000, |m, ids, at| m.forward(ids, at)))
}
