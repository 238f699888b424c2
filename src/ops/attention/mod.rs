//! Attention, `softmax(scale · q·kᵀ + mask)·v`, without a tensor of queries × keys, forward or backward.
//!
//! For query i and key j of a head, with `s = scale · qᵢ·kⱼ` and every option in use:
//!
//! ```text
//! t  = cap · tanh(s / cap) + maskᵢⱼ        −∞ where the query does not see the key
//! Lᵢ = ln(Σⱼ eᵗ + e^sink)                  saved for the backward, in f32
//! p  = e^(t − Lᵢ)
//! yᵢ = Σⱼ drop(p)·vⱼ                       drop: p · 0 or p / (1 − probability)
//! ```
//!
//! Scores are computed tile by tile; the maximum and the sum of a row are corrected as tiles come in. A query that sees no
//! key gives zeros and gets none: L = +∞, so that p = 0. Backward, from the saved L, with g the gradient of y:
//!
//! ```text
//! Δᵢ = gᵢ·yᵢ                               = Σⱼ p·dp; of y in f32, which is kept for it where y is rounded to 16 bits
//! dp = drop(gᵢ·vⱼ)
//! dt = p·(dp − Δᵢ)                         the gradient of the mask, summed over the dims in which it is repeated
//! ds = dt · (1 − tanh²(s / cap))
//! dqᵢ = scale · Σⱼ ds·kⱼ     dkⱼ = scale · Σᵢ ds·qᵢ     dvⱼ = Σᵢ drop(p)·gᵢ     dsink = −Σᵢ e^(sink − Lᵢ)·Δᵢ
//! ```
//!
//! A head of keys that several heads of queries share sums their gradients. All sums are f32, for every dtype. A NaN or an
//! infinity in q reaches its own row; one in a key or a value that a query does not see may or may not reach it, as tiles
//! without a visible key are skipped, but one beyond `key_lengths` never does.

mod backward;
mod codes;
#[cfg(any(test, feature = "metal"))]
mod composed;
mod config;
mod cpu;
mod geometry;
#[cfg(feature = "metal")]
mod metal;
mod reference;

pub use codes::{attention_codes, AttentionCodes};
pub use config::{AttentionConfig, AttentionDropout, AttentionLayout, PackedSequences};
pub(crate) use geometry::MAX_DIM;
pub use reference::reference;

use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, MultiOp, Op, OpResults, Spec};
use backward::gradients;
use candle_core::{Result, Shape, Tensor};
use geometry::{roles, Geometry, Roles, Rules};

const NAME: &str = "attention";

/// `softmax(scale · q·kᵀ + mask)·v` for each head: q `[B, H, Sq, D]`, k `[B, Hkv, Sk, D]`, v `[B, Hkv, Sk, Dv]` with H a
/// multiple of Hkv and D, Dv up to 512. See [`AttentionConfig`] for masks, windows, caps, sinks, dropout and other layouts.
/// Differentiable in q, k, v, an additive mask and the sinks.
///
/// Views are read as they are, without a copy, if their last dim is dense: q, k and v may be parts of one tensor, or k and v
/// of a cache with room for more keys.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{attention, AttentionConfig};
/// let q = Tensor::zeros((1, 1, 2, 1), candle_core::DType::F32, &Device::Cpu)?;
/// let v = Tensor::new(&[[[[1f32], [3.]]]], &Device::Cpu)?;
/// let y = attention(&q, &q, &v, &AttentionConfig { causal: true, ..Default::default() })?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 2.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, config: &AttentionConfig) -> Result<Tensor> {
    attention_for(NAME, q, k, v, config)
}

/// [`attention`] on behalf of the function `name`.
fn attention_for(
    name: &'static str,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    config: &AttentionConfig,
) -> Result<Tensor> {
    let args = roles([q, k, v], config).list();
    let tracks = args.iter().any(|t| t.track_op());
    let op = Attend::new(config, tracks);
    check::same_device(name, &op.arg_names(), &args)?;
    let mut outputs = op::apply_multi(name, op, &args)?;
    outputs
        .pop()
        .ok_or_else(|| check::error(name, "got no output, expected one"))
}

/// [`attention`] as a CustomOp of q, k and v. The tensors of the config get no gradient; its backward runs the forward again,
/// because a CustomOp cannot keep what [`attention`] keeps.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{Attention, AttentionConfig};
/// let q = Tensor::zeros((1, 1, 2, 1), candle_core::DType::F32, &Device::Cpu)?;
/// let v = Tensor::new(&[[[[1f32], [3.]]]], &Device::Cpu)?;
/// let y = q.apply_op3(&q, &v, Attention { config: AttentionConfig::default() })?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2., 2.]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    pub config: AttentionConfig,
}

custom_op!(Attention: CustomOp3);

impl Op for Attention {
    signature!(NAME(q, k, v));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let held: Vec<Spec> = self.held().into_iter().map(Spec::from).collect();
        MultiOp::check(&self.op(), name, &[args, &held].concat())
    }
    fn held(&self) -> Vec<&Tensor> {
        self.config.tensors().collect()
    }
    kernels!(self, args => {
        let outputs = op::with_storages(NAME, &self.held(), |held| {
            device::forward(&self.op(), &[args, held].concat())
        })?;
        let mut outputs = outputs.into_iter();
        outputs.next().ok_or_else(|| check::error(NAME, "got no output, expected one"))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        let args = [inputs, &self.held()].concat();
        let detached: Vec<Tensor> = args.iter().map(|t| t.detach()).collect();
        let detached: Vec<&Tensor> = detached.iter().collect();
        // With what the backward needs for outputs, as it is saved nowhere.
        let saving = Attend::new(&self.config, true);
        let outputs = op::apply_multi(NAME, WithSaved(saving), &detached)?;
        let args: Vec<Tensor> = args.into_iter().cloned().collect();
        let mut grads = gradients(&self.op(), &args, &outputs, grad)?;
        grads.truncate(inputs.len());
        Ok(grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], args[2], &self.config)
    }
}

