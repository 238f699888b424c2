//! Attention, MLPs and blocks as layers: the composed form's results and gradients, and the same with a cache.

mod cached;

use crate::devices::devices;
use crate::tensors::{error, signal, var};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig, KvCache};
use candle_fused::nn::transformer::*;
use candle_fused::nn::{Activation, LayerNorm, Linear, Module, RmsNorm, VarBuilder};
use candle_fused::ops::{Act, AttentionConfig, RopePairs};
use std::collections::HashMap;

const HIDDEN: usize = 12;
/// 4 heads of queries and 2 of keys, of 6 elements.
const SIZES: AttentionSizes = AttentionSizes {
    hidden: HIDDEN,
    heads: 4,
    kv_heads: 2,
    head_dim: 6,
    qkv_bias: true,
    output_bias: false,
};

fn says<T>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("accepted, not refused with {words:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

/// Variables by name, with fixed values.
struct Weights(HashMap<String, Tensor>);

impl Weights {
    fn new(shapes: &[(&str, &[usize])], device: &Device) -> Result<Self> {
        let shapes = shapes.iter().enumerate();
        let tensors = shapes.map(|(i, (name, dims))| {
            let values = (signal(dims, 40 + i as u64, device)? * 0.4)?;
            Ok((name.to_string(), Var::from_tensor(&values)?.into_inner()))
        });
        Ok(Weights(tensors.collect::<Result<_>>()?))
    }
    fn vb(&self, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_tensors(self.0.clone(), DType::F32, device)
    }
    fn get(&self, name: &str) -> &Tensor {
        &self.0[name]
    }
}

const SEPARATE: &[(&str, &[usize])] = &[
    ("q_proj.weight", &[24, HIDDEN]),
    ("q_proj.bias", &[24]),
    ("k_proj.weight", &[12, HIDDEN]),
    ("k_proj.bias", &[12]),
    ("v_proj.weight", &[12, HIDDEN]),
    ("v_proj.bias", &[12]),
    ("o_proj.weight", &[HIDDEN, 24]),
];

fn tables(device: &Device) -> Result<RotaryTables> {
    RotaryTables::new(4, 16, 100.0, DType::F32, device)
}

fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = x.broadcast_matmul(&weight.t()?)?;
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}

fn rms(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let square = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(square + 1e-5)?.sqrt()?)?
        .broadcast_mul(weight)
}

/// The first 4 elements of each head `[batch, heads, tokens, 6]`, by halves.
fn rotate(x: &Tensor, tables: &RotaryTables) -> Result<Tensor> {
    let tokens = x.dim(2)?;
    let (cos, sin) = (
        tables.cos().narrow(0, 0, tokens)?,
        tables.sin().narrow(0, 0, tokens)?,
    );
    let part = |from, len| x.narrow(3, from, len);
    let (a, b, rest) = (part(0, 2)?, part(2, 2)?, part(4, 2)?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    Tensor::cat(&[first, second, rest], 3)
}

/// What the layers must give, in plain Candle.
fn composed(
    x: &Tensor,
    w: [(&Tensor, Option<&Tensor>); 4],
    norms: Option<(&Tensor, &Tensor)>,
) -> Result<Tensor> {
    let (b, s, _) = x.dims3()?;
    let device = x.device();
    let heads = |i: usize, n: usize| {
        linear(x, w[i].0, w[i].1)?
            .reshape((b, s, n, 6))?
            .transpose(1, 2)?
            .contiguous()
    };
    let (mut q, mut k, v) = (heads(0, 4)?, heads(1, 2)?, heads(2, 2)?);
    if let Some((of_q, of_k)) = norms {
        (q, k) = (rms(&q, of_q)?, rms(&k, of_k)?);
    }
    let tables = tables(device)?;
    (q, k) = (rotate(&q, &tables)?, rotate(&k, &tables)?);
    let twice = |x: Tensor| {
        x.unsqueeze(2)?
            .broadcast_as((b, 2, 2, s, 6))?
            .reshape((b, 4, s, 6))
    };
    let (k, v) = (twice(k)?, twice(v)?);
    let scores = (q.matmul(&k.t()?.contiguous()?)? / 6f64.sqrt())?;
    let hidden =
        (0..s).flat_map(|i| (0..s).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }));
    let hidden = Tensor::from_vec(hidden.collect::<Vec<_>>(), (s, s), device)?;
    let weights = candle_nn::ops::softmax(&scores.broadcast_add(&hidden)?, 3)?;
    let y = weights
        .matmul(&v.contiguous()?)?
        .transpose(1, 2)?
        .reshape((b, s, 24))?;
    linear(&y, w[3].0, w[3].1)
}

