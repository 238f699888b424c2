//! Attention with its projections.

use super::RotaryTables;
use crate::check;
use crate::nn::kv_cache::{FixedKvCache, KvCache};
use crate::nn::{linear_b, Linear, RmsNorm};
use crate::ops::{self, AttentionConfig, AttentionLayout, RopePositions};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// The sizes of an [`Attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Elements of a token.
    pub hidden: usize,
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has one.
    pub output_bias: bool,
}

impl AttentionSizes {
    /// As many heads of keys as of queries, which make up a token together; no biases.
    pub fn new(hidden: usize, heads: usize) -> Self {
        AttentionSizes {
            hidden,
            heads,
            kv_heads: heads,
            head_dim: hidden.checked_div(heads).unwrap_or(0),
            qkv_bias: false,
            output_bias: false,
        }
    }

    pub fn with_kv_heads(self, kv_heads: usize) -> Self {
        AttentionSizes { kv_heads, ..self }
    }

    pub fn with_head_dim(self, head_dim: usize) -> Self {
        AttentionSizes { head_dim, ..self }
    }

    pub fn with_biases(self, qkv_bias: bool, output_bias: bool) -> Self {
        AttentionSizes {
            qkv_bias,
            output_bias,
            ..self
        }
    }

    fn check(&self, name: &str) -> Result<()> {
        let sound =
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads) && self.head_dim > 0;
        let message =
            format_args!("got {self:?}, expected kv_heads that divide heads, and a head_dim");
        check::ensure(sound, name, message)
    }

    fn widths(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_dim)
    }
}

/// The projections to queries, keys and values.
#[derive(Clone, Debug)]
pub enum Projections {
    Apart {
        q: Linear,
        k: Linear,
        v: Linear,
    },
    /// One layer, whose outputs are all queries, then all keys, then all values.
    Packed(Linear),
}

impl Projections {
    fn forward(&self, x: &Tensor, sizes: &AttentionSizes) -> Result<[Tensor; 3]> {
        match self {
            Projections::Apart { q, k, v } => Ok([q.forward(x)?, k.forward(x)?, v.forward(x)?]),
            Projections::Packed(all) => {
                let (all, [q, k, v]) = (all.forward(x)?, sizes.widths());
                let part = |from, len| all.narrow(2, from, len);
                Ok([part(0, q)?, part(q, k)?, part(q + k, v)?])
            }
        }
    }
}

/// Self-attention of a sequence of tokens: projections to queries, keys and values, norms of queries and keys, rotation by
/// position, attention, and the projection of its heads back to a token. Causal unless [`with_config`](Self::with_config)
/// says otherwise.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::transformer::{attention, AttentionSizes};
/// use candle_fused::nn::{Module, VarBuilder};
/// use candle_fused::ops::AttentionConfig;
///
/// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let window = AttentionConfig { causal: true, window_left: Some(3), ..Default::default() };
/// let layer = attention(AttentionSizes::new(32, 4), vb)?.with_config(window);
/// let x = Tensor::ones((1, 6, 32), DType::F32, &Device::Cpu)?;
/// assert_eq!(layer.forward(&x)?.dims(), [1, 6, 32]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    sizes: AttentionSizes,
    projections: Projections,
    output: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    rotary: Option<RotaryTables>,
    config: AttentionConfig,
}

impl Attention {
    /// Of any projections.
    pub fn new(sizes: AttentionSizes, projections: Projections, output: Linear) -> Result<Self> {
        sizes.check("Attention::new")?;
        Ok(Attention {
            sizes,
            projections,
            output,
            norms: None,
            rotary: None,
            config: AttentionConfig {
                causal: true,
                ..Default::default()
            },
        })
    }

    /// Rotates queries and keys by their positions.
    pub fn with_rotary(self, tables: RotaryTables) -> Self {
        Attention {
            rotary: Some(tables),
            ..self
        }
    }

    /// Norms the heads of queries and of keys before they are rotated, as Qwen3 and Gemma3 do.
    pub fn with_norms(self, q: RmsNorm, k: RmsNorm) -> Self {
        Attention {
            norms: Some((q, k)),
            ..self
        }
    }

    /// How keys are weighed: causal or not, windows, caps, sinks. The layout is the layer's own, and so are lengths of keys.
    pub fn with_config(self, config: AttentionConfig) -> Self {
        Attention { config, ..self }
    }

