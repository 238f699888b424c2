//! Norms over the last dim: `y = x̂ · weight + bias`, with
//!
//! | op | x̂ |
//! |---|---|
//! | `rms_norm` | `x / √(mean(x²) + eps)` |
//! | `layer_norm` | `(x − mean(x)) / √(var(x) + eps)` |
//! | `l2_norm` | `x / max(‖x‖₂, eps)` |
//!
//! Backward, with `s = dx̂/dx` at fixed statistics and `h = g · weight`:
//! `dx = s · (h − mean(h) − x̂ · mean(h · x̂))`, without the first mean where none was subtracted, and with a sum in place
//! of the second for `l2_norm` (nothing where `eps` took the norm's place); `dweight = Σ g · x̂` and `dbias = Σ g` over
//! all rows. Everything is computed in f32 and rounded once; the variance takes two passes.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
pub(crate) mod metal;
mod residual;

pub use residual::{add_layer_norm, add_rms_norm};

use super::affine_norm::{self, affine_bwd, weight_and_bias, with_args, AffineBwd, WeightAndBias};
use super::limits::at_least;
use super::widen::widened;
use crate::check;
use crate::op::{custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{Result, Tensor, D};

/// What a row is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The root of the mean square.
    Rms,
    /// The standard deviation, after the mean has been subtracted.
    Layer,
    /// The Euclidean norm.
    L2,
}

/// A norm over the last dim: the kernels of [`RmsNorm`], [`LayerNorm`] and [`L2Norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowNorm {
    /// Which of the norms.
    pub kind: Kind,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// [`rms_norm`] as a CustomOp of x, or of x and a weight; in place too.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::RmsNorm;
/// let x = Tensor::new(&[[3f32, 4., 0., 0.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[1f32, 1., 1., 2.], &Device::Cpu)?;
/// let y = x.apply_op2(&weight, RmsNorm { eps: 1e-9 })?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.2, 1.6, 0., 0.]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// [`layer_norm`] as a CustomOp of x, of x and a weight, or of x, a weight and a bias; in place too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// [`l2_norm`] as a CustomOp of x; in place too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// The smallest divisor.
    pub eps: f32,
}

custom_op!(RmsNorm, "rms_norm": CustomOp1, CustomOp2, InplaceOp1, InplaceOp2 => |n| RowNorm::new(Kind::Rms, n.eps));
custom_op!(LayerNorm, "layer_norm": CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3
    => |n| RowNorm::new(Kind::Layer, n.eps));
custom_op!(L2Norm, "l2_norm": CustomOp1, InplaceOp1 => |n| RowNorm::new(Kind::L2, n.eps));

/// `x / √(mean(x²) + eps) · weight` over the last dim, for f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::rms_norm;
/// let x = Tensor::new(&[[3f32, 4., 0., 0.]], &Device::Cpu)?;
/// let y = rms_norm(&x, None, 1e-9)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.2, 1.6, 0., 0.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn rms_norm(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    RowNorm::new(Kind::Rms, eps).apply(x, [weight, None])
}

/// `(x − mean(x)) / √(var(x) + eps) · weight + bias` over the last dim.
pub fn layer_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    RowNorm::new(Kind::Layer, eps).apply(x, [weight, bias])
}

/// `x / max(‖x‖₂, eps)` over the last dim.
pub fn l2_norm(x: &Tensor, eps: f32) -> Result<Tensor> {
    RowNorm::new(Kind::L2, eps).apply(x, [None; 2])
}

