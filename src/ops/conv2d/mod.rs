//! Convolutions of images: `y = act(x ∗ w + bias)`.
//!
//! Backward with `dz = g · act′(z)`: dx is the transposed convolution of dz with w, dw the correlation of x with dz, dbias
//! the sum of dz over batch and image. Computed in f32.

mod algo;
mod cpu;
mod geometry;
#[cfg(feature = "metal")]
mod metal;
mod one_dim;
mod transposed;
mod weight_grad;

pub use algo::ConvAlgo;
pub use geometry::{Geometry, Window};
pub use one_dim::{conv1d, conv_transpose1d};
pub use transposed::{conv_transpose2d, reference as transposed_reference, ConvTranspose2d};
pub use weight_grad::WeightGrad;

use super::activation::{self, activation, grad_before, Act};
use super::linear::check_bias;
use super::matmul_act::linear_act;
use super::reduce::sum_last_dim;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use std::sync::Arc;

const NAME: &str = "conv2d";

/// `act(x ∗ w + bias)` for x `[batch, channels, height, width]`, w `[out, channels / groups, height, width]` and bias
/// `[out]`, differentiable in all of them. A `Conv2dConfig` is a [`Window`] too.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{conv2d, Act};
/// use candle_nn::Conv2dConfig;
/// let x = Tensor::ones((1, 3, 4, 4), DType::F32, &Device::Cpu)?;
/// let w = (Tensor::ones((1, 3, 3, 3), DType::F32, &Device::Cpu)? * 0.5)?;
/// let config = Conv2dConfig { padding: 1, ..Default::default() };
/// let y = conv2d(&x, &w, None, config, Act::Relu)?;
/// let row = y.flatten_to(2)?.get(0)?.to_vec1::<f32>()?;
/// assert_eq!(row, [6., 9., 9., 6.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn conv2d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: impl Into<Window>,
    act: Act,
) -> Result<Tensor> {
    conv2d_with(x, w, bias, window, act, ConvAlgo::Auto)
}

/// [`conv2d`] by a certain algorithm.
pub fn conv2d_with(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: impl Into<Window>,
    act: Act,
    algo: ConvAlgo,
) -> Result<Tensor> {
    Conv2d::new(window, act, algo).apply(NAME, x, w, bias)
}

/// [`conv2d`] as a CustomOp: of x and w, or of these and a bias.
#[derive(Clone, Debug)]
pub struct Conv2d {
    pub window: Window,
    pub act: Act,
    pub algo: ConvAlgo,
    prepared: Option<Arc<cpu::Prepared>>,
}

impl Conv2d {
    pub fn new(window: impl Into<Window>, act: Act, algo: ConvAlgo) -> Self {
        Conv2d {
            window: window.into(),
            act,
            algo,
            prepared: None,
        }
    }

    /// For a weight that stays the same: what is made of it on the CPU is kept by this op and its clones. Another one, or one
    /// that has been overwritten, takes its place.
    pub fn preparing(self) -> Self {
        Conv2d {
            prepared: Some(Arc::default()),
            ..self
        }
    }

    fn geometry(&self, x: &Layout, w: &Layout, bias: Option<&Layout>) -> Result<Geometry> {
        let geometry = Geometry::new(NAME, x, w, self.window)?;
        check_bias(NAME, geometry.groups * geometry.c_out, bias)?;
        Ok(geometry)
    }

    /// The op's result; errors name `op`.
    pub(crate) fn apply(
        self,
        op: &str,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        check_args(op, x, w, bias)?;
        let geometry = Geometry::new(op, x.layout(), w.layout(), self.window)?;
        check_bias(
            op,
            geometry.groups * geometry.c_out,
            bias.map(Tensor::layout),
        )?;
        if self.algo == ConvAlgo::Mps && !x.device().is_metal() {
            self.algo.on_cpu(&geometry, false)?;
        }
        if !check::served(x) {
            return fallback(x, w, bias, self.window, self.act);
        }
        if self.algo == ConvAlgo::Auto && geometry.is_product() {
            let (x, w) = (x.flatten_from(1)?, w.flatten_from(1)?);
            return linear_act(&x, &w, bias, self.act)?.reshape(geometry.y_shape());
        }
        // The backward of an activation needs what went into it.
        if self.act != Act::Identity && apply::tracks(x, w, bias) {
            let act = Act::Identity;
            let z = Conv2d {
                act,
                ..self.clone()
            }
            .apply(op, x, w, bias)?;
            return activation(&z, self.act);
        }
        match bias {
            Some(bias) => apply::op3(x, w, bias, self),
            None => apply::op2(x, w, self),
        }
    }

