//! `softmax(scale · x + mask)` over the last dim.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, SoftmaxBwd, NAME};
use crate::ops::reduce;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, InplaceOp1, InplaceOp2, Layout, Result, Shape, Tensor,
    D,
};

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
    let causal = matches!(mask, Mask::Causal);
    let op = MaskedSoftmax { scale, causal };
    match mask {
        Mask::Additive(mask) => apply::inplace2(x, mask, op),
        Mask::None | Mask::Causal => apply::inplace1(x, op),
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
pub fn visible(i: usize, queries: usize, keys: usize) -> usize {
    (i + 1 + keys).saturating_sub(queries).min(keys)
}
