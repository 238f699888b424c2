//! A Llama of random weights, written as Candle's examples are. It is compiled twice: `nn` is `candle_nn` or
//! `candle_fused::nn`.

use super::nn::kv_cache::KvCache;
use super::nn::ops::{silu, softmax_last_dim};
use super::nn::rotary_emb::rope;
use super::nn::{Linear, Module, RmsNorm};
use candle_core::{DType, Device, Result, Tensor};

const HEADS: usize = 16;
const KV_HEADS: usize = 4;
const DIM: usize = 64;
const HIDDEN: usize = HEADS * DIM;
const INTERMEDIATE: usize = 2816;
const LONGEST: usize = 4096;

#[derive(Clone)]
pub struct Model {
    blocks: Vec<Block>,
    cos: Tensor,
    sin: Tensor,
}

#[derive(Clone)]
struct Block {
    norms: [RmsNorm; 2],
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    cache: KvCache,
}

fn linear(inputs: usize, outputs: usize) -> Result<Linear> {
    let w = Tensor::randn(
        0f32,
        (inputs as f32).powf(-0.5),
        (outputs, inputs),
        &Device::Cpu,
    )?;
    Ok(Linear::new(w, None))
}

fn norm() -> Result<RmsNorm> {
    Ok(RmsNorm::new(
        Tensor::ones(HIDDEN, DType::F32, &Device::Cpu)?,
        1e-5,
    ))
}

impl Block {
    fn new() -> Result<Self> {
        Ok(Block {
            norms: [norm()?, norm()?],
            q: linear(HIDDEN, HIDDEN)?,
            k: linear(HIDDEN, KV_HEADS * DIM)?,
            v: linear(HIDDEN, KV_HEADS * DIM)?,
            o: linear(HIDDEN, HIDDEN)?,
            gate: linear(HIDDEN, INTERMEDIATE)?,
            up: linear(HIDDEN, INTERMEDIATE)?,
            down: linear(INTERMEDIATE, HIDDEN)?,
            cache: KvCache::new(2, LONGEST),
        })
    }

    fn forward(&mut self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let heads = |x: Tensor, n: usize| -> Result<Tensor> {
            x.reshape((batch, tokens, n, DIM))?
                .transpose(1, 2)?
                .contiguous()
        };
        let h = self.norms[0].forward(x)?;
        let q = rope(&heads(self.q.forward(&h)?, HEADS)?, cos, sin)?;
        let k = rope(&heads(self.k.forward(&h)?, KV_HEADS)?, cos, sin)?;
        let v = heads(self.v.forward(&h)?, KV_HEADS)?;
        let (k, v) = self.cache.append(&k, &v)?;
        // Heads that share keys become rows.
        let q = q.reshape((batch, KV_HEADS, HEADS / KV_HEADS * tokens, DIM))?;
        let scores = (q.matmul(&k.t()?)? * (DIM as f64).powf(-0.5))?;
        let y = softmax_last_dim(&scores)?.matmul(&v.contiguous()?)?;
        let y = y.reshape((batch, HEADS, tokens, DIM))?.transpose(1, 2)?;
        let x = (x + self.o.forward(&y.reshape((batch, tokens, HIDDEN))?)?)?;
        let h = self.norms[1].forward(&x)?;
        let h = (silu(&self.gate.forward(&h)?)? * self.up.forward(&h)?)?;
        x + self.down.forward(&h)?
    }
}

impl Model {
    pub fn new(blocks: usize) -> Result<Self> {
        let angles = Tensor::rand(-1f32, 1., (LONGEST, DIM / 2), &Device::Cpu)?;
        Ok(Model {
            blocks: (0..blocks).map(|_| Block::new()).collect::<Result<_>>()?,
            cos: angles.cos()?,
            sin: angles.sin()?,
        })
    }

    /// Appends the tokens `x` to the caches, behind the tokens of earlier calls, and returns their hidden states.
    pub fn forward(&mut self, x: &Tensor) -> Result<Tensor> {
        let (at, tokens) = (self.blocks[0].cache.current_seq_len(), x.dim(1)?);
        let (cos, sin) = (
            self.cos.narrow(0, at, tokens)?,
            self.sin.narrow(0, at, tokens)?,
        );
        let mut x = x.clone();
        for block in &mut self.blocks {
            x = block.forward(&x, &cos, &sin)?;
        }
        Ok(x)
    }

    pub fn reset(&mut self) {
        for block in &mut self.blocks {
            block.cache.reset();
        }
    }
}

/// Some tokens of random numbers.
pub fn tokens(count: usize) -> Result<Tensor> {
    Tensor::randn(0f32, 1., (1, count, HIDDEN), &Device::Cpu)
}
