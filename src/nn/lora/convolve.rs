//! Candle's convolution with a backward of our own.
//!
//! Stock Candle's makes a gradient for a frozen kernel too, fails where a stride leaves the height and the width
//! different remainders, and on Metal gives kernels wrong gradients, since it convolves with a transposed one there. Here
//! `dx` is the transposed convolution of the gradient, and `dW` the convolution of x with it, batch for channels.

use crate::apply;
use candle_core::backend::BackendStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use candle_nn::Conv2dConfig;

/// `conv(x, weight)`, differentiable in what tracks gradients.
pub(super) fn conv2d(x: &Tensor, weight: &Tensor, config: Conv2dConfig) -> Result<Tensor> {
    if !x.device().is_cpu() && !x.device().is_metal() {
        return stock(x, weight, config);
    }
    let y = stock(&x.detach(), &weight.detach(), config)?;
    match x.track_op() || weight.track_op() {
        true => apply::op3(&y.contiguous()?, x, weight, Convolved(config)),
        false => Ok(y),
    }
}

fn stock(x: &Tensor, weight: &Tensor, config: Conv2dConfig) -> Result<Tensor> {
    let Conv2dConfig {
        padding,
        stride,
        dilation,
        groups,
        cudnn_fwd_algo,
    } = config;
    x.conv2d_with_algo(weight, padding, stride, dilation, groups, cudnn_fwd_algo)
}

/// A convolution that has been computed, of the x and the weight behind it.
struct Convolved(Conv2dConfig);

impl CustomOp3 for Convolved {
    fn name(&self) -> &'static str {
        "conv2d"
    }
    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        l: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((y.try_clone(l)?, l.shape().clone()))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        y: &MetalStorage,
        l: &Layout,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        Ok((y.try_clone(l)?, l.shape().clone()))
    }
    fn bwd(
        &self,
        _: &Tensor,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dx = || {
            let parts = self.groups(weight, g, 0, |w, g| self.grad_x(x, w, g))?;
            Tensor::cat(&parts, 1)
        };
        let dw = || {
            let parts = self.groups(x, g, 1, |x, g| self.grad_weight(x, weight, g))?;
            Tensor::cat(&parts, 0)
        };
        let dx = x.track_op().then(dx).transpose()?;
        Ok((None, dx, weight.track_op().then(dw).transpose()?))
    }
}

impl Convolved {
    /// `f` of each group's part of `t`, along `dim`, and of the gradient.
    fn groups(
        &self,
        t: &Tensor,
        g: &Tensor,
        dim: usize,
        f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let (t, g) = (t.detach(), g.detach());
        let parts = t.chunk(self.0.groups, dim)?.into_iter();
        let pairs = parts.zip(g.chunk(self.0.groups, 1)?);
        pairs.map(|(t, g)| f(&t, &g)).collect()
    }

    fn grad_x(&self, x: &Tensor, weight: &Tensor, g: &Tensor) -> Result<Tensor> {
        let Conv2dConfig {
            padding,
            stride,
            dilation,
            ..
        } = self.0;
        // What the stride left over at the end of a dim. A larger remainder only adds to the end.
        let rest = |dim| {
            let (x, w, g) = (x.dim(dim)?, weight.dim(dim)?, g.dim(dim)?);
            Ok::<_, candle_core::Error>(
                x + 2 * padding - ((g - 1) * stride + dilation * (w - 1) + 1),
            )
        };
        let rest = rest(2)?.max(rest(3)?);
        let (g, weight) = (g.contiguous()?, weight.contiguous()?);
        let dx = g.conv_transpose2d(&weight, padding, rest, stride, dilation)?;
        dx.narrow(2, 0, x.dim(2)?)?.narrow(3, 0, x.dim(3)?)
    }

    fn grad_weight(&self, x: &Tensor, weight: &Tensor, g: &Tensor) -> Result<Tensor> {
        let Conv2dConfig {
            padding,
            stride,
            dilation,
            ..
        } = self.0;
        let x = x.transpose(0, 1)?.contiguous()?;
        let g = g.transpose(0, 1)?.contiguous()?;
        let dw = x.conv2d(&g, padding, dilation, stride, 1)?;
        let dw = dw
            .narrow(2, 0, weight.dim(2)?)?
            .narrow(3, 0, weight.dim(3)?)?;
        dw.transpose(0, 1)
    }
}