    pub fn sizes(&self) -> &AttentionSizes {
        &self.sizes
    }

    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// The same layer outside any graph, for inference with a cache.
    pub fn detached(&self) -> Self {
        let linear = |layer: &Linear| layer.detached();
        let detach = |t: &Option<Tensor>| t.as_ref().map(Tensor::detach);
        let norm = |norm: &RmsNorm| RmsNorm::new(norm.weight().detach(), norm.eps());
        Attention {
            sizes: self.sizes,
            projections: match &self.projections {
                Projections::Apart { q, k, v } => Projections::Apart {
                    q: linear(q),
                    k: linear(k),
                    v: linear(v),
                },
                Projections::Packed(all) => Projections::Packed(linear(all)),
            },
            output: linear(&self.output),
            norms: self.norms.as_ref().map(|(q, k)| (norm(q), norm(k))),
            rotary: self.rotary.clone(),
            config: AttentionConfig {
                mask: detach(&self.config.mask),
                sinks: detach(&self.config.sinks),
                ..self.config.clone()
            },
        }
    }

    /// x is `[batch, tokens, hidden]`. A mask broadcasts to `[batch, heads, tokens, keys]`: of x's dtype it is added to the
    /// scores, of u8 it says which keys are seen; what else the layer's config hides stays hidden. With a cache, which has its
    /// tokens along dim 2, the tokens come behind those that it holds.
    pub fn forward_with(
        &self,
        x: &Tensor,
        mask: Option<&Tensor>,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let start = cache.as_ref().map_or(0, |cache| cache.current_seq_len());
        let [q, mut k, mut v] = self.heads(x, RopePositions::From(start))?;
        if let Some(cache) = cache {
            let by_heads = |x: &Tensor| x.transpose(1, 2);
            let all = cache.append(&by_heads(&k)?, &by_heads(&v)?)?;
            (k, v) = (by_heads(&all.0)?, by_heads(&all.1)?);
        }
        let mut config = self.config.clone();
        if let Some(mask) = mask {
            config.mask = Some(mask.clone());
        }
        self.attend(&q, &k, &v, config)
    }

    /// Causal attention behind the tokens of a cache in which each sequence has a length of its own: of sequence i the first
    /// `counts[i]` tokens count, and the result of the others means nothing. The cache's window is the layer's: `window_left`
    /// tokens and the token itself.
    pub fn forward_fixed(
        &self,
        x: &Tensor,
        cache: &mut FixedKvCache,
        counts: &[usize],
    ) -> Result<Tensor> {
        let tokens = x.dim(1)?;
        let (got, window) = (
            cache.config().window,
            self.config.window_left.map(|left| left + 1),
        );
        let message = format_args!(
            "got a cache with a window of {got:?}, expected {window:?} as the layer has"
        );
        check::ensure(got == window, "Attention::forward_fixed", message)?;
        let ids = cache.lengths().into_iter().flat_map(|len| {
            // Padding has no position of its own.
            (0..tokens).map(move |t| (len + t) as u32)
        });
        let ids: Vec<u32> = match &self.rotary {
            Some(tables) => {
                let last = tables.cos().dim(0)?.saturating_sub(1) as u32;
                let sound = cache
                    .lengths()
                    .iter()
                    .zip(counts)
                    .all(|(len, count)| *count == 0 || len + count - 1 <= last as usize);
                let message = format_args!(
                    "got tokens behind position {last}, the last of the rotary tables"
                );
                check::ensure(sound, "Attention::forward_fixed", message)?;
                ids.map(|id| id.min(last)).collect()
            }
            None => ids.collect(),
        };
        let ids = Tensor::from_vec(ids, (cache.config().batch, tokens), x.device())?;
        let [q, k, v] = self.heads(x, RopePositions::Ids(ids))?;
        let by_heads = |x: &Tensor| x.transpose(1, 2);
        cache.append_counts(&by_heads(&k)?, &by_heads(&v)?, counts)?;
        let config = self.config_for(cache, tokens, counts)?;
        let (keys, values) = (cache.keys()?, cache.values()?);
        self.attend(&q, &by_heads(&keys)?, &by_heads(&values)?, config)
    }