fn check(got: &Tensor, want: &Tensor, vars: &[&Tensor]) -> Result<()> {
    assert!(error(got, want)? < 1e-5, "{}", error(got, want)?);
    let weights = signal(got.dims(), 3, got.device())?;
    let grads = |y: &Tensor| (y * &weights)?.sum_all()?.backward();
    let (got, want) = (grads(got)?, grads(want)?);
    for (i, var) in vars.iter().enumerate() {
        let of = |grads: &candle_core::backprop::GradStore| {
            grads
                .get(var)
                .cloned()
                .unwrap_or_else(|| panic!("no gradient to variable {i}"))
        };
        let off = error(&of(&got), &of(&want))?;
        assert!(off < 2e-5, "the gradient to variable {i} is off by {off}");
    }
    Ok(())
}

#[test]
fn attention_is_the_composed_form() -> Result<()> {
    for device in devices() {
        let w = Weights::new(SEPARATE, device)?;
        let x = var(&[2, 5, HIDDEN], 1, device)?;
        let layer = attention(SIZES, w.vb(device))?.with_rotary(tables(device)?);
        let pair = |name: &str| {
            (
                w.get(&format!("{name}.weight")),
                w.0.get(&format!("{name}.bias")),
            )
        };
        let parts = [
            pair("q_proj"),
            pair("k_proj"),
            pair("v_proj"),
            pair("o_proj"),
        ];
        let mut vars: Vec<&Tensor> = w.0.values().chain([&x]).collect();
        check(&layer.forward(&x)?, &composed(&x, parts, None)?, &vars)?;
        let (of_q, of_k) = (var(&[6], 7, device)?, var(&[6], 8, device)?);
        let norm = |w: &Tensor| RmsNorm::new(w.clone(), 1e-5);
        let layer = layer.with_norms(norm(&of_q), norm(&of_k));
        vars.extend([&of_q, &of_k]);
        let want = composed(&x, parts, Some((&of_q, &of_k)))?;
        check(&layer.forward(&x)?, &want, &vars)?;
        assert!(!layer.detached().forward(&x.detach())?.track_op());
    }
    Ok(())
}

#[test]
fn packed_weights_are_pytorchs() -> Result<()> {
    for device in devices() {
        let shapes: &[(&str, &[usize])] = &[
            ("in_proj_weight", &[48, HIDDEN]),
            ("in_proj_bias", &[48]),
            ("out_proj.weight", &[HIDDEN, 24]),
            ("out_proj.bias", &[HIDDEN]),
        ];
        let w = Weights::new(shapes, device)?;
        let x = var(&[1, 4, HIDDEN], 1, device)?;
        let sizes = SIZES.with_biases(true, true);
        let layer = packed_attention(sizes, w.vb(device))?.with_rotary(tables(device)?);
        let rows = |name: &str| {
            let t = w.get(name);
            Ok([
                t.narrow(0, 0, 24)?,
                t.narrow(0, 24, 12)?,
                t.narrow(0, 36, 12)?,
            ])
        };
        let (weights, biases): ([Tensor; 3], [Tensor; 3]) =
            (rows("in_proj_weight")?, candle(rows("in_proj_bias"))?);
        let parts = [0, 1, 2].map(|i| (&weights[i], Some(&biases[i])));
        let out = (w.get("out_proj.weight"), w.0.get("out_proj.bias"));
        let want = composed(&x, [parts[0], parts[1], parts[2], out], None)?;
        let vars: Vec<&Tensor> = w.0.values().chain([&x]).collect();
        check(&layer.forward(&x)?, &want, &vars)?;
    }
    Ok(())
}

fn candle<T>(result: Result<T>) -> Result<T> {
    result
}

