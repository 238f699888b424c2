//! Low-rank adapters: `y = x·Wᵀ + bias + scale · (dropout(x)·Aᵀ)·Bᵀ`.
//!
//! Backward, with `u = dropout(x)·Aᵀ` and `v = g·B`, which have the rank for their width: `dx = g·W + scale · mask(v·A)`,
//! `dA = scale · vᵀ·dropout(x)`, `dB = scale · gᵀ·u`. A frozen W gets no gradient and no buffer for one.
//!
//! u and the base stay in f32 until all terms are added, so that y is rounded once. Beside a dense weight all of it is one
//! op; beside the other forms of [`FrozenWeight`] the base, u and their sum are an op each.

mod adapter;
mod cpu;
mod frozen_weight;
mod gguf;
#[cfg(feature = "metal")]
mod metal;
mod up;

use adapter::check_dropout;
pub(super) use adapter::{check_adapted, check_factors, check_rank, with_bias};
pub use adapter::{Adapter, AdapterDropout};
pub use frozen_weight::FrozenWeight;
pub(crate) use up::up_add;

use super::dropout;
use super::linear::{self, flatten_rows, frozen_product, linear, Bias};
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{DType, Result, Tensor};

const NAME: &str = "lora";

/// `x·Wᵀ + bias + scale · (x·Aᵀ)·Bᵀ` for x `[.., in]`, a frozen W `[out, in]` and bias `[out]`, A `[rank, in]` and B
/// `[out, rank]`. Differentiable in x, A and B.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::lora;
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let w = Tensor::new(&[[1f32, 0.], [0., 1.]], &Device::Cpu)?;
/// let a = Tensor::new(&[[1f32, 1.]], &Device::Cpu)?;
/// let b = Tensor::new(&[[1f32], [10.]], &Device::Cpu)?;
/// assert_eq!(lora(&x, &w, None, &a, &b, 0.5)?.to_vec2::<f32>()?, [[2.5, 17.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn lora(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    a: &Tensor,
    b: &Tensor,
    scale: f32,
) -> Result<Tensor> {
    dense(NAME, x, w, bias, Adapter::new(a, b, scale))
}

/// [`lora()`] beside a frozen weight of any form, with dropout if wanted.
pub fn lora_with(
    x: &Tensor,
    weight: &FrozenWeight,
    bias: Option<&Tensor>,
    adapter: Adapter,
) -> Result<Tensor> {
    lora_beside(x, None, weight, bias, adapter)
}

/// [`lora_with`], where the base may have another input than the adapter: x after a norm.
pub(crate) fn lora_beside(
    x: &Tensor,
    normed: Option<&Tensor>,
    weight: &FrozenWeight,
    bias: Option<&Tensor>,
    adapter: Adapter,
) -> Result<Tensor> {
    const NAME: &str = "lora_with";
    if let (FrozenWeight::Dense(w), None) = (weight, normed) {
        return dense(NAME, x, w, bias, adapter);
    }
    let base_x = normed.unwrap_or(x);
    let out = weight.check(NAME, base_x, bias)?;
    adapter.check(NAME, x, out)?;
    beside(x, adapter, |dtype| {
        let bias = bias.map(|bias| bias.to_dtype(dtype)).transpose()?;
        weight.linear(&base_x.to_dtype(dtype)?, bias.as_ref())
    })
}

/// [`lora()`] with a weight and a bias that are trained together with the adapter: differentiable in them too. 16-bit
/// weights are converted to f32 for the call.
pub fn lora_trained(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    adapter: Adapter,
) -> Result<Tensor> {
    const NAME: &str = "lora_trained";
    linear::check_args(NAME, x, w, bias)?;
    adapter.check(NAME, x, w.dim(0)?)?;
    let base = [Some(x), Some(w), bias, Some(adapter.a), Some(adapter.b)];
    if !base.into_iter().flatten().any(Tensor::track_op) {
        // Without gradients one op computes what three would. With a gradient to any of them the three do, so that no gradient
        // depends on which of the others is asked for.
        return dense(NAME, x, w, bias, adapter);
    }
    beside(x, adapter, |dtype| {
        let bias = bias.map(|bias| bias.to_dtype(dtype)).transpose()?;
        linear(&x.to_dtype(dtype)?, &w.to_dtype(dtype)?, bias.as_ref())
    })
}

