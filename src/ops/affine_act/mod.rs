//! `out = act(z)` with `z = x · scale + bias`; scale and bias broadcast to x's shape.
//!
//! Backward with `dz = g · act′(z)`: `dx = dz · scale`, `dscale = dz · x`, `dbias = dz`, the last two
//! summed back to their shapes. Computed in f32.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, grad_before, Act};
use super::binary_act::mul_act;
use super::reduce::sum_to;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp3, InplaceOp3, Layout, Result, Shape, Tensor};

const NAME: &str = "affine_act";

/// `act(x · scale + bias)`, for f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{affine_act, Act};
/// let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// let scale = Tensor::new(&[2f32, 3., 4.], &Device::Cpu)?;
/// let bias = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// let y = affine_act(&x, &scale, &bias, Act::Identity)?;
/// assert_eq!(y.to_vec1::<f32>()?, [3., 8., 15.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn affine_act(x: &Tensor, scale: &Tensor, bias: &Tensor, act: Act) -> Result<Tensor> {
    check_args(x, scale, bias)?;
    if !check::served(x) {
        return reference(x, scale, bias, act);
    }
    apply::op3(x, scale, bias, AffineAct(act))
}

/// `x = act(x · scale + bias)` in x's own memory, for inference.
pub fn affine_act_inplace(x: &Tensor, scale: &Tensor, bias: &Tensor, act: Act) -> Result<()> {
    check_args(x, scale, bias)?;
    check::untracked(NAME, x)?;
    apply::inplace3(x, scale, bias, AffineAct(act))
}

fn check_args(x: &Tensor, scale: &Tensor, bias: &Tensor) -> Result<()> {
    check::float(NAME, x)?;
    for (name, t) in [("scale", scale), ("bias", bias)] {
        check::alike(NAME, x, name, t)?;
        check::broadcasts(NAME, x, name, t)?;
    }
    Ok(())
}

/// [`affine_act`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct AffineAct(pub Act);

impl CustomOp3 for AffineAct {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        scale: &CpuStorage,
        sl: &Layout,
        bias: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self.0, (x, xl), (scale, sl), (bias, bl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        scale: &MetalStorage,
        sl: &Layout,
        bias: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(self.0, (x, xl), (scale, sl), (bias, bl))
    }
    fn bwd(
        &self,
        x: &Tensor,
        scale: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dz = grad_before(self.0, g, || affine_act(x, scale, bias, Act::Identity))?;
        let dx = || mul_act(&dz, scale, Act::Identity);
        let dscale = || sum_to(&mul_act(&dz, x, Act::Identity)?, scale.shape());
        let dbias = || sum_to(&dz, bias.shape());
        Ok((
            x.track_op().then(dx).transpose()?,
            scale.track_op().then(dscale).transpose()?,
            bias.track_op().then(dbias).transpose()?,
        ))
    }
}

impl InplaceOp3 for AffineAct {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        xl: &Layout,
        scale: &CpuStorage,
        sl: &Layout,
        bias: &CpuStorage,
        bl: &Layout,
    ) -> Result<()> {
        cpu::forward_inplace(self.0, (x, xl), (scale, sl), (bias, bl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &mut MetalStorage,
        xl: &Layout,
        scale: &MetalStorage,
        sl: &Layout,
        bias: &MetalStorage,
        bl: &Layout,
    ) -> Result<()> {
        metal::forward_inplace(self.0, (x, xl), (scale, sl), (bias, bl))
    }
}

/// The composition of stock ops that [`affine_act`] replaces.
pub fn reference(x: &Tensor, scale: &Tensor, bias: &Tensor, act: Act) -> Result<Tensor> {
    let z = x.broadcast_mul(scale)?.broadcast_add(bias)?;
    activation::reference(&z, act)
}