impl Attention {
    fn op(&self) -> Attend {
        Attend::new(&self.config, false)
    }
}

/// `(q, k, v[, mask][, sinks][, key_lengths])` → `y`, and, to be saved, the log-sum-exp of each query and `y` in f32. The
/// latter is empty where y is f32, or the op does not keep it: then the backward starts from `y`.
#[derive(Clone, Debug)]
pub(crate) struct Attend {
    rules: Rules,
    packed: Option<PackedSequences>,
    has_mask: bool,
    has_sinks: bool,
    has_key_lengths: bool,
    /// Whether a result of 16 bits is saved in f32 too, for the backward.
    keeps_wide: bool,
}

impl Attend {
    fn new(config: &AttentionConfig, keeps_wide: bool) -> Self {
        Attend {
            keeps_wide,
            rules: Rules::of(config),
            packed: config.packed.clone(),
            has_mask: config.mask.is_some(),
            has_sinks: config.sinks.is_some(),
            has_key_lengths: config.key_lengths.is_some(),
        }
    }

    /// The names of the arguments that this call has.
    fn arg_names(&self) -> Vec<&'static str> {
        let rest = [
            (self.has_mask, "mask"),
            (self.has_sinks, "sinks"),
            (self.has_key_lengths, "key_lengths"),
        ];
        let rest = rest.into_iter().filter(|(here, _)| *here);
        let all = ["q", "k", "v"].into_iter();
        all.chain(rest.map(|(_, name)| name)).collect()
    }

    /// The arguments by their roles. There are as many as [`Attend::arg_names`] says.
    pub(crate) fn roles<T: Copy>(&self, args: &[T]) -> Roles<T> {
        let mut rest = args[3..].iter().copied();
        let mut next = |here: bool| if here { rest.next() } else { None };
        Roles {
            q: args[0],
            k: args[1],
            v: args[2],
            mask: next(self.has_mask),
            sinks: next(self.has_sinks),
            key_lengths: next(self.has_key_lengths),
        }
    }

    /// The sizes of the call, if its arguments go together.
    pub(crate) fn geometry(&self, name: &'static str, args: &[Spec<'_>]) -> Result<Geometry> {
        let (got, names) = (args.len(), self.arg_names());
        let message = format_args!("got {got} tensors, expected {names:?}");
        check::ensure(got == names.len(), name, message)?;
        check::same_floats(name, &names, &args[..3])?;
        Geometry::new(name, &self.rules, self.packed.as_ref(), &self.roles(args))
    }

    /// The config that this op was made from, with other tensors.
    fn config(&self, args: &[&Tensor]) -> AttentionConfig {
        let (rules, roles) = (&self.rules, self.roles(args));
        AttentionConfig {
            scale: rules.scale,
            causal: rules.causal,
            window_left: rules.window_left,
            window_right: rules.window_right,
            mask: roles.mask.cloned(),
            key_lengths: roles.key_lengths.cloned(),
            packed: self.packed.clone(),
            softcap: rules.softcap,
            sinks: roles.sinks.cloned(),
            dropout: rules.dropout,
            layout: rules.layout,
        }
    }
}

impl<'a> Roles<&'a Tensor> {
    fn list(&self) -> Vec<&'a Tensor> {
        let rest = [self.mask, self.sinks, self.key_lengths];
        let all = [self.q, self.k, self.v].into_iter();
        all.chain(rest.into_iter().flatten()).collect()
    }
}

impl MultiOp for Attend {
    const ARGS: &'static [&'static str] = &["q", "k", "v", "mask", "sinks", "key_lengths"];
    const SAVED: usize = 2;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.geometry(name, args).map(drop)
    }
    kernels!(many: self, args => with_wide(device::forward(self, args)?));
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        match &grads[0] {
            Some(grad) => gradients(self, inputs, outputs, grad),
            None => Ok(vec![None; inputs.len()]),
        }
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let y = reference(args[0], args[1], args[2], &self.config(args))?;
        Ok(vec![y])
    }
}

/// The outputs of a kernel, with an empty one for the result in f32 if there is none.
fn with_wide<S: Clone>(mut outputs: Vec<(S, Shape)>) -> OpResults<S> {
    if outputs.len() == 2 {
        let empty = (outputs[1].0.clone(), 0.into());
        outputs.push(empty);
    }
    Ok(outputs)
}

/// [`Attend`], which returns what it saves too.
struct WithSaved(Attend);

impl MultiOp for WithSaved {
    const ARGS: &'static [&'static str] = Attend::ARGS;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.0.geometry(name, args).map(drop)
    }
    kernels!(many: self, args => with_wide(device::forward(&self.0, args)?));
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(candle_core::Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let (q, k, v) = (args[0], args[1], args[2]);
        let (y, sums) = reference::with_log_sums(q, k, v, &self.0.config(args))?;
        Ok(vec![y.clone(), sums, y])
    }
}
