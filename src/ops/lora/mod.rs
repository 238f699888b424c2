//! Low-rank adapters: `y = x·Wᵀ + bias + scale · (dropout(x)·Aᵀ)·Bᵀ` in one op.
//!
//! Backward, with `u = dropout(x)·Aᵀ` and `v = g·B`, which have the rank for their width: `dx = g·W + scale · mask(v·A)`,
//! `dA = scale · vᵀ·dropout(x)`, `dB = scale · gᵀ·u`. A frozen W gets no gradient and no buffer for one. Products are
//! accumulated in f32.

mod cpu;
pub mod gather;
#[cfg(feature = "metal")]
mod metal;
pub(crate) mod quantized;
mod up;

pub use gather::{lora_gather, NO_ADAPTER};
pub use quantized::QuantizedLinear;
pub(crate) use up::up_add;
pub use up::LoraUp;

use super::bitlinear::bitlinear;
use super::dropout;
use super::linear::{self, linear, matrix, scaled};
use super::mixed_matmul::mixed_matmul;
use super::quantize::Quantized;
use crate::held::held;
use crate::{apply, check};
use candle_core::quantized::QTensor;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, D};
use std::sync::Arc;

const NAME: &str = "lora";

/// What an adapter stands beside.
#[derive(Clone, Copy, Debug)]
pub enum Base<'a> {
    /// A weight `[out, in]` without a gradient.
    Frozen(&'a Tensor),
    /// A weight `[out, in]` that is trained with the adapter, and its bias too.
    Trained(&'a Tensor),
    /// A frozen weight in one of Candle's GGUF types.
    Quantized(&'a Arc<QTensor>),
    /// A frozen weight of 1 to 8 bits by [`mixed_matmul()`].
    Packed(&'a Quantized),
    /// A frozen weight of 1 or 2 bits by [`bitlinear()`], which rounds x to 8 bits. The adapter sees x itself.
    BitNet(&'a Quantized),
}

/// `scale · (dropout(x)·Aᵀ)·Bᵀ`
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    /// `[rank, in]`
    pub a: &'a Tensor,
    /// `[out, rank]`
    pub b: &'a Tensor,
    pub scale: f32,
    pub dropout: Option<Dropout>,
}

/// The dropout of an adapter's input. The same seed drops the same elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub p: f32,
    pub seed: u64,
}

impl Dropout {
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        dropout::dropout(x, self.p, self.seed)
    }
}

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
    let adapter = Adapter {
        a,
        b,
        scale,
        dropout: None,
    };
    lora_with(x, Base::Frozen(w), bias, adapter)
}

/// [`lora`] beside any base, with dropout if wanted.
pub fn lora_with(
    x: &Tensor,
    base: Base,
    bias: Option<&Tensor>,
    adapter: Adapter,
) -> Result<Tensor> {
    let out = check_base(x, base, bias)?;
    adapter.check(x, out)?;
    let Adapter {
        a,
        b,
        scale,
        dropout,
    } = adapter;
    match base {
        Base::Frozen(w) if !check::served(x) => {
            let (w, bias) = (w.detach(), bias.map(Tensor::detach));
            composed(x, linear::reference(x, &w, bias.as_ref())?, adapter)
        }
        Base::Frozen(w) => {
            let (weight, bias) = (w.detach(), bias.map(Tensor::detach));
            apply::op3(
                x,
                a,
                b,
                Lora {
                    weight,
                    bias,
                    scale,
                    dropout,
                },
            )
        }
        Base::Trained(w) => composed(x, linear(x, w, bias)?, adapter),
        Base::Quantized(w) => {
            let bias = bias.map(Tensor::detach);
            composed(x, quantized::linear(x, w, bias.as_ref())?, adapter)
        }
        Base::Packed(w) => {
            let bias = bias.map(Tensor::detach);
            let base = mixed_matmul(x, &w.detach(), bias.as_ref())?;
            composed(x, base, adapter)
        }
        Base::BitNet(w) => {
            let bias = bias.map(Tensor::detach);
            composed(x, bitlinear(x, &w.detach(), bias.as_ref())?, adapter)
        }
    }
}

/// `x·Wᵀ + bias` with a quantised weight and no adapter.
pub(crate) fn quantized_linear(
    x: &Tensor,
    w: &Arc<QTensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    quantized::check_args(x, w, bias)?;
    quantized::linear(x, w, bias)
}

/// `y + scale · (dropout(x)·Aᵀ)·Bᵀ` for the y `[.., out]` of some base.
pub(crate) fn lora_beside(x: &Tensor, y: Tensor, adapter: Adapter) -> Result<Tensor> {
    adapter.check(x, y.dim(D::Minus1)?)?;
    composed(x, y, adapter)
}

/// Beside a base that has been computed.
fn composed(x: &Tensor, base: Tensor, adapter: Adapter) -> Result<Tensor> {
    let x = match adapter.dropout {
        Some(dropout) => dropout.apply(x)?,
        None => x.clone(),
    };
    up::up_add(
        &base,
        &linear(&x, adapter.a, None)?,
        adapter.b,
        adapter.scale,
    )
}