/// Chunks behind a cache give what the whole sequence gives, in a cache of either kind.
#[test]
fn caches_give_the_whole_sequences_results() -> Result<()> {
    for device in devices() {
        let w = Weights::new(SEPARATE, device)?;
        let layer = attention(SIZES, w.vb(device))?.with_rotary(tables(device)?);
        let window = AttentionConfig {
            causal: true,
            window_left: Some(2),
            ..Default::default()
        };
        for (config, layer) in [
            (FixedKvConfig::new(2, 2, 6, 9), layer.detached()),
            (
                FixedKvConfig::new(2, 2, 6, 5).with_window(3),
                layer.detached().with_config(window),
            ),
        ] {
            let x = signal(&[2, 9, HIDDEN], 5, device)?;
            let whole = layer.forward(&x)?;
            let mut growing = KvCache::new(2, 4);
            let mut fixed = FixedKvCache::new(config, DType::F32, device)?;
            let mut start = 0;
            for n in [3, 1, 2, 1, 1, 1] {
                let chunk = x.narrow(1, start, n)?;
                let want = whole.narrow(1, start, n)?;
                let got = layer.forward_with(&chunk, None, Some(&mut growing))?;
                assert!(error(&got, &want)? < 1e-5);
                let got = layer.forward_fixed(&chunk, &mut fixed, &[n, n])?;
                assert!(error(&got, &want)? < 1e-5);
                start += n;
            }
        }
        // Sequences of different lengths.
        let layer = layer.detached();
        let x = signal(&[2, 6, HIDDEN], 5, device)?;
        let whole = layer.forward(&x)?;
        let mut fixed = FixedKvCache::new(FixedKvConfig::new(2, 2, 6, 9), DType::F32, device)?;
        layer.forward_fixed(&x.narrow(1, 0, 4)?, &mut fixed, &[4, 2])?;
        let next = Tensor::cat(
            &[
                x.narrow(0, 0, 1)?.narrow(1, 4, 1)?,
                x.narrow(0, 1, 1)?.narrow(1, 2, 1)?,
            ],
            0,
        )?;
        let got = layer.forward_fixed(&next, &mut fixed, &[1, 1])?;
        assert!(error(&got.get(0)?, &whole.get(0)?.narrow(0, 4, 1)?)? < 1e-5);
        assert!(error(&got.get(1)?, &whole.get(1)?.narrow(0, 2, 1)?)? < 1e-5);
        // Without detached weights, the cache says that gradients would be lost.
        let layer = attention(SIZES, w.vb(device))?;
        let mut cache = KvCache::new(2, 9);
        layer.forward_with(&x, None, Some(&mut cache))?;
        let again = layer.forward_with(&x, None, Some(&mut cache));
        assert!(again.is_err_and(|error| error.to_string().contains("gradients")));
    }
    Ok(())
}

#[test]
fn mlps_and_blocks_are_the_composed_form() -> Result<()> {
    for device in devices() {
        let shapes: &[(&str, &[usize])] = &[
            ("gate_proj.weight", &[20, HIDDEN]),
            ("up_proj.weight", &[20, HIDDEN]),
            ("down_proj.weight", &[HIDDEN, 20]),
        ];
        let w = Weights::new(shapes, device)?;
        let x = var(&[2, 3, HIDDEN], 1, device)?;
        let gated_by = |x: &Tensor, act: fn(&Tensor) -> Result<Tensor>| {
            let gate = linear(x, w.get("gate_proj.weight"), None)?;
            let up = linear(x, w.get("up_proj.weight"), None)?;
            linear(&(act(&gate)? * up)?, w.get("down_proj.weight"), None)
        };
        let gated = |x: &Tensor| gated_by(x, Tensor::silu);
        let layer = swiglu(HIDDEN, 20, w.vb(device))?;
        let vars: Vec<&Tensor> = w.0.values().chain([&x]).collect();
        check(&layer.forward(&x)?, &gated(&x)?, &vars)?;
        let by_gelu = layer.clone().with_act(Act::GeluTanh);
        let want = gated_by(&x, Tensor::gelu)?;
        check(&by_gelu.forward(&x)?, &want, &vars)?;

        let shapes: &[(&str, &[usize])] = &[
            ("fc1.weight", &[20, HIDDEN]),
            ("fc1.bias", &[20]),
            ("fc2.weight", &[HIDDEN, 20]),
            ("fc2.bias", &[HIDDEN]),
        ];
        let plain = Weights::new(shapes, device)?;
        let of = |name: &str| plain.get(name);
        let between = |x: &Tensor| {
            let up = linear(x, of("fc1.weight"), Some(of("fc1.bias")))?.gelu_erf()?;
            linear(&up, of("fc2.weight"), Some(of("fc2.bias")))
        };
        let mlp = mlp(HIDDEN, 20, Activation::Gelu, true, plain.vb(device))?;
        let vars: Vec<&Tensor> = plain.0.values().chain([&x]).collect();
        check(&mlp.forward(&x)?, &between(&x)?, &vars)?;

        let a = Weights::new(SEPARATE, device)?;
        let pair = |name: &str| {
            (
                a.get(&format!("{name}.weight")),
                a.0.get(&format!("{name}.bias")),
            )
        };
        let parts = [
            pair("q_proj"),
            pair("k_proj"),
            pair("v_proj"),
            pair("o_proj"),
        ];
        let norms = [7, 8, 9].map(|seed| var(&[HIDDEN], seed, device).expect("a variable"));
        let attention = attention(SIZES, a.vb(device))?.with_rotary(tables(device)?);
        let rms_block = TransformerBlock::new(
            RmsNorm::new(norms[0].clone(), 1e-5).into_inner(),
            attention.clone(),
            RmsNorm::new(norms[1].clone(), 1e-5).into_inner(),
            layer,
        );
        let h = (&x + composed(&rms(&x, &norms[0])?, parts, None)?)?;
        let want = (&h + gated(&rms(&h, &norms[1])?)?)?;
        let mut vars: Vec<&Tensor> = a.0.values().chain(w.0.values()).chain([&x]).collect();
        vars.extend(&norms[..2]);
        check(&rms_block.forward(&x, None, None)?, &want, &vars)?;

        let layer_block = TransformerBlock::new(
            LayerNorm::new_no_bias(norms[0].clone(), 1e-5),
            attention,
            LayerNorm::new(norms[1].clone(), norms[2].clone(), 1e-5),
            mlp,
        );
        let centred = |x: &Tensor| x.broadcast_sub(&x.mean_keepdim(2)?);
        let h = (&x + composed(&rms(&centred(&x)?, &norms[0])?, parts, None)?)?;
        let normed = rms(&centred(&h)?, &norms[1])?.broadcast_add(&norms[2])?;
        let want = (&h + between(&normed)?)?;
        let mut vars: Vec<&Tensor> = a.0.values().chain(plain.0.values()).chain([&x]).collect();
        vars.extend(&norms);
        check(&layer_block.forward(&x, None, None)?, &want, &vars)?;
    }
    Ok(())
}