    /// What the tokens see of a cache behind which they have just been written.
    fn config_for(
        &self,
        cache: &FixedKvCache,
        tokens: usize,
        counts: &[usize],
    ) -> Result<AttentionConfig> {
        let whole = counts.iter().all(|&count| count == tokens);
        let causal = AttentionConfig {
            causal: true,
            mask: None,
            ..self.config.clone()
        };
        Ok(match cache.config().window.is_none() && whole {
            true => AttentionConfig {
                key_lengths: Some(cache.key_lengths()?),
                ..causal
            },
            // The cache's mask knows the lengths and the window, in whatever order the slots are.
            false => AttentionConfig {
                mask: Some(cache.mask(tokens)?),
                causal: false,
                window_left: None,
                ..causal
            },
        })
    }

    /// Queries, keys and values `[batch, tokens, heads, head_dim]`.
    fn heads(&self, x: &Tensor, positions: RopePositions) -> Result<[Tensor; 3]> {
        let (batch, tokens, _) = x.dims3()?;
        let AttentionSizes {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.sizes;
        let [q, k, v] = self.projections.forward(x, &self.sizes)?;
        let split = |x: &Tensor, heads: usize| x.reshape((batch, tokens, heads, head_dim));
        let (mut q, mut k) = (split(&q, heads)?, split(&k, kv_heads)?);
        let v = split(&v, kv_heads)?;
        match (&self.norms, &self.rotary) {
            (Some((of_q, of_k)), Some(tables)) if of_q.eps() == of_k.eps() && of_q.eps() > 0.0 => {
                let weights = (of_q.weight(), of_k.weight());
                let eps = of_q.eps() as f32;
                (q, k) = tables.norm_and_rotate((&q, &k), weights, eps, positions)?;
            }
            (norms, rotary) => {
                if let Some((of_q, of_k)) = norms {
                    (q, k) = (of_q.forward(&q)?, of_k.forward(&k)?);
                }
                if let Some(tables) = rotary {
                    (q, k) = tables.rotate(&q, &k, positions)?;
                }
            }
        }
        Ok([q, k, v])
    }

    fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        config: AttentionConfig,
    ) -> Result<Tensor> {
        let config = AttentionConfig {
            layout: AttentionLayout::Bshd,
            mask: match config.mask {
                Some(mask) if mask.dtype() != DType::U8 => Some(mask.to_dtype(q.dtype())?),
                mask => mask,
            },
            ..config
        };
        let y = ops::attention(q, k, v, &config)?;
        self.output.forward(&y.flatten_from(2)?)
    }
}

/// [`Attention::forward_with`] without a mask or a cache.
impl Module for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, None, None)
    }
}

/// Attention with the variables of Hugging Face's Llama, Mistral and Qwen: `q_proj`, `k_proj`, `v_proj` and `o_proj`, with
/// weights `[out, in]`.
pub fn attention(sizes: AttentionSizes, vb: VarBuilder) -> Result<Attention> {
    sizes.check("attention")?;
    let ([q, k, v], hidden) = (sizes.widths(), sizes.hidden);
    let input = |name, width| linear_b(hidden, width, sizes.qkv_bias, vb.pp(name));
    let projections = Projections::Apart {
        q: input("q_proj", q)?,
        k: input("k_proj", k)?,
        v: input("v_proj", v)?,
    };
    let output = linear_b(q, hidden, sizes.output_bias, vb.pp("o_proj"))?;
    Attention::new(sizes, projections, output)
}

/// Attention with the variables of PyTorch's `nn.MultiheadAttention`: `in_proj_weight` of queries, keys and values one below the
/// other, `in_proj_bias` and `out_proj`.
pub fn packed_attention(sizes: AttentionSizes, vb: VarBuilder) -> Result<Attention> {
    sizes.check("packed_attention")?;
    let widths = sizes.widths();
    let width = widths.iter().sum::<usize>();
    let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
    let weight = vb.get_with_hints((width, sizes.hidden), "in_proj_weight", init)?;
    let zeros = candle_nn::Init::Const(0.0);
    let bias = || vb.get_with_hints(width, "in_proj_bias", zeros);
    let bias = sizes.qkv_bias.then(bias).transpose()?;
    let projections = Projections::Packed(Linear::new(weight, bias));
    let output = linear_b(
        widths[0],
        sizes.hidden,
        sizes.output_bias,
        vb.pp("out_proj"),
    )?;
    Attention::new(sizes, projections, output)
}
