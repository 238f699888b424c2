//! A small transformer after BitNet b1.58: ternary projections with 8-bit inputs, norms before the output projections too,
//! and MLPs gated by relu². Embeddings and head stay in f32.

use crate::data::Batch;
use crate::init;
use crate::projection::{Form, Projection, EPS};
use crate::rng::Rng;
use crate::shape::Shape;
use crate::train::Learner;
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::nn::kv_cache::KvCache;
use candle_fused::nn::quantized::Tensors;
use candle_fused::nn::{self, Embedding, Linear, Module, RmsNorm, VarBuilder, VarMap};
use candle_fused::ops::{self, Act, Mask};
use std::ops::Range;

pub struct Model {
    shape: Shape,
    tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

struct Layer {
    attention_norm: RmsNorm,
    /// Queries, keys and values.
    inputs: [Projection; 3],
    output: Projection,
    mlp_norm: RmsNorm,
    gate: Projection,
    up: Projection,
    down: Projection,
}

impl Layer {
    fn new(shape: Shape, form: Form, vb: VarBuilder) -> Result<Self> {
        let Shape { dim, hidden, .. } = shape;
        let (attention, mlp) = (vb.pp("self_attn"), vb.pp("mlp"));
        let input = |name| Projection::new(dim, dim, false, form, attention.pp(name));
        let wide = |name| Projection::new(dim, hidden, false, form, mlp.pp(name));
        Ok(Layer {
            attention_norm: nn::rms_norm(dim, EPS, vb.pp("input_layernorm"))?,
            inputs: [input("q_proj")?, input("k_proj")?, input("v_proj")?],
            output: Projection::new(dim, dim, true, form, attention.pp("o_proj"))?,
            mlp_norm: nn::rms_norm(dim, EPS, vb.pp("post_attention_layernorm"))?,
            gate: wide("gate_proj")?,
            up: wide("up_proj")?,
            down: Projection::new(hidden, dim, true, form, mlp.pp("down_proj"))?,
        })
    }

    fn forward(&self, x: &Tensor, turns: &Turns, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let normed = self.attention_norm.forward(x)?;
        let x = (x + self.attend(&normed, turns, cache)?)?;
        let normed = self.mlp_norm.forward(&x)?;
        let (gate, up) = (self.gate.forward(&normed)?, self.up.forward(&normed)?);
        let gated = ops::glu(&gate, &up, Act::Relu2)?;
        x + self.down.forward(&gated)?
    }

    fn attend(&self, x: &Tensor, turns: &Turns, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let (batch, count, dim) = x.dims3()?;
        let width = turns.cos.dim(1)?;
        let split = |layer: &Projection| {
            let y = layer
                .forward(x)?
                .reshape((batch, count, dim / width, width))?;
            y.transpose(1, 2)?.contiguous()
        };
        let [q, k, v] = &self.inputs;
        let (q, mut k, mut v) = (
            turns.apply(&split(q)?)?,
            turns.apply(&split(k)?)?,
            split(v)?,
        );
        if let Some(cache) = cache {
            // A cache passes no gradient on, and says so where one would be lost.
            (k, v) = cache.append(&k.detach(), &v.detach())?;
        }
        let scores = q.matmul(&k.t()?)?;
        let weights = ops::masked_softmax(&scores, (width as f32).powf(-0.5), Mask::Causal)?;
        let y = weights.matmul(&v)?.transpose(1, 2)?;
        self.output.forward(&y.reshape((batch, count, dim))?)
    }

    fn projections(&self) -> impl Iterator<Item = &Projection> {
        let rest = [&self.output, &self.gate, &self.up, &self.down];
        self.inputs.iter().chain(rest)
    }
}

/// Rotary embeddings of positions.
struct Turns {
    /// `[positions, width]`
    cos: Tensor,
    sin: Tensor,
}

impl Turns {
    fn new(positions: Range<usize>, width: usize) -> Result<Self> {
        let speed = |i: usize| 1e4f64.powf(-2.0 * i as f64 / width as f64);
        let angle =
            |position: usize| (0..width).map(move |i| position as f64 * speed(i % (width / 2)));
        let shape = (positions.len(), width);
        let angles: Vec<f64> = positions.flat_map(angle).collect();
        let of = |f: fn(f64) -> f64| {
            let values = angles.iter().map(|&angle| f(angle) as f32).collect();
            Tensor::from_vec(values, shape, &Device::Cpu)
        };
        Ok(Turns {
            cos: of(f64::cos)?,
            sin: of(f64::sin)?,
        })
    }