/// [`rms_norm`] in x's own memory, for inference.
pub fn rms_norm_inplace(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<()> {
    RowNorm::new(Kind::Rms, eps).apply_inplace("rms_norm_inplace", x, [weight, None])
}

/// [`layer_norm`] in x's own memory, for inference.
pub fn layer_norm_inplace(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<()> {
    RowNorm::new(Kind::Layer, eps).apply_inplace("layer_norm_inplace", x, [weight, bias])
}

/// [`l2_norm`] in x's own memory, for inference.
pub fn l2_norm_inplace(x: &Tensor, eps: f32) -> Result<()> {
    RowNorm::new(Kind::L2, eps).apply_inplace("l2_norm_inplace", x, [None; 2])
}

/// 1 for a scalar, which the norms refuse.
fn columns(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(1)
}

impl RowNorm {
    fn new(kind: Kind, eps: f32) -> Self {
        Self { kind, eps }
    }

    /// The function of this norm.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Rms => "rms_norm",
            Kind::Layer => "layer_norm",
            Kind::L2 => "l2_norm",
        }
    }

    /// x, and a weight and a bias as far as there are any.
    #[inline]
    fn check_parts(&self, name: &'static str, x: Spec<'_>, vectors: &[Spec<'_>]) -> Result<()> {
        check::has_dims(name, x.layout)?;
        check::eps(name, self.eps.into())?;
        affine_norm::check_vectors(name, vectors, columns(x.dims()), "last dim")
    }

    fn apply(self, x: &Tensor, vectors: WeightAndBias) -> Result<Tensor> {
        affine_norm::apply(self.name(), self, x, columns(x.dims()), vectors)
    }

    fn apply_inplace(self, name: &'static str, x: &Tensor, vectors: WeightAndBias) -> Result<()> {
        affine_norm::apply_inplace(name, self, x, columns(x.dims()), vectors)
    }
}

impl Op for RowNorm {
    signature!("row_norm"(x, weight, bias));

    #[inline]
    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.check_parts(name, args[0], &args[1..])
    }
    kernels!(self, args => device::forward(*self, args));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        affine_norm::gradients(*self, inputs, g)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let vectors = weight_and_bias(&args[1..]);
        match self.kind {
            Kind::Rms => reference_rms(args[0], vectors[0], self.eps),
            Kind::Layer => reference_layer(args[0], vectors, self.eps),
            Kind::L2 => reference_l2(args[0], self.eps),
        }
    }
}

impl InplaceOp for RowNorm {
    kernels!(in place: self, x, rest => device::inplace(*self, x, rest));
}

affine_bwd!(RowNorm, "row_norm_bwd");

/// The composition of stock ops that [`rms_norm`] replaces.
pub fn reference_rms(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let wide = widened(x)?;
    let square = (wide.sqr()?.mean_keepdim(D::Minus1)? + eps as f64)?;
    affine(&wide.broadcast_div(&square.sqrt()?)?, [weight, None])?.to_dtype(x.dtype())
}

/// The composition of stock ops that [`layer_norm`] replaces.
pub fn reference_layer(x: &Tensor, vectors: WeightAndBias, eps: f32) -> Result<Tensor> {
    let wide = widened(x)?;
    let centred = wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?;
    let var = (centred.sqr()?.mean_keepdim(D::Minus1)? + eps as f64)?;
    affine(&centred.broadcast_div(&var.sqrt()?)?, vectors)?.to_dtype(x.dtype())
}

/// The composition of stock ops that [`l2_norm`] replaces.
pub fn reference_l2(x: &Tensor, eps: f32) -> Result<Tensor> {
    let wide = widened(x)?;
    // The root of the larger: a root at 0 has no finite derivative.
    let square = wide.sqr()?.sum_keepdim(D::Minus1)?;
    let square = at_least(&square, eps as f64 * eps as f64)?;
    wide.broadcast_div(&square.sqrt()?)?.to_dtype(x.dtype())
}

fn affine(x: &Tensor, [weight, bias]: WeightAndBias) -> Result<Tensor> {
    let mut y = x.clone();
    if let Some(weight) = weight {
        y = y.broadcast_mul(&widened(weight)?)?;
    }
    if let Some(bias) = bias {
        y = y.broadcast_add(&widened(bias)?)?;
    }
    Ok(y)
}
