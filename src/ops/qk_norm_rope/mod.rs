//! The RMS norm of each head of q and k, and their rotation, in one pass (Qwen3, Gemma 3):
//!
//! ```text
//! x̂ = x / √(mean(x²) + eps) over the elements of a head
//! y = rotate(x̂ · (offset + weight))
//! ```
//!
//! Backward, with u the gradient of y rotated back, `s = 1 / √(mean(x²) + eps)` and `h = u · (offset + weight)`:
//! `dx = s · (h − x̂ · mean(h · x̂))` and `dweight = Σ u · x̂` over all heads and positions. f16 and bf16 are computed in f32
//! and rounded once; no tensor lies between norm and rotation.

mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod one;

pub use one::HeadNormRope;

use super::rope::{check_pair, table_gradients, Rope, Rotation};
use super::row_norm::reference_rms;
use super::widen::widened;
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use candle_core::{Error, Result, Tensor};

const NAME: &str = "qk_norm_rope";

/// The norm of [`qk_norm_rope()`], and the rotation behind it.
///
/// Gemma's norms multiply by 1 + weight: that is a `weight_offset` of 1, others have 0.
///
/// ```
/// use candle_fused::ops::{QkNormRope, Rope};
/// let gemma = QkNormRope {
///     eps: 1e-6,
///     weight_offset: 1.0,
///     rope: Rope::default(),
/// };
/// # let _ = gemma;
/// ```
#[derive(Clone, Debug)]
pub struct QkNormRope {
    /// Keeps the norm's divisor away from zero.
    pub eps: f32,
    /// What is added to the weights.
    pub weight_offset: f32,
    /// The rotation.
    pub rope: Rope,
}

/// Norms the heads of q and k, each with its weight over the elements of a head, and rotates them as [`rope`](super::rope())
/// does. Differentiable in q, k and both weights, and in cos and sin where they track gradients.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{qk_norm_rope, QkNormRope, Rope};
/// let q = Tensor::new(&[[[3f32, 4., 0., 0.]]], &Device::Cpu)?;
/// let weight = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?;
/// // A quarter turn for the first pair, none for the second.
/// let cos = Tensor::new(&[[0f32, 1.]], &Device::Cpu)?;
/// let sin = Tensor::new(&[[1f32, 0.]], &Device::Cpu)?;
/// let norm = QkNormRope { eps: 1e-9, weight_offset: 0.0, rope: Rope::default() };
/// let (q, _k) = qk_norm_rope(&q, &q, &weight, &weight, &cos, &sin, &norm)?;
/// assert_eq!(q.to_vec3::<f32>()?, [[[0., 1.6, 1.2, 0.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn qk_norm_rope(
    q: &Tensor,
    k: &Tensor,
    q_weight: &Tensor,
    k_weight: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    norm: &QkNormRope,
) -> Result<(Tensor, Tensor)> {
    norm.rope.check_device(NAME, q)?;
    let args = [q, k, q_weight, k_weight, cos, sin];
    let op = NormRope::new(norm);
    #[cfg(feature = "metal")]
    if q.device().is_metal() && !metal::has_kernel(q, cos) {
        check::same_device(NAME, NormRope::ARGS, &args)?;
        op.check(NAME, &op::specs(&args))?;
        return by_parts(&args, norm);
    }
    op::apply_multi_pair(NAME, op, &args)
}

/// Norm and rotation one after the other, for heads that are too long for the kernel. Between them 16-bit numbers are f32, and
/// rounded once.
#[cfg(feature = "metal")]
fn by_parts(args: &[&Tensor; 6], norm: &QkNormRope) -> Result<(Tensor, Tensor)> {
    let dtype = args[0].dtype();
    let wide = args.iter().map(|arg| widened(arg));
    let wide = wide.collect::<Result<Vec<_>>>()?;
    let [q, k, q_weight, k_weight, cos, sin] = [0, 1, 2, 3, 4, 5].map(|i| &wide[i]);
    let normed = |x: &Tensor, weight: &Tensor| {
        let weight = (weight + f64::from(norm.weight_offset))?;
        super::rms_norm(x, Some(&weight), norm.eps)
    };
    let (q, k) = (normed(q, q_weight)?, normed(k, k_weight)?);
    let (q, k) = super::rope_qk(&q, &k, cos, sin, &norm.rope)?;
    Ok((q.to_dtype(dtype)?, k.to_dtype(dtype)?))
}

/// `(q, k, q_weight, k_weight, cos, sin)` → `(q, k)`
#[derive(Clone)]
struct NormRope {
    eps: f32,
    weight_offset: f32,
    rotation: Rotation,
}

impl NormRope {
    fn new(norm: &QkNormRope) -> Self {
        NormRope {
            eps: norm.eps,
            weight_offset: norm.weight_offset,
            rotation: Rotation::new(NAME, &norm.rope),
        }
    }

