//! Softmax `y = exp(x − max) / Σ exp(x − max)` over one dim, its logarithm, and the masked form
//! `softmax(scale · x + mask)` over the last dim. Computed in f32 whatever the dtype.
//!
//! Backward: softmax `dx = scale · y · (g − Σ g·y)`, log_softmax `dx = g − exp(y) · Σ g`.
//!
//! A row whose scores are all −∞ has no softmax: [`softmax`] gives NaN, as stock Candle does;
//! [`masked_softmax`] gives zeros, and zero gradients.

mod cpu;
mod masked;
#[cfg(feature = "metal")]
mod metal;

use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::shape::Dim;
use candle_core::{Result, Shape, Tensor, D};

pub(crate) use cpu::{finite_max, MaxSum, Plain, ScoreRow};
pub use masked::{masked_softmax, masked_softmax_inplace, reference_masked, Mask, MaskedSoftmax};

const NAME: &str = "softmax";

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
    apply(NAME, x, dim, false)
}

/// Softmax over the last dim.
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    apply("softmax_last_dim", x, D::Minus1, false)
}

/// The logarithm of the softmax over `dim`.
pub fn log_softmax(x: &Tensor, dim: impl Dim) -> Result<Tensor> {
    apply("log_softmax", x, dim, true)
}

fn apply(name: &'static str, x: &Tensor, dim: impl Dim, log: bool) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), name)?;
    op::apply(name, Softmax { dim, log }, &[x])
}

/// `x = softmax(x)` over the last dim in x's own memory, for inference.
pub fn softmax_last_dim_inplace(x: &Tensor) -> Result<()> {
    apply_inplace("softmax_last_dim_inplace", x, false)
}

/// `x = log_softmax(x)` over the last dim in x's own memory, for inference.
pub fn log_softmax_last_dim_inplace(x: &Tensor) -> Result<()> {
    apply_inplace("log_softmax_last_dim_inplace", x, true)
}

fn apply_inplace(name: &'static str, x: &Tensor, log: bool) -> Result<()> {
    let dim = D::Minus1.to_index(x.shape(), name)?;
    op::apply_inplace(name, Softmax { dim, log }, x, &[])
}

/// [`softmax`] and [`log_softmax`] as a CustomOp; in place over the last dim only.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::Softmax;
/// let x = Tensor::new(&[[1f32, 1.], [2., 2.]], &Device::Cpu)?;
/// let y = x.apply_op1(Softmax { dim: 1, log: false })?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// The dim whose elements add up to 1.
    pub dim: usize,
    /// Whether the logarithm of the softmax is returned.
    pub log: bool,
}

custom_op!(Softmax: CustomOp1, InplaceOp1);

impl Op for Softmax {
    signature!(NAME(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_dim(name, self.dim, args[0])
    }
    kernels!(self, args => device::forward(*self, args[0]));
    fn bwd(&self, _: &[&Tensor], y: &Tensor, g: &Tensor) -> Grads {
        let &Softmax { dim, log } = self;
        Ok(vec![Some(grad_x(dim, log, 1.0, y, g)?)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        match self.log {
            // Stock refuses a tensor without elements.
            _ if args[0].elem_count() == 0 => Ok(args[0].clone()),
            false => reference(args[0], self.dim),
            true => reference_log(args[0], self.dim),
        }
    }
}

impl InplaceOp for Softmax {
    fn check_inplace(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.check(name, args)?;
        let (dim, last) = (self.dim, args[0].rank() - 1);
        let message = format_args!("got dim {dim} in place, expected the last one, {last}");
        check::ensure(dim == last, name, message)
    }
    kernels!(in place: self, x, _ => device::inplace(self.log, x));
}

fn check_dim(name: &'static str, dim: usize, x: Spec<'_>) -> Result<()> {
    let shape = x.shape();
    let message = format_args!("got dim {dim} of x with shape {shape:?}, expected one that x has");
    check::ensure(dim < x.rank(), name, message)
}

/// The gradient of x, from the output y of the softmax or log_softmax and the gradient of y.
pub(crate) fn grad_x(dim: usize, log: bool, scale: f32, y: &Tensor, g: &Tensor) -> Result<Tensor> {
    op::apply("softmax_bwd", SoftmaxBwd { dim, log, scale }, &[y, g])
}

/// `(y, g) → dx`
#[derive(Clone, Copy, Debug)]
struct SoftmaxBwd {
    dim: usize,
    log: bool,
    scale: f32,
}

impl Op for SoftmaxBwd {
    signature!("softmax_bwd"(y, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_dim(name, self.dim, args[0])?;
        check::same_shape(name, args[0], "grad_out", args[1])
    }
    kernels!(self, args => device::backward(*self, args[0], args[1]));
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