    /// Of `[batch, heads, positions, width]`: pairs of the two halves' elements turn by the angles.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let half = x.dim(D::Minus1)? / 2;
        let first = x.narrow(D::Minus1, 0, half)?;
        let second = x.narrow(D::Minus1, half, half)?;
        let ahead = Tensor::cat(&[second.neg()?, first], D::Minus1)?;
        // Unlike `*`, it makes no gradient for the angles.
        let times = |x: &Tensor, y| ops::mul_act(x, y, Act::Identity);
        times(x, &self.cos)? + times(&ahead, &self.sin)?
    }
}

/// Keys and values of the characters so far, for each layer.
pub struct Cache(Vec<KvCache>);

impl Cache {
    pub fn len(&self) -> usize {
        self.0.first().map_or(0, KvCache::current_seq_len)
    }
}

impl Model {
    pub fn new(shape: Shape, form: Form, vb: VarBuilder) -> Result<Self> {
        let model = vb.pp("model");
        let Shape {
            vocabulary, dim, ..
        } = shape;
        let layer = |i: usize| Layer::new(shape, form, model.pp("layers").pp(i));
        Ok(Model {
            shape,
            tokens: nn::embedding(vocabulary, dim, model.pp("embed_tokens"))?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: nn::rms_norm(dim, EPS, model.pp("norm"))?,
            head: nn::linear_no_bias(dim, vocabulary, vb.pp("lm_head"))?,
        })
    }

    /// With all of its weights to be trained.
    pub fn untrained(shape: Shape, rng: &mut Rng) -> Result<(Self, VarMap)> {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let model = Self::new(shape, Form::Trained, vb)?;
        init::fill(&vars, shape.layers, rng)?;
        Ok((model, vars))
    }

    /// For inference, from what [`frozen`](Self::frozen) gave.
    pub fn load(shape: Shape, form: Form, tensors: &Tensors) -> Result<Self> {
        let vb = VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu);
        Self::new(shape, form, vb)
    }

    /// The tensors of the model with its projections packed.
    pub fn frozen(&self, vars: &VarMap) -> Result<Tensors> {
        let data = vars.data().lock().expect("no thread has panicked");
        let detached = data.iter().map(|(name, var)| (name.clone(), var.detach()));
        let mut tensors: Tensors = detached.collect();
        for projection in self.projections() {
            let own = format!("{}.", projection.path());
            tensors.retain(|name, _| !name.starts_with(&own));
            tensors.extend(projection.frozen()?);
        }
        Ok(tensors)
    }

    pub fn projections(&self) -> impl Iterator<Item = &Projection> {
        self.layers.iter().flat_map(Layer::projections)
    }

    pub fn cache(&self) -> Cache {
        let layer = |_| KvCache::new(2, self.shape.context);
        Cache((0..self.shape.layers).map(layer).collect())
    }

    /// `[batch, count]` to `[batch, count, vocabulary]`; what comes after the characters of the cache, if there is one.
    pub fn forward(&self, ids: &Tensor, mut cache: Option<&mut Cache>) -> Result<Tensor> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let end = start + ids.dim(1)?;
        if end > self.shape.context {
            let context = self.shape.context;
            candle_core::bail!("{end} characters given, at most {context} accepted");
        }
        let turns = Turns::new(start..end, self.shape.dim / self.shape.heads)?;
        let mut x = self.tokens.forward(ids)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let cache = cache.as_mut().map(|cache| &mut cache.0[i]);
            x = layer.forward(&x, &turns, cache)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let logits = self.forward(&batch.inputs, None)?.flatten_to(1)?;
        nn::loss::nll(&ops::log_softmax(&logits, 1)?, &batch.targets)
    }
}

impl Learner for Model {
    fn context(&self) -> usize {
        self.shape.context
    }
    fn training_loss(&self, batch: &Batch) -> Result<Tensor> {
        self.loss(batch)
    }
    fn test_loss(&self, batch: &Batch) -> Result<Tensor> {
        self.loss(batch)
    }
}