    fn gradients(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let z = || {
            let act = Act::Identity;
            let plain = Conv2d {
                act,
                ..self.clone()
            };
            plain.apply(
                NAME,
                &x.detach(),
                &w.detach(),
                bias.map(Tensor::detach).as_ref(),
            )
        };
        let dz = grad_before(self.act, g, z)?;
        let geometry = Geometry::new(NAME, x.layout(), w.layout(), self.window)?;
        let dx = || ConvTranspose2d::new(geometry, Act::Identity).apply(&dz, &w.detach(), None);
        let dw = || apply::op2(&x.detach(), &dz, WeightGrad(geometry));
        Ok((
            x.track_op().then(dx).transpose()?,
            w.track_op().then(dw).transpose()?,
            bias.and_then(|b| b.track_op().then(|| channel_sums(&dz)))
                .transpose()?,
        ))
    }
}

impl CustomOp2 for Conv2d {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self, (x, xl), (w, wl), None)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(self, (x, xl), (w, wl), None)
    }
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, _) = self.gradients(x, w, None, g)?;
        Ok((dx, dw))
    }
}

impl CustomOp3 for Conv2d {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        bias: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self, (x, xl), (w, wl), Some((bias, bl)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
        bias: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(self, (x, xl), (w, wl), Some((bias, bl)))
    }
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.gradients(x, w, Some(bias), g)
    }
}

fn check_args(op: &str, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    check::float(op, x)?;
    check::alike(op, x, "weight", w)?;
    if let Some(bias) = bias {
        check::alike(op, x, "bias", bias)?;
    }
    Ok(())
}

fn check_shape(op: &str, name: &str, layout: &Layout, accepted: &Shape) -> Result<()> {
    if layout.shape() != accepted {
        let given = layout.shape();
        let message = format!("{name} has shape {given:?}, {accepted:?} accepted");
        return Err(check::error(op, message));
    }
    Ok(())
}

/// Σ over batch and image.
fn channel_sums(g: &Tensor) -> Result<Tensor> {
    sum_last_dim(&g.transpose(0, 1)?.flatten_from(1)?)
}

/// Stock's convolution where it takes the window.
fn fallback(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: Window,
    act: Act,
) -> Result<Tensor> {
    let Window {
        padding: [padding, p],
        stride: [stride, s],
        dilation: [dilation, d],
        groups,
    } = window;
    // Stock fails to give some gradients.
    if [p, s, d] != [padding, stride, dilation] || apply::tracks(x, w, bias) {
        return reference(x, w, bias, window, act);
    }
    let z = x.conv2d(w, padding, stride, dilation, groups)?;
    finish(z, bias, act)
}

fn finish(z: Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    let z = match bias {
        Some(bias) => z.broadcast_add(&bias.reshape((1, (), 1, 1))?)?,
        None => z,
    };
    activation::reference(&z, act)
}

/// [`conv2d`] as a sum of products, one for each place of the kernel. Stock's own convolution fails to give some
/// gradients.
pub fn reference(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: Window,
    act: Act,
) -> Result<Tensor> {
    let geometry = Geometry::new(NAME, x.layout(), w.layout(), window)?;
    let Geometry {
        batch,
        groups,
        c_in,
        c_out,
        kernel,
        output,
        padding,
        ..
    } = geometry;
    let x = x
        .pad_with_zeros(2, padding[0], padding[0])?
        .pad_with_zeros(3, padding[1], padding[1])?;
    let mut z: Option<Tensor> = None;
    for i in 0..kernel[0] {
        for j in 0..kernel[1] {
            let x = every(&every(&x, 2, i, geometry)?, 3, j, geometry)?;
            let x = x.reshape((batch, groups, c_in, output[0] * output[1]))?;
            let w = w.narrow(2, i, 1)?.narrow(3, j, 1)?.contiguous()?;
            let w = w.reshape((1, groups, c_out, c_in))?;
            let term = w.broadcast_matmul(&x)?;
            z = Some(match z {
                Some(z) => (z + term)?,
                None => term,
            });
        }
    }
    let z = z.ok_or_else(|| check::error(NAME, "the kernel is empty"))?;
    finish(z.reshape(geometry.y_shape())?, bias, act)
}

/// What the kernel's `place` along a dim sees of the padded x.
fn every(x: &Tensor, dim: usize, place: usize, g: Geometry) -> Result<Tensor> {
    let i = dim - 2;
    let at = |o| (o * g.stride[i] + place * g.dilation[i]) as u32;
    let indices: Vec<u32> = (0..g.output[i]).map(at).collect();
    x.index_select(&Tensor::new(indices, x.device())?, dim)
}
