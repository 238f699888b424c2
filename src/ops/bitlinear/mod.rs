//! Products of 8-bit activations and weights of 1 or 2 bits, as in BitNet: `y = xq·Wqᵀ · (scale of x's row) · (scale of W) + bias`.
//!
//! x is rounded to integers by [`Scheme::int8`] for each row, W holds −1, 0 and 1 or ±1 of a [`Quantized`] weight, and the
//! products are summed up as integers, exactly. Backward, straight through x's rounding: `dx = g·W`, `dbias = Σ g` over the rows.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::linear::column_sums;
use super::mixed_matmul::grad_x;
use super::packed::{check_args, check_shapes, of_nothing, packed_ops};
use super::quantize::{fake_quantize, Grid, Packing, Per, Quantized, Scheme};
use crate::held::held;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor};

const NAME: &str = "bitlinear";

/// How x is rounded.
pub(crate) const ACTIVATIONS: Scheme = Scheme::int8(Per::Row);

/// `x·Wᵀ + bias` for x `[.., in]`, a weight `[out, in]` of [`Grid::Ternary`] or [`Grid::Sign`] with one scale, or one for each
/// output, and bias `[out]`. Differentiable in x and bias.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{bitlinear, quantize, quantize::{Per, Scheme}};
/// let w = Tensor::new(&[[2f32, -2., 0., 2.], [0., 2., 2., -2.]], &Device::Cpu)?;
/// let w = quantize(&w, Scheme::ternary(Per::Tensor))?;
/// let x = Tensor::new(&[127f32, 10., 20., 30.], &Device::Cpu)?;
/// assert_eq!(bitlinear(&x, &w, None)?.to_vec1::<f32>()?, [147. * 1.5, 0. * 1.5]);
/// # candle_core::Result::Ok(())
/// ```
pub fn bitlinear(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    check::float(NAME, x)?;
    check_weight(w)?;
    check_args(NAME, x, w, bias)?;
    if x.elem_count() == 0 || !check::served(x) || w.scales().track_op() {
        return reference(x, w, bias);
    }
    let op = BitLinear(w.clone());
    match bias {
        Some(bias) => apply::op2(x, bias, op),
        None => apply::op1(x, op),
    }
}

/// More columns might be too many for sums of 32 bits.
const MAX_COLS: usize = i32::MAX as usize / 256;

fn check_weight(w: &Quantized) -> Result<()> {
    match w.shape().dims() {
        &[_, cols] if cols > MAX_COLS => {
            let message = format!("a weight of {cols} columns given, {MAX_COLS} at most accepted");
            return Err(check::error(NAME, message));
        }
        _ => {}
    }
    check_scheme(NAME, w.scheme())
}

/// Of a weight.
pub(crate) fn check_scheme(op: &str, scheme: &Scheme) -> Result<()> {
    let Scheme {
        grid, per, packing, ..
    } = *scheme;
    let served = matches!(grid, Grid::Ternary | Grid::Sign { .. })
        && matches!(per, Per::Tensor | Per::Row)
        && packing == Packing::Bits;
    if !served {
        let message = format!(
            "a weight of {grid:?} per {per:?} in {packing:?} given, Ternary or Sign per Tensor or Row in Bits accepted"
        );
        return Err(check::error(op, message));
    }
    Ok(())
}

/// [`bitlinear()`] as a CustomOp: of x, or of x and a bias.
#[derive(Clone, Debug)]
pub struct BitLinear(pub Quantized);

impl BitLinear {
    fn cpu(
        &self,
        x: (&CpuStorage, &Layout),
        bias: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        check_weight(&self.0)?;
        let shape = check_shapes(NAME, x.1, &self.0, bias.map(|(_, l)| l))?;
        let (codes, scales) = (held(self.0.codes()), held(self.0.scales()));
        let weight = (codes.cpu(NAME)?, scales.cpu(NAME)?);
        Ok((cpu::forward(&self.0, weight, x, bias)?, shape))
    }

    #[cfg(feature = "metal")]
    fn metal(
        &self,
        x: (&MetalStorage, &Layout),
        bias: Option<(&MetalStorage, &Layout)>,
    ) -> Result<(MetalStorage, Shape)> {
        check_weight(&self.0)?;
        let shape = check_shapes(NAME, x.1, &self.0, bias.map(|(_, l)| l))?;
        let (codes, scales) = (held(self.0.codes()), held(self.0.scales()));
        let weight = (codes.metal(NAME)?, scales.metal(NAME)?);
        Ok((metal::forward(&self.0, weight, x, bias)?, shape))
    }
}

packed_ops!(BitLinear);

/// The composition that [`bitlinear()`] replaces; products are rounded on the way.
pub fn reference(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return of_nothing(x, w, bias);
    }
    let wide = fake_quantize(&x.to_dtype(DType::F32)?, ACTIVATIONS)?;
    let w = w.dequantize(DType::F32)?;
    let bias = bias.map(|bias| bias.to_dtype(DType::F32)).transpose()?;
    super::linear::reference(&wide, &w, bias.as_ref())?.to_dtype(x.dtype())
}
