//! [`Attention`]: a layer with its projections, norms and rotation.

mod cached;
mod sizes;

pub use sizes::AttentionSizes;

use super::RotaryTables;
use crate::check;
use crate::nn::{linear_b, Linear, RmsNorm};
use crate::ops::{self, AttentionConfig, AttentionLayout, RopePositions};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

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
    fn forward(&self, name: &str, x: &Tensor, sizes: &AttentionSizes) -> Result<[Tensor; 3]> {
        let widths = sizes.widths();
        let has_width = |called: &str, x: &Tensor, expected: usize| {
            let got = x.dims().last().copied().unwrap_or(0);
            let message = format_args!("got {got} outputs of the projection to {called}, expected {expected} as for {sizes:?}");
            check::ensure(got == expected, name, message)
        };
        match self {
            Projections::Apart { q, k, v } => {
                let all = [q.forward(x)?, k.forward(x)?, v.forward(x)?];
                for (i, called) in ["queries", "keys", "values"].into_iter().enumerate() {
                    has_width(called, &all[i], widths[i])?;
                }
                Ok(all)
            }
            Projections::Packed(all) => {
                let (all, [q, k, v]) = (all.forward(x)?, widths);
                has_width("queries, keys and values", &all, q + k + v)?;
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

    /// How keys are weighed: causal or not, windows, masks, caps, sinks. The layout is the layer's own.
    pub fn with_config(self, config: AttentionConfig) -> Self {
        Attention { config, ..self }
    }

    /// The numbers of heads and elements.
    pub fn sizes(&self) -> &AttentionSizes {
        &self.sizes
    }

    /// How keys are weighed.
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
            rotary: self.rotary.as_ref().map(RotaryTables::detached),
            config: AttentionConfig {
                mask: detach(&self.config.mask),
                sinks: detach(&self.config.sinks),
                ..self.config.clone()
            },
        }
    }

    /// Queries, keys and values `[batch, tokens, heads, head_dim]`.
    fn heads(&self, name: &str, x: &Tensor, positions: RopePositions) -> Result<[Tensor; 3]> {
        let AttentionSizes {
            hidden,
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.sizes;
        let [batch, tokens, got] = check::dims(name, "x", x, ["batch", "tokens", "hidden"])?;
        let message = format_args!("got x of {got} elements for each token, expected {hidden}");
        check::ensure(got == hidden, name, message)?;
        let [q, k, v] = self.projections.forward(name, x, &self.sizes)?;
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
            ..config
        };
        let y = ops::attention(q, k, v, &config)?;
        self.output.forward(&y.flatten_from(2)?)
    }
}

/// [`Attention::forward_with`] without a mask or a cache.
impl Module for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_for("Attention::forward", x, None, None)
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