/// Beside a dense weight: one op.
fn dense(
    name: &'static str,
    x: &Tensor,
    w: &Tensor,
    bias: Bias,
    adapter: Adapter,
) -> Result<Tensor> {
    linear::same_device(name, x, w, bias)?;
    let op = Lora {
        weight: w.detach(),
        bias: bias.map(Tensor::detach),
        scale: adapter.scale,
        dropout: adapter.dropout,
    };
    op::apply(name, op, &[x, adapter.a, adapter.b])
}

/// The adapter's share added to `base(dtype)`. Of 16-bit inputs everything is f32, to be rounded once in the end.
fn beside<F>(x: &Tensor, adapter: Adapter, base: F) -> Result<Tensor>
where
    F: FnOnce(DType) -> Result<Tensor>,
{
    let dtype = match x.dtype() {
        // Candle can't convert empty tensors on Metal.
        DType::F16 | DType::BF16 if x.elem_count() > 0 && adapter.b.elem_count() > 0 => DType::F32,
        dtype => dtype,
    };
    let wide = x.to_dtype(dtype)?;
    let wide = match adapter.dropout {
        Some(dropout) => dropout.apply(&wide)?,
        None => wide,
    };
    let u = linear(&wide, &adapter.a.to_dtype(dtype)?, None)?;
    let b = adapter.b.to_dtype(dtype)?;
    up_add(&base(dtype)?, &u, &b, adapter.scale)?.to_dtype(x.dtype())
}

/// [`lora()`] as a CustomOp of x, A and B.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::Lora;
/// let one = Tensor::new(&[[1f32]], &Device::Cpu)?;
/// let op = Lora { weight: one.clone(), bias: None, scale: 2., dropout: None };
/// assert_eq!(one.apply_op3(&one, &one, op)?.to_vec2::<f32>()?, [[3.]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Lora {
    /// `[out, in]`
    pub weight: Tensor,
    /// `[out]`
    pub bias: Option<Tensor>,
    pub scale: f32,
    pub dropout: Option<AdapterDropout>,
}

custom_op!(Lora: CustomOp3);

impl Op for Lora {
    signature!(NAME(x, a, b));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        check_adapted(name, args, weight, bias, &["rank", "in"])?;
        check_dropout(name, self.dropout)
    }
    fn held(&self) -> Vec<&Tensor> {
        with_bias(&self.weight, self.bias.as_ref())
    }

    kernels!(self, args => {
        op::with_storages(NAME, &self.held(), |held| device::forward(self, args, held))
    });

    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, a, b) = (inputs[0], inputs[1], inputs[2]);
        let trains = a.track_op() || b.track_op();
        let dropped = match self.dropout {
            Some(dropout) if trains => dropout.apply(&x.detach())?,
            _ => x.detach(),
        };
        let (rows, grads) = (flatten_rows(&dropped)?, flatten_rows(g)?);
        let dx = || self.grad_x(a, b, g);
        let da = || {
            let v = frozen_product(&grads, &b.t()?, 1.0)?;
            frozen_product(&v.t()?, &rows.t()?, self.scale)
        };
        let db = || {
            let u = frozen_product(&rows, a, 1.0)?;
            frozen_product(&grads.t()?, &u.t()?, self.scale)
        };
        op::grads(inputs, &[&dx, &da, &db])
    }

    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let adapter = Adapter {
            dropout: self.dropout,
            ..Adapter::new(args[1], args[2], self.scale)
        };
        reference(args[0], &self.weight, self.bias.as_ref(), adapter)
    }
}

impl Lora {
    /// `g·W + scale · mask((g·B)·A)`: the op itself, with everything transposed.
    fn grad_x(&self, a: &Tensor, b: &Tensor, g: &Tensor) -> Result<Tensor> {
        let (w, a, b) = (self.weight.t()?, a.t()?.detach(), b.t()?.detach());
        let Some(AdapterDropout { p, seed }) = self.dropout else {
            return lora(g, &w, None, &b, &a, self.scale);
        };
        let low = frozen_product(&frozen_product(g, &b, self.scale)?, &a, 1.0)?;
        dropout::dropout_add(&low, &frozen_product(g, &w, 1.0)?, p, seed)
    }
}

/// The composition of stock ops that [`lora()`] replaces, and [`lora_with`] beside a dense weight.
#[doc(hidden)]
pub fn reference(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    adapter: Adapter,
) -> Result<Tensor> {
    let base = linear::reference(x, w, bias)?;
    let x = match adapter.dropout {
        Some(AdapterDropout { p, seed }) => dropout::reference(x, super::Act::Identity, p, seed)?,
        None => x.clone(),
    };
    let low = linear::reference(&linear::reference(&x, adapter.a, None)?, adapter.b, None)?;
    base + (low * f64::from(adapter.scale))?
}
