//! Products of floats and a quantised weight: `y = x·Wᵀ + bias` with W of 1, 2, 4 or 8 bits, decoded on the way.
//!
//! Backward: `dx = g·W`, `dbias = Σ g` over the rows. Accumulated in f32; of W, never more than some rows or columns are
//! decoded at a time. Few rows on the CPU are not decoded at all: there x is written as integers of 24 bits with scales, so
//! that a result is off by some 1e-6 of `max|w| · Σ|x|`, with the largest weight of each group, and its last bits depend on
//! how many rows there are.

mod cpu;
#[cfg(feature = "metal")]
pub(crate) mod metal;

use super::linear::{self, column_sums};
use super::packed::{check_args, check_shapes, of_nothing, packed_ops, with_parts, Parts};
use super::quantize::{Per, Quantized};
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor};

const NAME: &str = "mixed_matmul";

/// `x·Wᵀ + bias` for x `[.., in]`, a quantised weight `[out, in]` and bias `[out]`, differentiable in x and bias. The weight's
/// scales are one for all, one for each output, or by groups.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{mixed_matmul, quantize, quantize::Scheme};
/// let w = Tensor::arange(0f32, 64., &Device::Cpu)?.reshape((2, 32))?;
/// let w = quantize(&w, Scheme::mlx(8, 32))?;
/// let x = Tensor::ones(32, w.scales().dtype(), &Device::Cpu)?;
/// let y = mixed_matmul(&x, &w, None)?.to_vec1::<f32>()?;
/// assert!((y[0] - 496.).abs() < 1. && (y[1] - 1520.).abs() < 2.);
/// # candle_core::Result::Ok(())
/// ```
pub fn mixed_matmul(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    check::float(NAME, x)?;
    check_weight(NAME, w)?;
    check_args(NAME, x, w, bias)?;
    if x.elem_count() == 0 || !check::served(x) || tracks(w) {
        return reference(x, w, bias);
    }
    let op = MixedMatmul(w.clone());
    match bias {
        Some(bias) => apply::op2(x, bias, op),
        None => apply::op1(x, op),
    }
}

fn tracks(w: &Quantized) -> bool {
    w.scales().track_op() || w.offsets().is_some_and(Tensor::track_op)
}

pub(crate) fn check_weight(op: &str, w: &Quantized) -> Result<()> {
    match w.scheme().per {
        Per::Column => Err(check::error(
            op,
            "a weight with scales per Column given, Tensor, Row or Group accepted",
        )),
        _ => Ok(()),
    }
}

/// `g·W` where x tracks gradients.
pub(crate) fn grad_x(x: &Tensor, w: &Quantized, g: &Tensor) -> Result<Option<Tensor>> {
    x.track_op()
        .then(|| apply::op1(g, MixedMatmulT(w.clone())))
        .transpose()
}

/// [`mixed_matmul()`] as a CustomOp: of x, or of x and a bias.
#[derive(Clone, Debug)]
pub struct MixedMatmul(pub Quantized);

impl MixedMatmul {
    fn cpu(
        &self,
        x: (&CpuStorage, &Layout),
        bias: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        check_weight(NAME, &self.0)?;
        let shape = check_shapes(NAME, x.1, &self.0, bias.map(|(_, l)| l))?;
        let out = with_parts!(self.0, cpu, parts => cpu::forward(&self.0, parts, x, bias))?;
        Ok((out, shape))
    }

    #[cfg(feature = "metal")]
    fn metal(
        &self,
        x: (&MetalStorage, &Layout),
        bias: Option<(&MetalStorage, &Layout)>,
    ) -> Result<(MetalStorage, Shape)> {
        check_weight(NAME, &self.0)?;
        let shape = check_shapes(NAME, x.1, &self.0, bias.map(|(_, l)| l))?;
        let out = with_parts!(self.0, metal, parts => metal::forward(&self.0, parts, x, bias))?;
        Ok((out, shape))
    }
}

packed_ops!(MixedMatmul);

/// `x·W` for x `[.., out]`: the gradient of [`MixedMatmul`], and the other way round.
#[derive(Clone, Debug)]
pub struct MixedMatmulT(pub Quantized);

impl MixedMatmulT {
    fn check(&self, x: &Layout) -> Result<Shape> {
        check_weight(NAME, &self.0)?;
        match (x.dims().last(), self.0.shape().dims()) {
            (Some(last), &[out, cols]) if *last == out => {
                let shape = linear::output_shape(x, cols);
                check::size(NAME, shape.dims())?;
                Ok(shape)
            }
            (last, shape) => {
                let message = format!(
                    "weight has shape {shape:?}, x's last dim is {last:?}, [out, in] and [.., out] accepted"
                );
                Err(check::error(NAME, message))
            }
        }
    }
}

impl CustomOp1 for MixedMatmulT {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = self.check(l)?;
        let out = with_parts!(self.0, cpu, parts => cpu::transposed(&self.0, parts, (x, l)))?;
        Ok((out, shape))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        let shape = self.check(l)?;
        let out = with_parts!(self.0, metal, parts => metal::transposed(&self.0, parts, (x, l)))?;
        Ok((out, shape))
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        x.track_op()
            .then(|| apply::op1(g, MixedMatmul(self.0.clone())))
            .transpose()
    }
}

/// The composition that [`mixed_matmul()`] replaces.
pub fn reference(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return of_nothing(x, w, bias);
    }
    let wide = |t: &Tensor| t.to_dtype(DType::F32);
    let bias = bias.map(wide).transpose()?;
    let y = linear::reference(&wide(x)?, &w.dequantize(DType::F32)?, bias.as_ref())?;
    y.to_dtype(x.dtype())
}
