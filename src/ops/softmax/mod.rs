//! Softmax `y = exp(x − max) / Σ exp(x − max)` over one dim, its logarithm, and the masked form
//! `softmax(scale · x + mask)` over the last dim. Computed in f32 whatever the dtype.
//!
//! Backward: softmax `dx = scale · y · (g − Σ g·y)`, log_softmax `dx = g − exp(y) · Σ g`.
//!
//! A row whose scores are all −∞ has no softmax: [`softmax`] gives NaN, as stock Candle does;
//! [`masked_softmax`] gives zeros, and zero gradients.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::reduce;
use crate::{apply, check};
use candle_core::shape::Dim;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, InplaceOp1, InplaceOp2, Layout, Result, Shape, Tensor,
    D,
};

const NAME: &str = "softmax";

/// What [`masked_softmax`] hides.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Nothing.
    None,
    /// Added to the scaled scores: −∞ hides, other values bias. Broadcasts to x's shape.
    Additive(&'a Tensor),
    /// The last two dims are queries and keys, and query i sees the keys j ≤ i + (keys − queries):
    /// the last query sees all.
    Causal,
}

/// Softmax over `dim`, for f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{test_utils::to_vec1_round, Device, Tensor};
/// use candle_fused::ops::softmax;
/// let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// assert_eq!(to_vec1_round(&softmax(&x, 0)?, 4)?, [0.0900, 0.2447, 0.6652]);
/// # candle_core::Result::Ok(())
/// ```
pub fn softmax(x: &Tensor, dim: impl Dim) -> Result<Tensor> {
    over(x, dim.to_index(x.shape(), NAME)?, false)
}

/// Softmax over the last dim.
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    over(x, D::Minus1.to_index(x.shape(), NAME)?, false)
}

/// The logarithm of the softmax over `dim`.
pub fn log_softmax(x: &Tensor, dim: impl Dim) -> Result<Tensor> {
    over(x, dim.to_index(x.shape(), NAME)?, true)
}

fn over(x: &Tensor, dim: usize, log: bool) -> Result<Tensor> {
    check::float(NAME, x)?;
    match (check::served(x), log) {
        (true, _) => apply::op1(x, Softmax { dim, log }),
        (false, false) => reference(x, dim),
        (false, true) => reference_log(x, dim),
    }
}

/// `x = softmax(x)` over the last dim in x's own memory, for inference.
pub fn softmax_last_dim_inplace(x: &Tensor) -> Result<()> {
    over_inplace(x, false)
}

/// `x = log_softmax(x)` over the last dim in x's own memory, for inference.
pub fn log_softmax_last_dim_inplace(x: &Tensor) -> Result<()> {
    over_inplace(x, true)
}

fn over_inplace(x: &Tensor, log: bool) -> Result<()> {
    check::float(NAME, x)?;
    check::untracked(NAME, x)?;
    let dim = D::Minus1.to_index(x.shape(), NAME)?;
    if x.elem_count() == 0 {
        return Ok(()); // Candle takes its strides for repeated elements.
    }
    x.inplace_op1(&Softmax { dim, log })
}

/// `softmax(scale · x + mask)` over the last dim, without the scores in between. Differentiable in x
/// and in an additive mask.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{masked_softmax, Mask};
/// let scores = Tensor::zeros((2, 2), candle_core::DType::F32, &Device::Cpu)?;
/// let y = masked_softmax(&scores, 0.125, Mask::Causal)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 0.], [0.5, 0.5]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn masked_softmax(x: &Tensor, scale: f32, mask: Mask<'_>) -> Result<Tensor> {
    check_masked(x, mask)?;
    if !check::served(x) {
        return reference_masked(x, scale, mask);
    }
    let causal = matches!(mask, Mask::Causal);
    let op = MaskedSoftmax { scale, causal };
    match mask {
        Mask::Additive(mask) => apply::op2(x, mask, op),
        Mask::None | Mask::Causal => apply::op1(x, op),
    }
}

/// [`masked_softmax`] in x's own memory, for inference.
pub fn masked_softmax_inplace(x: &Tensor, scale: f32, mask: Mask<'_>) -> Result<()> {
    check_masked(x, mask)?;
    check::untracked(NAME, x)?;
    if x.elem_count() == 0 {
        return Ok(());
    }
    let causal = matches!(mask, Mask::Causal);
    let op = MaskedSoftmax { scale, causal };
    match mask {
        Mask::Additive(mask) => x.inplace_op2(mask, &op),
        Mask::None | Mask::Causal => x.inplace_op1(&op),
    }
}

fn check_masked(x: &Tensor, mask: Mask<'_>) -> Result<()> {
    check::float(NAME, x)?;
    check::has_dims(NAME, x)?;
    match mask {
        Mask::None => Ok(()),
        Mask::Additive(mask) => {
            check::alike(NAME, x, "mask", mask)?;
            check::broadcasts(NAME, x, "mask", mask)
        }
        Mask::Causal if x.rank() < 2 => {
            let message = "causal with rank 1, [.., queries, keys] accepted";
            Err(check::error(NAME, message))
        }
        Mask::Causal => Ok(()),
    }
}

/// [`softmax`] and [`log_softmax`] as a CustomOp; in place over the last dim only.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    pub dim: usize,
    pub log: bool,
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        metal::forward(*self, x, l)
    }
    fn bwd(&self, _: &Tensor, y: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        let &Softmax { dim, log } = self;
        let op = SoftmaxBwd {
            dim,
            log,
            scale: 1.0,
        };
        apply::op2(y, grad_out, op).map(Some)
    }
}

