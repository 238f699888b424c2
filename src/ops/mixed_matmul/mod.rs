//! Products of floats and a quantised weight: `y = x·Wᵀ + bias` with W of 1, 2, 4 or 8 bits, decoded on the way.
//!
//! Backward: `dx = g·W`, `dbias = Σ g` over the rows. Products are accumulated in f32, and W is decoded a tile of rows or
//! columns at a time. On the CPU, few rows of x are multiplied with W's codes as integers: x is rounded to 24-bit integers with
//! per-group scales, so that a result is off by some 1e-6 of `max|w| · Σ|x|`, with the largest weight of each group, and its
//! last bits depend on the number of rows.
//!
//! [`Activations::Int8`] rounds x to 8 bits first, with a scale for each group of W's columns. Gradients are those of the exact
//! product: they pass the rounding straight through.

mod activations;
mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::linear::{column_sums, output_shape};
use super::packed::{self, packed_product};
use super::quantize::fake_quantize;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use crate::quant::{Quantized, ScaleScope};
pub use activations::Activations;
use candle_core::{Result, Tensor};

const NAME: &str = "mixed_matmul";

/// `x·Wᵀ + bias` for x `[.., in]`, a quantised weight `[out, in]` and bias `[out]`, differentiable in x and bias. The weight has
/// one scale, one for each output, or one for each group of columns.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{mixed_matmul, quantize};
/// use candle_fused::quant::Scheme;
/// let w = Tensor::arange(0f32, 64., &Device::Cpu)?.reshape((2, 32))?;
/// let w = quantize(&w, Scheme::mlx(8, 32))?;
/// let x = Tensor::ones(32, w.scales().dtype(), &Device::Cpu)?;
/// let y = mixed_matmul(&x, &w, None)?.to_vec1::<f32>()?;
/// assert!((y[0] - 496.).abs() < 1. && (y[1] - 1520.).abs() < 2.);
/// # candle_core::Result::Ok(())
/// ```
pub fn mixed_matmul(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    product(NAME, x, w, bias, Activations::Exact)
}

/// [`mixed_matmul()`] of activations that may be rounded to 8 bits first, which is faster on CPUs; see [`Activations`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{mixed_matmul, mixed_matmul_with, quantize, Activations};
/// use candle_fused::quant::Scheme;
/// let (w, x) = (Tensor::randn(0f32, 1., (8, 256), &Device::Cpu)?, Tensor::randn(0f32, 1., (4, 256), &Device::Cpu)?);
/// let w = quantize(&w, Scheme::mlx(4, 64))?;
/// let rounded = mixed_matmul_with(&x, &w, None, Activations::Int8)?;
/// let error = (rounded - mixed_matmul(&x, &w, None)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(error < 1.);
/// # candle_core::Result::Ok(())
/// ```
pub fn mixed_matmul_with(
    x: &Tensor,
    w: &Quantized,
    bias: Option<&Tensor>,
    activations: Activations,
) -> Result<Tensor> {
    product("mixed_matmul_with", x, w, bias, activations)
}

/// [`mixed_matmul_with()`] on behalf of the function `name`.
fn product(
    name: &'static str,
    x: &Tensor,
    w: &Quantized,
    bias: Option<&Tensor>,
    activations: Activations,
) -> Result<Tensor> {
    let weight = w.clone();
    let op = MixedMatmul {
        weight,
        activations,
    };
    packed::apply(name, op, w, x, bias)
}

pub(crate) fn check_weight(op: &str, w: &Quantized) -> Result<()> {
    match w.scheme().scope {
        ScaleScope::Column => Err(check::error(
            op,
            "got a weight with scales per Column, expected Tensor, Row or Group",
        )),
        _ => Ok(()),
    }
}

/// [`mixed_matmul_with()`] as a CustomOp: of x, or of x and a bias.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{mixed_matmul, quantize, Activations, MixedMatmul};
/// use candle_fused::quant::Scheme;
/// let w = Tensor::arange(0f32, 64., &Device::Cpu)?.reshape((2, 32))?;
/// let w = quantize(&w, Scheme::mlx(4, 32))?;
/// let x = Tensor::ones((3, 32), DType::F32, &Device::Cpu)?;
/// let y = x.apply_op1(MixedMatmul { weight: w.clone(), activations: Activations::Exact })?;
/// assert_eq!(y.to_vec2::<f32>()?, mixed_matmul(&x, &w, None)?.to_vec2::<f32>()?);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct MixedMatmul {
    pub weight: Quantized,
    pub activations: Activations,
}

custom_op!(MixedMatmul: CustomOp1, CustomOp2);

impl Op for MixedMatmul {
    packed_product!(
        self,
        |call| device::forward(call, self.activations),
        |x, w, bias| reference_with(x, w, bias, self.activations)
    );

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_weight(name, &self.weight)?;
        packed::check_args(name, args, &self.weight)
    }
}

/// The gradients of x and, where there is one, of the bias: `g·W` and Σ g over the rows.
pub(crate) fn gradients(inputs: &[&Tensor], w: &Quantized, g: &Tensor) -> Grads {
    let op = || MixedMatmulT { weight: w.clone() };
    let dx = || op::apply_kernel(NAME, op(), &[g]);
    op::grads(inputs, &[&dx, &|| column_sums(g)])
}

/// `x·W` for x `[.., out]`: the gradient op of [`MixedMatmul`], whose own gradient is [`MixedMatmul`] again.
struct MixedMatmulT {
    weight: Quantized,
}

impl Op for MixedMatmulT {
    signature!(NAME(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_weight(name, &self.weight)?;
        match (args[0].dims().last(), self.weight.shape().dims()) {
            (Some(last), &[out, cols]) if *last == out => {
                let shape = output_shape(args[0].layout, cols);
                check::fits_in_memory(name, "the result", shape.dims())
            }
            _ => Err(packed::wrong_shapes(name, args[0], &self.weight, "out")),
        }
    }

    kernels!(self, args => {
        let shape = output_shape(args[0].1, self.weight.shape().dims()[1]);
        let out = packed::with_weight(NAME, &self.weight, |parts| {
            device::transposed(&self.weight, parts, args[0])
        })?;
        Ok((out, shape))
    });

    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let product = || MixedMatmul {
            weight: self.weight.clone(),
            activations: Activations::Exact,
        };
        let grad = || op::apply_kernel(NAME, product(), &[g]);
        op::grads(inputs, &[&grad])
    }
}

/// The composition that [`mixed_matmul()`] replaces.
pub fn reference(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    packed::reference(x, w, bias, Ok)
}

/// The composition that [`mixed_matmul_with()`] replaces.
pub fn reference_with(
    x: &Tensor,
    w: &Quantized,
    bias: Option<&Tensor>,
    activations: Activations,
) -> Result<Tensor> {
    packed::reference(x, w, bias, |x| match activations.scheme(w) {
        Some(scheme) => fake_quantize(&x, scheme),
        None => Ok(x),
    })
}
