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

use crate::{apply, check};
use candle_core::shape::Dim;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, InplaceOp1, Layout, Result, Shape, Tensor, D};

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
    apply::inplace1(x, Softmax { dim, log })
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