/// The number of outputs.
fn check_base(x: &Tensor, base: Base, bias: Option<&Tensor>) -> Result<usize> {
    match base {
        Base::Frozen(w) | Base::Trained(w) => {
            linear::check_args(NAME, x, w, bias)?;
            w.dim(0)
        }
        Base::Quantized(w) => quantized::check_args(x, w, bias),
        Base::Packed(w) | Base::BitNet(w) => {
            check::float(NAME, x)?;
            super::packed::check_args(NAME, x, w, bias)?;
            w.shape().dims2().map(|(out, _)| out)
        }
    }
}

impl Adapter<'_> {
    fn check(&self, x: &Tensor, out: usize) -> Result<()> {
        let (a, b) = (self.a, self.b);
        check::alike(NAME, x, "a", a)?;
        check::alike(NAME, x, "b", b)?;
        check_low(x.layout(), out, a.layout(), b.layout())?;
        match self.dropout {
            Some(Dropout { p, .. }) if !(0.0..1.0).contains(&p) => {
                let message = format_args!("dropout p is {p}, 0 ≤ p < 1 is accepted").to_string();
                Err(check::error(NAME, message))
            }
            _ => Ok(()),
        }
    }
}

/// The shapes of A and B.
fn check_low(x: &Layout, out: usize, a: &Layout, b: &Layout) -> Result<()> {
    let cols = x.dims().last().copied().unwrap_or(1);
    match (a.dims(), b.dims()) {
        (&[rank, a_cols], &[b_out, b_rank])
            if (a_cols, b_out) == (cols, out) && rank == b_rank && rank > 0 =>
        {
            Ok(())
        }
        _ => {
            let (a, b) = (a.shape(), b.shape());
            let message = format!(
                "a has shape {a:?} and b {b:?}, [rank, {cols}] and [{out}, rank] with a rank of 1 or more accepted"
            );
            Err(check::error(NAME, message))
        }
    }
}

/// [`lora_with`] a frozen base as a CustomOp of x, A and B.
#[derive(Clone, Debug)]
pub struct Lora {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub scale: f32,
    pub dropout: Option<Dropout>,
}

impl CustomOp3 for Lora {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (w, bias) = (held(&self.weight), self.bias.as_ref().map(held));
        let bias = bias.as_ref().map(|b| b.cpu(NAME)).transpose()?;
        self.check(xl, al, bl)?;
        cpu::forward(self, (x, xl), (w.cpu(NAME)?, bias), (a, al), (b, bl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        a: &MetalStorage,
        al: &Layout,
        b: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        let (w, bias) = (held(&self.weight), self.bias.as_ref().map(held));
        let bias = bias.as_ref().map(|b| b.metal(NAME)).transpose()?;
        self.check(xl, al, bl)?;
        metal::forward(self, (x, xl), (w.metal(NAME)?, bias), (a, al), (b, bl))
    }
    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let trains = a.track_op() || b.track_op();
        let dropped = match self.dropout {
            Some(dropout) if trains => dropout.apply(&x.detach())?,
            _ => x.detach(),
        };
        let (rows, grads) = (matrix(&dropped)?, matrix(g)?);
        let dx = || self.grad_x(a, b, g);
        let da = || {
            let v = scaled(&grads, &b.t()?, 1.0)?;
            scaled(&v.t()?, &rows.t()?, self.scale)
        };
        let db = || {
            let u = scaled(&rows, a, 1.0)?;
            scaled(&grads.t()?, &u.t()?, self.scale)
        };
        Ok((
            x.track_op().then(dx).transpose()?,
            a.track_op().then(da).transpose()?,
            b.track_op().then(db).transpose()?,
        ))
    }
}

impl Lora {
    fn check(&self, x: &Layout, a: &Layout, b: &Layout) -> Result<()> {
        let (w, bias) = (self.weight.layout(), self.bias.as_ref().map(Tensor::layout));
        linear::check_layouts(NAME, x, w, bias)?;
        check_low(x, w.dims()[0], a, b)
    }

    /// `g·W + scale · mask((g·B)·A)`: the op itself, with everything transposed.
    fn grad_x(&self, a: &Tensor, b: &Tensor, g: &Tensor) -> Result<Tensor> {
        let (w, a, b) = (self.weight.t()?, a.t()?.detach(), b.t()?.detach());
        let Some(Dropout { p, seed }) = self.dropout else {
            return lora(g, &w, None, &b, &a, self.scale);
        };
        let low = scaled(&scaled(g, &b, self.scale)?, &a, 1.0)?;
        dropout::dropout_add(&low, &scaled(g, &w, 1.0)?, p, seed)
    }
}

/// The composition of stock ops that [`lora`] replaces.
pub fn reference(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    a: &Tensor,
    b: &Tensor,
    scale: f32,
) -> Result<Tensor> {
    let adapter = Adapter {
        a,
        b,
        scale,
        dropout: None,
    };
    reference_with(x, w, bias, adapter)
}

/// The same with dropout.
pub fn reference_with(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    adapter: Adapter,
) -> Result<Tensor> {
    let base = linear::reference(x, w, bias)?;
    let x = match adapter.dropout {
        Some(Dropout { p, seed }) => dropout::reference(x, super::Act::Identity, p, seed)?,
        None => x.clone(),
    };
    let low = linear::reference(&linear::reference(&x, adapter.a, None)?, adapter.b, None)?;
    base + (low * f64::from(adapter.scale))?
}