#[test]
fn wrong_sizes_are_refused() -> Result<()> {
    let device = &Device::Cpu;
    let vb = || VarBuilder::zeros(DType::F32, device);
    let sizes = AttentionSizes::new(12, 4);
    let words = ["attention: got", "kv_heads: 3", "expected kv_heads"];
    says(attention(sizes.with_kv_heads(3), vb()), &words);
    let none = AttentionSizes::new(12, 0);
    says(attention(none, vb()), &["attention: got", "heads: 0"]);
    let words = ["packed_attention: got", "kv_heads: 0"];
    says(packed_attention(sizes.with_kv_heads(0), vb()), &words);
    let odd = RotaryTables::new(5, 8, 1e4, DType::F32, device);
    says(odd, &["RotaryTables::new: got 5 rotary dims"]);
    let table = |n: usize| Tensor::zeros((4, n), DType::F32, device);
    says(
        RotaryTables::from_tables(table(2)?, table(3)?),
        &["RotaryTables::from_tables: got", "[4, 2]", "[4, 3]"],
    );
    let tables = tables(device)?.with_pairs(RopePairs::Interleaved);
    let layer = attention(AttentionSizes::new(12, 2), vb())?.with_rotary(tables);
    let x = Tensor::zeros((1, 17, 12), DType::F32, device)?;
    // More tokens than the tables have positions.
    says(layer.forward(&x), &["rope_qk: got", "expected"]);
    let mut cache = FixedKvCache::new(FixedKvConfig::new(1, 2, 6, 20), DType::F32, device)?;
    let refused = layer.forward_fixed(&x, &mut cache, &[17]);
    says(refused, &["Attention::forward_fixed: got", "position 15"]);
    assert_eq!(cache.lengths(), [0]);
    let config = FixedKvConfig::new(1, 2, 6, 20).with_window(4);
    let mut windowed = FixedKvCache::new(config, DType::F32, device)?;
    let one = x.narrow(1, 0, 1)?;
    let refused = layer.forward_fixed(&one, &mut windowed, &[1]);
    says(
        refused,
        &["Attention::forward_fixed: got", "window of Some(4)"],
    );
    let words = [
        "Attention::forward: got",
        "[17, 12]",
        "[batch, tokens, hidden]",
    ];
    says(layer.forward(&x.squeeze(0)?), &words);
    let words = ["Attention::forward: got", "6 elements", "expected 12"];
    says(layer.forward(&x.narrow(2, 0, 6)?), &words);
    let projections = Projections::Packed(Linear::new(
        Tensor::zeros((36, 12), DType::F32, device)?,
        None,
    ));
    let output = Linear::new(Tensor::zeros((12, 12), DType::F32, device)?, None);
    let layer = Attention::new(AttentionSizes::new(12, 2), projections, output)?;
    assert_eq!(layer.forward(&x)?.dims(), [1, 17, 12]);
    let thin = Linear::new(Tensor::zeros((35, 12), DType::F32, device)?, None);
    let output = Linear::new(Tensor::zeros((12, 12), DType::F32, device)?, None);
    let sizes = AttentionSizes::new(12, 2);
    let layer = Attention::new(sizes, Projections::Packed(thin), output)?;
    let words = ["Attention::forward: got 35 outputs", "expected 36"];
    says(layer.forward(&x), &words);
    Ok(())
}
