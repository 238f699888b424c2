//! Products of 8-bit activations and weights of 1 or 2 bits, as in BitNet: `y = xq·Wqᵀ · (scale of x's row) · (scale of W) + bias`.
//!
//! x is rounded to integers by [`Scheme::int8`] for each row, W holds −1, 0 and 1 or ±1 of a [`Quantized`] weight, and the
//! products are summed up as integers, exactly. Backward, straight through x's rounding: `dx = g·W`, `dbias = Σ g` over the rows.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::mixed_matmul::gradients;
use super::packed::{self, packed_product};
use super::quantize::fake_quantize;
use crate::check;
use crate::op::{custom_op, Op, Spec};
use crate::quant::{Levels, Packing, Quantized, ScaleScope, Scheme};
use candle_core::{Result, Tensor};

const NAME: &str = "bitlinear";

/// The scheme by which x is rounded to 8-bit integers.
pub(crate) const INPUT_SCHEME: Scheme = Scheme::int8(ScaleScope::Row);

/// `x·Wᵀ + bias` for x `[.., in]`, a weight `[out, in]` of [`Levels::Ternary`] or [`Levels::Sign`] with one scale, or one for
/// each output, and bias `[out]`. Differentiable in x and bias.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{bitlinear, quantize};
/// use candle_fused::quant::{ScaleScope, Scheme};
/// let w = Tensor::new(&[[2f32, -2., 0., 2.], [0., 2., 2., -2.]], &Device::Cpu)?;
/// let w = quantize(&w, Scheme::ternary(ScaleScope::Tensor))?;
/// let x = Tensor::new(&[127f32, 10., 20., 30.], &Device::Cpu)?;
/// assert_eq!(bitlinear(&x, &w, None)?.to_vec1::<f32>()?, [147. * 1.5, 0. * 1.5]);
/// # candle_core::Result::Ok(())
/// ```
pub fn bitlinear(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    let op = BitLinear { weight: w.clone() };
    packed::apply(NAME, op, w, x, bias)
}

/// More columns might be too many for sums of 32 bits: each adds 128 at most, times a code of 2 at most.
const MAX_COLS: usize = i32::MAX as usize / 256;

/// The schemes of weights that have kernels.
pub(crate) fn check_scheme(op: &str, scheme: &Scheme) -> Result<()> {
    let Scheme {
        levels,
        scope,
        packing,
        ..
    } = *scheme;
    let served = matches!(levels, Levels::Ternary | Levels::Sign { .. })
        && matches!(scope, ScaleScope::Tensor | ScaleScope::Row)
        && packing == Packing::Bits;
    if !served {
        let message = format!(
            "got a weight of {levels:?} per {scope:?} in {packing:?}, expected Ternary or Sign per Tensor or Row in Bits"
        );
        return Err(check::error(op, message));
    }
    Ok(())
}

/// [`bitlinear()`] as a CustomOp: of x, or of x and a bias.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{bitlinear, quantize, BitLinear};
/// use candle_fused::quant::{ScaleScope, Scheme};
/// let w = Tensor::new(&[[2f32, -2.], [0., 2.]], &Device::Cpu)?;
/// let w = quantize(&w, Scheme::ternary(ScaleScope::Row))?;
/// let (x, bias) = (Tensor::ones((3, 2), DType::F32, &Device::Cpu)?, Tensor::new(&[1f32, 2.], &Device::Cpu)?);
/// let y = x.apply_op2(&bias, BitLinear { weight: w.clone() })?;
/// assert_eq!(y.to_vec2::<f32>()?, bitlinear(&x, &w, Some(&bias))?.to_vec2::<f32>()?);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct BitLinear {
    pub weight: Quantized,
}

custom_op!(BitLinear: CustomOp1, CustomOp2);

impl Op for BitLinear {
    packed_product!(self, device::forward, reference);

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_scheme(name, self.weight.scheme())?;
        packed::check_args(name, args, &self.weight)?;
        match self.weight.shape().dims() {
            &[_, cols] if cols > MAX_COLS => {
                let message =
                    format!("got a weight of {cols} columns, expected {MAX_COLS} at most");
                Err(check::error(name, message))
            }
            _ => Ok(()),
        }
    }
}

/// The composition that [`bitlinear()`] replaces; products are rounded on the way.
pub fn reference(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    packed::reference(x, w, bias, |x| fake_quantize(&x, INPUT_SCHEME))
}
