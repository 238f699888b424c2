//! Transposed convolutions, which are the gradients of convolutions.

use super::{
    activation, channel_sums, check_args, check_bias, check_shape, cpu, finish, grad_before, Act,
    Geometry, WeightGrad, Window,
};
use super::{Conv2d, ConvAlgo};
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use candle_nn::ConvTranspose2dConfig;

pub const NAME: &str = "conv_transpose2d";

/// `act(x ∗ᵀ w + bias)` for x `[batch, channels, height, width]`, w `[channels, out, height, width]` and bias `[out]`,
/// differentiable in all of them.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{conv_transpose2d, Act};
/// use candle_nn::ConvTranspose2dConfig;
/// let x = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let w = Tensor::ones((1, 1, 1, 2), DType::F32, &Device::Cpu)?;
/// let config = ConvTranspose2dConfig { stride: 2, ..Default::default() };
/// let y = conv_transpose2d(&x, &w, None, config, Act::Identity)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 2., 2.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn conv_transpose2d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    config: ConvTranspose2dConfig,
    act: Act,
) -> Result<Tensor> {
    let ends = [config.output_padding; 2];
    windowed(NAME, x, w, bias, config.into(), ends, act)
}

/// [`conv_transpose2d`] of any window, groups included.
pub fn windowed(
    op: &str,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: Window,
    output_padding: [usize; 2],
    act: Act,
) -> Result<Tensor> {
    check_args(op, x, w, bias)?;
    let geometry = Geometry::transposed(op, x.layout(), w.layout(), window, output_padding)?;
    check_bias(
        op,
        geometry.groups * geometry.c_in,
        bias.map(Tensor::layout),
    )?;
    if !check::served(x) {
        return reference(x, w, bias, window, output_padding, act);
    }
    ConvTranspose2d::new(geometry, act).apply(x, w, bias)
}

/// [`conv_transpose2d`] as a CustomOp: of x and w, or of these and a bias. The geometry is that of the convolution it is
/// the gradient of.
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose2d {
    pub geometry: Geometry,
    pub act: Act,
}

impl ConvTranspose2d {
    pub fn new(geometry: Geometry, act: Act) -> Self {
        ConvTranspose2d { geometry, act }
    }

    pub(super) fn apply(self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if self.act != Act::Identity && apply::tracks(x, w, bias) {
            let z = ConvTranspose2d::new(self.geometry, Act::Identity).apply(x, w, bias)?;
            return activation::activation(&z, self.act);
        }
        match bias {
            Some(bias) => apply::op3(x, w, bias, self),
            None => apply::op2(x, w, self),
        }
    }

    /// The shapes, for those who apply the CustomOp themselves too.
    pub(super) fn check(&self, x: &Layout, w: &Layout, bias: Option<&Layout>) -> Result<()> {
        let geometry = self.geometry;
        geometry.check(NAME)?;
        check_shape(NAME, "x", x, &geometry.y_shape())?;
        check_shape(NAME, "weight", w, &geometry.w_shape())?;
        check_bias(NAME, geometry.groups * geometry.c_in, bias)
    }

    fn gradients(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let geometry = self.geometry;
        let plain = ConvTranspose2d::new(geometry, Act::Identity);
        let z = || plain.apply(&x.detach(), &w.detach(), bias.map(Tensor::detach).as_ref());
        let dz = grad_before(self.act, g, z)?;
        let dx = || {
            let conv = Conv2d::new(geometry.window(), Act::Identity, ConvAlgo::Auto);
            let dx = conv.apply(NAME, &dz, &w.detach(), None)?;
            // More than a stride of output padding leaves room for more.
            let [rows, cols] = geometry.output;
            dx.narrow(2, 0, rows)?.narrow(3, 0, cols)
        };
        let dw = || apply::op2(&dz, &x.detach(), WeightGrad(geometry));
        Ok((
            x.track_op().then(dx).transpose()?,
            w.track_op().then(dw).transpose()?,
            bias.and_then(|b| b.track_op().then(|| channel_sums(&dz)))
                .transpose()?,
        ))
    }
}

impl CustomOp2 for ConvTranspose2d {
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
        cpu::transposed(self, (x, xl), (w, wl), None)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        super::metal::transposed(self, (x, xl), (w, wl), None)
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

impl CustomOp3 for ConvTranspose2d {
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
        cpu::transposed(self, (x, xl), (w, wl), Some((bias, bl)))
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
        super::metal::transposed(self, (x, xl), (w, wl), Some((bias, bl)))
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

/// [`conv_transpose2d`] as a sum of products, one for each place of the kernel, each spread over the output.
pub fn reference(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: Window,
    output_padding: [usize; 2],
    act: Act,
) -> Result<Tensor> {
    let geometry = Geometry::transposed(NAME, x.layout(), w.layout(), window, output_padding)?;
    let Geometry {
        batch,
        groups,
        c_in,
        c_out,
        input,
        kernel,
        output,
        padding,
        ..
    } = geometry;
    let [rows, cols] = [0, 1].map(|i| input[i] + 2 * padding[i]);
    let x = x.reshape((batch, groups, c_out, output[0] * output[1]))?;
    let mut z = Tensor::zeros((batch, groups * c_in, rows, cols), x.dtype(), x.device())?;
    for i in 0..kernel[0] {
        for j in 0..kernel[1] {
            let w = w.narrow(2, i, 1)?.narrow(3, j, 1)?.contiguous()?;
            let w = w.reshape((1, groups, c_out, c_in))?.transpose(2, 3)?;
            let term = w.contiguous()?.broadcast_matmul(&x)?;
            let term = term.reshape((batch, groups * c_in, output[0], output[1]))?;
            let term = spread(&spread(&term, 2, i, rows, geometry)?, 3, j, cols, geometry)?;
            z = (z + term)?;
        }
    }
    let z = z
        .narrow(2, padding[0], input[0])?
        .narrow(3, padding[1], input[1])?;
    finish(z, bias, act)
}

/// Each row (or column) of `t` where the kernel's `place` leads to, of `len` in all.
fn spread(t: &Tensor, dim: usize, place: usize, len: usize, g: Geometry) -> Result<Tensor> {
    let i = dim - 2;
    let at = |o| (o * g.stride[i] + place * g.dilation[i]) as u32;
    let indices: Vec<u32> = (0..g.output[i]).map(at).collect();
    let mut dims = t.dims().to_vec();
    dims[dim] = len;
    let zeros = Tensor::zeros(dims, t.dtype(), t.device())?;
    zeros.index_add(&Tensor::new(indices, t.device())?, t, dim)
}
