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

use super::affine_norm::{Affine, AffineNorm, Arg, Vectors};
use crate::check;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, DType, Layout, Result, Shape, Tensor, D};

/// What a row is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The root of the mean square.
    Rms,
    /// The standard deviation, after the mean has been subtracted.
    Layer,
    /// The Euclidean norm.
    L2,
}

/// A norm over the last dim. `Affine(RowNorm { .. })` is the CustomOp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNorm {
    /// Which of the norms.
    pub kind: Kind,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

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
    RowNorm::new(Kind::L2, eps).apply(x, [None, None])
}

/// [`rms_norm`] in x's own memory, for inference.
pub fn rms_norm_inplace(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<()> {
    RowNorm::new(Kind::Rms, eps).apply_inplace(x, [weight, None])
}

/// [`layer_norm`] in x's own memory, for inference.
pub fn layer_norm_inplace(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<()> {
    RowNorm::new(Kind::Layer, eps).apply_inplace(x, [weight, bias])
}

/// [`l2_norm`] in x's own memory, for inference.
pub fn l2_norm_inplace(x: &Tensor, eps: f32) -> Result<()> {
    RowNorm::new(Kind::L2, eps).apply_inplace(x, [None, None])
}

impl RowNorm {
    fn new(kind: Kind, eps: f32) -> Self {
        Self { kind, eps }
    }

    fn check(&self, op: &str, x: &Tensor, vectors: [Option<&Tensor>; 2]) -> Result<()> {
        check::float(op, x)?;
        check::has_dims(op, x)?;
        check::eps(op, self.eps.into())?;
        for (name, vector) in ["weight", "bias"].into_iter().zip(vectors) {
            if let Some(vector) = vector {
                check::alike(op, x, name, vector)?;
                check::over_last_dim(op, x, name, vector)?;
            }
        }
        Ok(())
    }

    fn apply(self, x: &Tensor, vectors: [Option<&Tensor>; 2]) -> Result<Tensor> {
        self.check(self.name(), x, vectors)?;
        if !check::served(x) {
            return self.reference(x, vectors);
        }
        Affine(self).apply(x, vectors)
    }

    fn apply_inplace(self, x: &Tensor, vectors: [Option<&Tensor>; 2]) -> Result<()> {
        self.check(self.name(), x, vectors)?;
        check::untracked(self.name(), x)?;
        Affine(self).apply_inplace(x, vectors)
    }

    fn reference(&self, x: &Tensor, [weight, bias]: [Option<&Tensor>; 2]) -> Result<Tensor> {
        match self.kind {
            Kind::Rms => reference_rms(x, weight, self.eps),
            Kind::Layer => reference_layer(x, weight, bias, self.eps),
            Kind::L2 => reference_l2(x, self.eps),
        }
    }
}

impl AffineNorm for RowNorm {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Rms => "rms_norm",
            Kind::Layer => "layer_norm",
            Kind::L2 => "l2_norm",
        }
    }
    fn bwd_name(&self) -> &'static str {
        match self.kind {
            Kind::Rms => "rms_norm_bwd",
            Kind::Layer => "layer_norm_bwd",
            Kind::L2 => "l2_norm_bwd",
        }
    }
    fn cpu_fwd(
        &self,
        x: Arg<CpuStorage>,
        vectors: Vectors<CpuStorage>,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, x, vectors)
    }
    fn cpu_inplace(
        &self,
        x: (&mut CpuStorage, &Layout),
        vectors: Vectors<CpuStorage>,
    ) -> Result<()> {
        cpu::forward_inplace(*self, x, vectors)
    }
    fn cpu_bwd(
        &self,
        x: Arg<CpuStorage>,
        grad_out: Arg<CpuStorage>,
        weight: Option<Arg<CpuStorage>>,
        vectors: usize,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::backward(*self, x, grad_out, weight, vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: Arg<MetalStorage>,
        vectors: Vectors<MetalStorage>,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(*self, x, vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_inplace(&self, x: Arg<MetalStorage>, vectors: Vectors<MetalStorage>) -> Result<()> {
        metal::forward_inplace(*self, x, vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_bwd(
        &self,
        x: Arg<MetalStorage>,
        grad_out: Arg<MetalStorage>,
        weight: Option<Arg<MetalStorage>>,
        vectors: usize,
    ) -> Result<(MetalStorage, Shape)> {
        metal::backward(*self, x, grad_out, weight, vectors)
    }
}

/// The composition of stock ops that [`rms_norm`] replaces.
pub fn reference_rms(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let wide = widened(x)?;
    let square = (wide.sqr()?.mean_keepdim(D::Minus1)? + eps as f64)?;
    affine(&wide.broadcast_div(&square.sqrt()?)?, [weight, None])?.to_dtype(x.dtype())
}

/// The composition of stock ops that [`layer_norm`] replaces.
pub fn reference_layer(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let wide = widened(x)?;
    let centred = wide.broadcast_sub(&wide.mean_keepdim(D::Minus1)?)?;
    let var = (centred.sqr()?.mean_keepdim(D::Minus1)? + eps as f64)?;
    affine(&centred.broadcast_div(&var.sqrt()?)?, [weight, bias])?.to_dtype(x.dtype())
}

/// The composition of stock ops that [`l2_norm`] replaces.
pub fn reference_l2(x: &Tensor, eps: f32) -> Result<Tensor> {
    let wide = widened(x)?;
    // The root of the larger: a root at 0 has no finite derivative.
    let square = wide.sqr()?.sum_keepdim(D::Minus1)?;
    let square = square.maximum(eps as f64 * eps as f64)?;
    wide.broadcast_div(&square.sqrt()?)?.to_dtype(x.dtype())
}

/// f16 and bf16 as f32.
pub(crate) fn widened(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        _ => Ok(x.clone()),
    }
}

fn affine(x: &Tensor, [weight, bias]: [Option<&Tensor>; 2]) -> Result<Tensor> {
    let mut y = x.clone();
    if let Some(weight) = weight {
        y = y.broadcast_mul(&widened(weight)?)?;
    }
    if let Some(bias) = bias {
        y = y.broadcast_add(&widened(bias)?)?;
    }
    Ok(y)
}
