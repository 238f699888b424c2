//! A small Llama, trained: through `candle_fused::nn` its losses are those of the slow composed form.

use crate::devices::devices;
use crate::tensors::signal;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::nn::transformer::{llama_block, AttentionSizes, BlockConfig, RotaryTables};
use candle_fused::nn::{self, Module};
use candle_nn::{Optimizer, VarBuilder, SGD};
use std::collections::BTreeMap;

const VOCABULARY: usize = 11;
const HIDDEN: usize = 16;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const INTERMEDIATE: usize = 24;
const LAYERS: usize = 2;
const TOKENS: usize = 8;
const EPS: f32 = 1e-5;

/// The variables by their names in Hugging Face's files.
struct Weights {
    vars: BTreeMap<String, Var>,
    device: Device,
}

impl Weights {
    fn new(device: &Device) -> Result<Self> {
        let mut shapes = vec![
            ("embed_tokens.weight".to_string(), vec![VOCABULARY, HIDDEN]),
            ("norm.weight".to_string(), vec![HIDDEN]),
            ("lm_head.weight".to_string(), vec![VOCABULARY, HIDDEN]),
        ];
        for i in 0..LAYERS {
            for (name, dims) in [
                ("input_layernorm", vec![HIDDEN]),
                ("self_attn.q_proj", vec![HEADS * HEAD_DIM, HIDDEN]),
                ("self_attn.k_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
                ("self_attn.v_proj", vec![KV_HEADS * HEAD_DIM, HIDDEN]),
                ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD_DIM]),
                ("post_attention_layernorm", vec![HIDDEN]),
                ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
                ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
                ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
            ] {
                shapes.push((format!("layers.{i}.{name}.weight"), dims));
            }
        }
        let mut vars = BTreeMap::new();
        for (seed, (name, dims)) in shapes.into_iter().enumerate() {
            let values = signal(&dims, 100 + seed as u64, device)?;
            let values = match dims.len() {
                1 => (values * 0.1)? + 1.0,
                _ => values * 0.3,
            };
            vars.insert(name, Var::from_tensor(&values?)?);
        }
        Ok(Weights {
            vars,
            device: device.clone(),
        })
    }

    fn get(&self, name: &str) -> &Tensor {
        self.vars[&format!("{name}.weight")].as_tensor()
    }

    fn vb(&self) -> VarBuilder<'static> {
        let tensors = self
            .vars
            .iter()
            .map(|(name, var)| (name.clone(), var.as_tensor().clone()));
        VarBuilder::from_tensors(tensors.collect(), DType::F32, &self.device)
    }

    /// Two sequences, and what comes behind each of their tokens.
    fn batch(&self) -> Result<(Tensor, Tensor)> {
        let id = |b: usize, t: usize| ((t * t + 3 * b + t) % VOCABULARY) as u32;
        let ids = |shift: usize| {
            let ids = (0..2).flat_map(|b| (0..TOKENS).map(move |t| id(b, t + shift)));
            Tensor::from_vec(ids.collect::<Vec<_>>(), (2, TOKENS), &self.device)
        };
        Ok((ids(0)?, ids(1)?.flatten_all()?))
    }

    fn tables(&self) -> Result<RotaryTables> {
        RotaryTables::new(HEAD_DIM, TOKENS, 100.0, DType::F32, &self.device)
    }
}

/// The functions that a port exchanges: those of `candle_nn` for ours, or for the composed forms.
struct Functions {
    rms_norm: fn(&Tensor, &Tensor, f32) -> Result<Tensor>,
    rope: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    softmax: fn(&Tensor) -> Result<Tensor>,
    silu: fn(&Tensor) -> Result<Tensor>,
    cross_entropy: fn(&Tensor, &Tensor) -> Result<Tensor>,
}

const STOCK: Functions = Functions {
    rms_norm: candle_nn::ops::rms_norm,
    rope: candle_nn::rotary_emb::rope,
    softmax: candle_nn::ops::softmax_last_dim,
    silu: candle_nn::ops::silu,
    cross_entropy: candle_nn::loss::cross_entropy,
};

const SLOW: Functions = Functions {
    rms_norm: candle_nn::ops::rms_norm_slow,
    rope: candle_nn::rotary_emb::rope_slow,
    softmax: |x| candle_nn::ops::softmax(x, D::Minus1),
    silu: candle_nn::ops::silu,
    cross_entropy: candle_nn::loss::cross_entropy,
};

const PORTED: Functions = Functions {
    rms_norm: nn::ops::rms_norm,
    rope: nn::rotary_emb::rope,
    softmax: nn::ops::softmax_last_dim,
    silu: nn::ops::silu,
    cross_entropy: nn::loss::cross_entropy,
};