impl InplaceOp1 for Softmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, l: &Layout) -> Result<()> {
        cpu::forward_inplace(self.log, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &mut MetalStorage, l: &Layout) -> Result<()> {
        metal::forward_inplace(self.log, x, l)
    }
}

/// [`masked_softmax`] as a CustomOp: of x, or of x and an additive mask.
#[derive(Clone, Copy, Debug)]
pub struct MaskedSoftmax {
    pub scale: f32,
    pub causal: bool,
}

impl MaskedSoftmax {
    fn backward(&self, scale: f32, y: &Tensor, grad_out: &Tensor) -> Result<Tensor> {
        let op = SoftmaxBwd {
            dim: y.rank() - 1,
            log: false,
            scale,
        };
        apply::op2(y, grad_out, op)
    }
}

impl CustomOp1 for MaskedSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::masked(*self, (x, l), None)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        metal::masked(*self, (x, l), None)
    }
    fn bwd(&self, _: &Tensor, y: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        self.backward(self.scale, y, grad_out).map(Some)
    }
}

impl CustomOp2 for MaskedSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        mask: &CpuStorage,
        ml: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::masked(*self, (x, xl), Some((mask, ml)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        mask: &MetalStorage,
        ml: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::masked(*self, (x, xl), Some((mask, ml)))
    }
    fn bwd(
        &self,
        x: &Tensor,
        mask: &Tensor,
        y: &Tensor,
        grad_out: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        if !mask.track_op() {
            return Ok((Some(self.backward(self.scale, y, grad_out)?), None));
        }
        // The gradient of the scores serves both.
        let scores = self.backward(1.0, y, grad_out)?;
        let dx = x.track_op().then(|| &scores * self.scale as f64);
        let dmask = reduce::sum_to(&scores, mask.shape())?;
        Ok((dx.transpose()?, Some(dmask)))
    }
}

impl InplaceOp1 for MaskedSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, l: &Layout) -> Result<()> {
        cpu::masked_inplace(*self, (x, l), None)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &mut MetalStorage, l: &Layout) -> Result<()> {
        metal::masked_inplace(*self, (x, l), None)
    }
}

impl InplaceOp2 for MaskedSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        xl: &Layout,
        mask: &CpuStorage,
        ml: &Layout,
    ) -> Result<()> {
        cpu::masked_inplace(*self, (x, xl), Some((mask, ml)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &mut MetalStorage,
        xl: &Layout,
        mask: &MetalStorage,
        ml: &Layout,
    ) -> Result<()> {
        metal::masked_inplace(*self, (x, xl), Some((mask, ml)))
    }
}

/// `(y, g) → dx`, from the output y of the softmax or log_softmax.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxBwd {
    pub dim: usize,
    pub log: bool,
    pub scale: f32,
}

impl CustomOp2 for SoftmaxBwd {
    fn name(&self) -> &'static str {
        "softmax_bwd"
    }
    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        yl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::backward(*self, (y, yl), (g, gl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        y: &MetalStorage,
        yl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::backward(*self, (y, yl), (g, gl))
    }
}

/// `[.., n, ..]` as outer × n × inner around `dim`.
fn split(shape: &Shape, dim: usize) -> [usize; 3] {
    let dims = shape.dims();
    let size = |dims: &[usize]| dims.iter().product();
    [size(&dims[..dim]), dims[dim], size(&dims[dim + 1..])]
}

/// The composition of stock ops that [`softmax`] replaces.
pub fn reference(x: &Tensor, dim: usize) -> Result<Tensor> {
    candle_nn::ops::softmax(x, dim)
}

/// The composition of stock ops that [`log_softmax`] replaces.
pub fn reference_log(x: &Tensor, dim: usize) -> Result<Tensor> {
    candle_nn::ops::log_softmax(x, dim)
}

/// The composition of stock ops that [`masked_softmax`] replaces.
pub fn reference_masked(x: &Tensor, scale: f32, mask: Mask<'_>) -> Result<Tensor> {
    let scores = (x * scale as f64)?;
    let scores = match mask {
        Mask::None => scores,
        Mask::Additive(mask) => scores.broadcast_add(mask)?,
        Mask::Causal => scores.broadcast_add(&causal_mask(x)?)?,
    };
    let lowest = match x.dtype() {
        DType::F16 => half::f16::MIN.to_f64(),
        DType::BF16 => half::bf16::MIN.to_f64(),
        _ => f32::MIN as f64,
    };
    // Finite even where all is −∞; no gradient goes through it, as the softmax doesn't depend on it.
    let max = scores.max_keepdim(D::Minus1)?.detach().maximum(lowest)?;
    let e = scores.broadcast_sub(&max)?.exp()?;
    // At least 1, except in a row without scores.
    let sum = e.sum_keepdim(D::Minus1)?.maximum(0.5)?;
    e.broadcast_div(&sum)
}

/// `[queries, keys]`, 0 where visible and −∞ elsewhere.
fn causal_mask(x: &Tensor) -> Result<Tensor> {
    let (q, k) = (x.dim(D::Minus2)?, x.dim(D::Minus1)?);
    let mask = (0..q * k).map(|i| match visible(i / k, q, k) {
        n if i % k < n => 0f32,
        _ => f32::NEG_INFINITY,
    });
    Tensor::from_iter(mask, x.device())?
        .reshape((q, k))?
        .to_dtype(x.dtype())
}

/// How many keys query `i` sees.
fn visible(i: usize, queries: usize, keys: usize) -> usize {
    (i + 1 + keys).saturating_sub(queries).min(keys)
}
