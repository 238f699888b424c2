//! `softmax(scale · x + mask)` over the last dim.

use super::cpu;
use super::grad_x;
#[cfg(feature = "metal")]
use super::metal;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use crate::ops::limits::at_least;
use crate::ops::reduce;
use candle_core::{DType, Result, Tensor, D};

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
    let causal = matches!(mask, Mask::Causal);
    let op = MaskedSoftmax { scale, causal };
    match mask {
        Mask::Additive(mask) => op::apply(NAME, op, &[x, mask]),
        Mask::None | Mask::Causal => op::apply(NAME, op, &[x]),
    }
}

/// [`masked_softmax`] in x's own memory, for inference.
pub fn masked_softmax_inplace(x: &Tensor, scale: f32, mask: Mask<'_>) -> Result<()> {
    let name = "masked_softmax_inplace";
    let causal = matches!(mask, Mask::Causal);
    let op = MaskedSoftmax { scale, causal };
    match mask {
        Mask::Additive(mask) => op::apply_inplace(name, op, x, &[mask]),
        Mask::None | Mask::Causal => op::apply_inplace(name, op, x, &[]),
    }
}

const NAME: &str = "masked_softmax";

/// [`masked_softmax`] as a CustomOp: of x, or of x and an additive mask.
#[derive(Clone, Copy, Debug)]
pub struct MaskedSoftmax {
    /// Multiplies the scores before the mask is added.
    pub scale: f32,
    /// Whether a query sees only the keys up to its own position (see [`Mask::Causal`]).
    pub causal: bool,
}

custom_op!(MaskedSoftmax: CustomOp1, CustomOp2, InplaceOp1, InplaceOp2);

impl Op for MaskedSoftmax {
    signature!(NAME(x, mask));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::has_dims(name, args[0].layout)?;
        let message = "got a causal mask for x of rank 1, expected [.., queries, keys]";
        check::ensure(!self.causal || args[0].rank() >= 2, name, message)?;
        let Some(mask) = args.get(1) else {
            return Ok(());
        };
        let message =
            "got a causal op and a mask, expected one of the two: add −∞ to the mask instead";
        check::ensure(!self.causal, name, message)?;
        check::broadcasts(name, args[0], "mask", *mask)
    }
    kernels!(self, args => device::masked(*self, args));
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, g: &Tensor) -> Grads {
        let backward = |scale| grad_x(y.rank() - 1, false, scale, y, g);
        let mask = inputs.get(1).filter(|mask| mask.track_op());
        let scores = mask.map(|_| backward(1.0)).transpose()?;
        let dx = match &scores {
            _ if !inputs[0].track_op() => None,
            // In f32 the gradient of the scores serves both; 16 bits would be rounded twice.
            Some(scores) if y.dtype() == DType::F32 => Some((scores * self.scale as f64)?),
            _ => Some(backward(self.scale)?),
        };
        let dmask = scores
            .zip(mask)
            .map(|(scores, mask)| reduce::sum_to(&scores, mask.shape()));
        let mut grads = vec![dx, dmask.transpose()?];
        grads.truncate(inputs.len());
        Ok(grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let mask = match (self.causal, args.get(1)) {
            (_, Some(mask)) => Mask::Additive(mask),
            (true, None) => Mask::Causal,
            (false, None) => Mask::None,
        };
        match args[0].elem_count() {
            // Stock refuses a tensor without elements.
            0 => Ok(args[0].clone()),
            _ => reference_masked(args[0], self.scale, mask),
        }
    }
}

impl InplaceOp for MaskedSoftmax {
    kernels!(in place: self, x, rest => device::masked_inplace(*self, x, rest));
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
    let max = at_least(&scores.max_keepdim(D::Minus1)?.detach(), lowest)?;
    let e = scores.broadcast_sub(&max)?.exp()?;
    // At least 1, except in a row without scores.
    let sum = at_least(&e.sum_keepdim(D::Minus1)?, 0.5)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    /// A trained mask must not cost x's gradient a second rounding: it is the same with a frozen one.
    #[test]
    fn the_gradient_of_x_is_rounded_once() -> Result<()> {
        let values = |seed: usize| (0..64).map(move |i| ((i * 37 + seed) % 23) as f32 / 7.0 - 1.5);
        let tensor = |seed| -> Result<Tensor> {
            let x = Tensor::from_iter(values(seed), &Device::Cpu)?.reshape((4, 16))?;
            x.to_dtype(DType::BF16)
        };
        let (x, mask, weight) = (
            Var::from_tensor(&tensor(1)?)?,
            Var::from_tensor(&tensor(2)?)?,
            tensor(3)?,
        );
        let dx = |mask: &Tensor| -> Result<Vec<f32>> {
            let y = masked_softmax(&x, 0.3, Mask::Additive(mask))?;
            let grads = (y * &weight)?.sum_all()?.backward()?;
            let dx = grads
                .get(&x)
                .map(|g| g.flatten_all()?.to_dtype(DType::F32)?.to_vec1());
            dx.transpose().map(Option::unwrap_or_default)
        };
        assert_eq!(dx(&mask)?, dx(&mask.detach())?);
        Ok(())
    }
}