    /// A weight and tables fit heads. Errors call the heads and the weight by the names of the caller's arguments.
    fn check_heads(
        &self,
        name: &str,
        [heads, weights]: [&str; 2],
        [x, weight, cos, sin]: [Spec<'_>; 4],
    ) -> Result<()> {
        check::eps(name, self.eps.into())?;
        let rope = &self.rotation.rope;
        rope.check_args(name, heads, [x, cos, sin])?;
        check::vector(name, weights, weight, x.dims()[x.rank() - 1], "last dim")
    }

    fn compose(&self, x: &Tensor, weight: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        if x.elem_count() == 0 {
            return Ok(x.clone());
        }
        let [wide, weight, cos, sin] =
            [widened(x)?, widened(weight)?, widened(cos)?, widened(sin)?];
        let weight = (weight + f64::from(self.weight_offset))?;
        let normed = reference_rms(&wide, Some(&weight), self.eps)?;
        let rotated = self.rotation.reference(&normed, &cos, &sin)?;
        rotated.to_dtype(x.dtype())
    }
}

impl MultiOp for NormRope {
    const ARGS: &'static [&'static str] = &["q", "k", "q_weight", "k_weight", "cos", "sin"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, args)?;
        let [q, k, q_weight, k_weight, cos, sin] = [0, 1, 2, 3, 4, 5].map(|i| args[i]);
        self.check_heads(name, ["q", "q_weight"], [q, q_weight, cos, sin])?;
        check_pair(name, &self.rotation.rope, q, k)?;
        check::vector(
            name,
            "k_weight",
            k_weight,
            q.dims()[q.rank() - 1],
            "last dim",
        )
    }
    kernels!(many: self, args => self.rotation.rope.with_tables(NAME, [args[4], args[5]], |tables| {
        let [q, k] = device::forward(self, args, tables)?;
        Ok(vec![(q, args[0].1.shape().clone()), (k, args[1].1.shape().clone())])
    }));
    fn bwd(&self, inputs: &[Tensor], _: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let wanted: Vec<bool> = inputs[..4].iter().map(|input| input.track_op()).collect();
        let mut all = vec![None; 6];
        if wanted.contains(&true) {
            // What did not contribute to the loss has a gradient of zeros.
            let grad = |i: usize| match &grads[i] {
                Some(grad) => Ok(grad.clone()),
                None => inputs[i].zeros_like(),
            };
            let backward = NormRopeBwd {
                weights: wanted[2] || wanted[3],
                forward: self.clone(),
            };
            let grads = [grad(0)?, grad(1)?];
            let args: Vec<&Tensor> = inputs.iter().chain(&grads).collect();
            let outputs = op::apply_multi(NAME, backward, &args)?;
            for (i, output) in outputs.into_iter().enumerate() {
                all[i] = Some(output).filter(|_| wanted[i]);
            }
        }
        let forward = |tables: &[Tensor; 2]| {
            let of = |i: usize| {
                let (x, weight) = (inputs[i].detach(), inputs[i + 2].detach());
                self.compose(&x, &weight, &tables[0], &tables[1])
            };
            Ok(vec![of(0)?, of(1)?])
        };
        let grads = [grads[0].as_ref(), grads[1].as_ref()];
        let tables = [&inputs[4], &inputs[5]];
        let [dcos, dsin] = table_gradients(NAME, tables, &grads, forward)?;
        (all[4], all[5]) = (dcos, dsin);
        Ok(all)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let of = |i: usize| self.compose(args[i], args[i + 2], args[4], args[5]);
        Ok(vec![of(0)?, of(1)?])
    }
}

/// `(q, k, q_weight, k_weight, cos, sin, dq, dk)`, the last two of the outputs → the gradients of the first four, those of
/// the weights only if they are wanted.
struct NormRopeBwd {
    weights: bool,
    forward: NormRope,
}

impl NormRopeBwd {
    /// How many gradients there are.
    fn outputs(&self) -> usize {
        if self.weights {
            4
        } else {
            2
        }
    }
}

impl MultiOp for NormRopeBwd {
    const ARGS: &'static [&'static str] = &[
        "q", "k", "q_weight", "k_weight", "cos", "sin", "grad_q", "grad_k",
    ];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, args)?;
        self.forward.check(name, &args[..6])?;
        check::same_shape(name, args[0], "grad_q", args[6])?;
        check::same_shape(name, args[1], "grad_k", args[7])
    }
    kernels!(many: self, args => self.forward.rotation.rope.with_tables(NAME, [args[4], args[5]], |tables| {
        let outputs = device::backward(self, args, tables)?;
        let shapes = args.iter().map(|(_, l)| l.shape().clone());
        Ok(outputs.into_iter().zip(shapes).take(self.outputs()).collect())
    }));
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
        Err(check::error(NAME, "no kernel for this device or dtype"))
    }
}

/// The composition of stock ops that [`qk_norm_rope()`] replaces, for one of q and k.
pub fn reference(
    x: &Tensor,
    weight: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    norm: &QkNormRope,
) -> Result<Tensor> {
    NormRope::new(norm).compose(x, weight, cos, sin)
}
