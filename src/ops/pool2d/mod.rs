//! Pooling of images: y is the maximum, or the mean, of each window of x.
//!
//! Windows are cut off at the borders of x: padding is never a maximum, and counts in a mean's divisor if
//! `count_include_pad` says so. A maximum is NaN only where the first pixel of its window is, and passes over other NaNs, as
//! stock Candle's. Means are added up in f32, and rounded once.
//!
//! Backward, over the windows o that a pixel i lies in: `dx[i] = Σ g[o] / n[o]` of means, n being the divisor; of maxima
//! `dx[i] = Σ g[o]` over those windows whose first maximum, in row-major order, is i, as in PyTorch. (Stock Candle's own
//! backward, which there is for `kernel == stride` alone, gives each of the n maxima of a window of k pixels g·n/k.)
//! Each pixel collects its sum in f32, window by window in row-major order, and rounds it once.

mod cpu;
mod geometry;
#[cfg(feature = "metal")]
mod metal;
mod params;
mod reference;

pub use params::Pool2dParams;
pub use reference::{reference_avg, reference_max};

use super::reduce::mean_keepdim;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{Result, Shape, Tensor};
use geometry::Geometry;

const NAME: &str = "pool2d";

/// What becomes of the pixels of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Max,
    Avg,
}

/// The largest pixel of each window of x `[batch, channels, height, width]`, for f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{max_pool2d, Pool2dParams};
/// let x = Tensor::new(&[[[[1f32, 2., 3.], [4., 5., 6.], [7., 8., 9.]]]], &Device::Cpu)?;
/// let y = max_pool2d(&x, Pool2dParams::new(2).with_stride(1))?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [5., 6., 8., 9.]);
/// let y = max_pool2d(&x, Pool2dParams::new(3).with_stride(2).with_padding(1))?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [5., 6., 8., 9.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn max_pool2d(x: &Tensor, params: Pool2dParams) -> Result<Tensor> {
    op::apply("max_pool2d", Pool2d::new(Kind::Max, params), &[x])
}

/// The mean of each window of x `[batch, channels, height, width]`, for f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{avg_pool2d, Pool2dParams};
/// let x = Tensor::new(&[[[[1f32, 2.], [3., 6.]]]], &Device::Cpu)?;
/// assert_eq!(avg_pool2d(&x, Pool2dParams::new(2))?.flatten_all()?.to_vec1::<f32>()?, [3.]);
/// let padded = Pool2dParams::new(2).with_padding(1);
/// let y = avg_pool2d(&x, padded)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [0.25, 0.5, 0.75, 1.5]);
/// let y = avg_pool2d(&x, padded.with_pixels_counted_alone())?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 2., 3., 6.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn avg_pool2d(x: &Tensor, params: Pool2dParams) -> Result<Tensor> {
    if params.covers(x.dims()) && check::has_kernel(x) {
        return mean_keepdim(x, (2, 3));
    }
    op::apply("avg_pool2d", Pool2d::new(Kind::Avg, params), &[x])
}

/// [`max_pool2d`] as a CustomOp: `x.apply_op1(MaxPool2d(Pool2dParams::new(2)))`.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d(pub Pool2dParams);

/// [`avg_pool2d`] as a CustomOp: `x.apply_op1(AvgPool2d(Pool2dParams::new(2)))`.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d(pub Pool2dParams);

custom_op!(MaxPool2d, "max_pool2d": CustomOp1 => |pool| Pool2d::new(Kind::Max, pool.0));
custom_op!(AvgPool2d, "avg_pool2d": CustomOp1 => |pool| Pool2d::new(Kind::Avg, pool.0));

/// The kernels of [`MaxPool2d`] and [`AvgPool2d`].
#[derive(Clone, Copy, Debug)]
struct Pool2d {
    kind: Kind,
    params: Pool2dParams,
}

impl Pool2d {
    fn new(kind: Kind, params: Pool2dParams) -> Self {
        Pool2d { kind, params }
    }

    /// Of an x whose dims have been checked.
    fn geometry(&self, x: &Shape) -> Result<Geometry> {
        Geometry::new(NAME, x.dims(), self.params)
    }
}

impl Op for Pool2d {
    signature!(NAME(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        Geometry::new(name, args[0].dims(), self.params).map(drop)
    }
    kernels!(self, args => device::forward(self.kind, &self.geometry(args[0].1.shape())?, args[0]));
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, g: &Tensor) -> Grads {
        let x = inputs[0];
        let dx = match self.kind {
            _ if x.elem_count() == 0 => x.zeros_like()?,
            Kind::Max => op::apply("max_pool2d_bwd", MaxBwd(self.params), &[x, y, g])?,
            Kind::Avg => {
                let geometry = self.geometry(x.shape())?;
                op::apply("avg_pool2d_bwd", AvgBwd(geometry), &[g])?
            }
        };
        Ok(vec![Some(dx)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference::fallback(args[0], self.kind, self.params)
    }
}

/// `(x, y, g) → dx` of maxima.
#[derive(Clone, Copy, Debug)]
struct MaxBwd(Pool2dParams);

impl Op for MaxBwd {
    signature!("max_pool2d_bwd"(x, y, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let y = Geometry::new(name, args[0].dims(), self.0)?.y_shape();
        check::has_shape(name, "y", args[1].layout, y.dims())?;
        check::has_shape(name, "grad_out", args[2].layout, y.dims())
    }
    kernels!(self, args => {
        let geometry = Geometry::new(NAME, args[0].1.dims(), self.0)?;
        device::max_backward(&geometry, args)
    });
}

/// `g → dx` of means.
#[derive(Clone, Copy, Debug)]
struct AvgBwd(Geometry);

impl Op for AvgBwd {
    signature!("avg_pool2d_bwd"(grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::has_shape(name, "grad_out", args[0].layout, self.0.y_shape().dims())
    }
    kernels!(self, args => device::avg_backward(&self.0, args[0]));
}