/// Llama as it is written with stock Candle.
fn loss(w: &Weights, f: &Functions) -> Result<Tensor> {
    let (ids, targets) = w.batch()?;
    let tables = w.tables()?;
    let mut x = w.get("embed_tokens").embedding(&ids.flatten_all()?)?;
    x = x.reshape((2, TOKENS, HIDDEN))?;
    let linear = |x: &Tensor, name: &str| x.broadcast_matmul(&w.get(name).t()?);
    let later = (0..TOKENS)
        .flat_map(|i| (0..TOKENS).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }));
    let later = Tensor::from_vec(later.collect::<Vec<_>>(), (TOKENS, TOKENS), &w.device)?;
    for i in 0..LAYERS {
        let part = |name: &str| format!("layers.{i}.{name}");
        let h = (f.rms_norm)(&x, w.get(&part("input_layernorm")), EPS)?;
        let heads = |name: &str, n: usize| {
            let y = linear(&h, &part(name))?.reshape((2, TOKENS, n, HEAD_DIM))?;
            y.transpose(1, 2)?.contiguous()
        };
        let q = (f.rope)(
            &heads("self_attn.q_proj", HEADS)?,
            tables.cos(),
            tables.sin(),
        )?;
        let k = (f.rope)(
            &heads("self_attn.k_proj", KV_HEADS)?,
            tables.cos(),
            tables.sin(),
        )?;
        let v = heads("self_attn.v_proj", KV_HEADS)?;
        let repeat = |x: Tensor| {
            let dims = (2, KV_HEADS, HEADS / KV_HEADS, TOKENS, HEAD_DIM);
            x.unsqueeze(2)?
                .broadcast_as(dims)?
                .reshape((2, HEADS, TOKENS, HEAD_DIM))
        };
        let (k, v) = (repeat(k)?, repeat(v)?);
        let scores = (q.matmul(&k.t()?.contiguous()?)? / (HEAD_DIM as f64).sqrt())?;
        let attended = (f.softmax)(&scores.broadcast_add(&later)?)?.matmul(&v)?;
        let attended = attended
            .transpose(1, 2)?
            .reshape((2, TOKENS, HEADS * HEAD_DIM))?;
        x = (x + linear(&attended, &part("self_attn.o_proj"))?)?;
        let h = (f.rms_norm)(&x, w.get(&part("post_attention_layernorm")), EPS)?;
        let gate = (f.silu)(&linear(&h, &part("mlp.gate_proj"))?)?;
        let h = (gate * linear(&h, &part("mlp.up_proj"))?)?;
        x = (x + linear(&h, &part("mlp.down_proj"))?)?;
    }
    let x = (f.rms_norm)(&x, w.get("norm"), EPS)?;
    let logits = linear(&x, "lm_head")?.reshape((2 * TOKENS, VOCABULARY))?;
    (f.cross_entropy)(&logits, &targets)
}

/// Llama of this crate's layers.
fn loss_of_layers(w: &Weights) -> Result<Tensor> {
    let (ids, targets) = w.batch()?;
    let (vb, tables) = (w.vb(), w.tables()?);
    let config = BlockConfig {
        attention: AttentionSizes::new(HIDDEN, HEADS).with_kv_heads(KV_HEADS),
        intermediate: INTERMEDIATE,
        eps: EPS.into(),
    };
    let mut x = nn::embedding(VOCABULARY, HIDDEN, vb.pp("embed_tokens"))?.forward(&ids)?;
    for i in 0..LAYERS {
        let block = llama_block(config, tables.clone(), vb.pp(format!("layers.{i}")))?;
        x = block.forward(&x, None, None)?;
    }
    let x = nn::rms_norm(HIDDEN, EPS.into(), vb.pp("norm"))?.forward(&x)?;
    let logits = nn::linear_no_bias(HIDDEN, VOCABULARY, vb.pp("lm_head"))?.forward(&x)?;
    nn::loss::cross_entropy(&logits.flatten_to(1)?, &targets)
}

/// The losses of a training from the same beginning.
fn losses(
    steps: usize,
    device: &Device,
    loss: impl Fn(&Weights) -> Result<Tensor>,
) -> Result<Vec<f32>> {
    let weights = Weights::new(device)?;
    let mut sgd = SGD::new(weights.vars.values().cloned().collect(), 0.01)?;
    let step = |_| {
        let loss = loss(&weights)?;
        sgd.backward_step(&loss)?;
        loss.to_scalar::<f32>()
    };
    (0..steps).map(step).collect()
}

#[test]
fn losses_are_those_of_the_composed_form() -> Result<()> {
    let want = losses(50, &Device::Cpu, |w| loss(w, &SLOW))?;
    assert!(want[49] < 0.8 * want[0], "{want:?}");
    for device in devices() {
        let steps = if device.is_cpu() { 50 } else { 5 };
        let ported = losses(steps, device, |w| loss(w, &PORTED))?;
        let layers = losses(steps, device, loss_of_layers)?;
        for (i, want) in want.iter().take(steps).enumerate() {
            for (what, got) in [("ported", ported[i]), ("of layers", layers[i])] {
                let off = (got - want).abs() / want;
                assert!(off < 1e-4, "{what}: step {i} has {got}, not {want}");
            }
        }
    }
    Ok(())
}

/// Printed with `--nocapture`.
#[test]
fn stock_loses_gradients_of_llama() -> Result<()> {
    let weights = Weights::new(&Device::Cpu)?;
    let lost = |loss: Tensor| -> Result<Vec<&str>> {
        let grads = loss.backward()?;
        let none = weights
            .vars
            .iter()
            .filter(|(_, var)| grads.get(var).is_none());
        Ok(none.map(|(name, _)| name.as_str()).collect())
    };
    let stock = lost(loss(&weights, &STOCK)?)?;
    println!(
        "stock loses {} of {} gradients: {stock:?}",
        stock.len(),
        weights.vars.len()
    );
    assert!(!stock.is_empty());
    assert_eq!(lost(loss(&weights, &PORTED)?)?, Vec::<&str>::new());
    assert_eq!(lost(loss_of_layers(&weights)?)?, Vec::<&str>::new());
    Ok(())
}
