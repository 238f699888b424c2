//! `y = base + scale · u·Bᵀ`: an adapter's second half, beside a base that has been computed.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, NAME};
use crate::apply;
use crate::ops::linear::{grad_weight, grad_x};
use crate::{check, ops::linear};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

/// `base + scale · u·Bᵀ` for base `[.., out]`, u `[.., rank]` and B `[out, rank]`.
pub(crate) fn up_add(base: &Tensor, u: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    if !check::served(base) {
        return base + (linear::reference(u, b, None)? * f64::from(scale))?;
    }
    apply::op3(base, u, b, LoraUp { scale })
}

fn check_layouts(base: &Layout, u: &Layout, b: &Layout) -> Result<()> {
    linear::check_layouts(NAME, u, b, None)?;
    let wanted = linear::output_shape(u, b.dims()[0]);
    if *base.shape() != wanted {
        let shape = base.shape();
        let message = format!("base has shape {shape:?}, {wanted:?} accepted");
        return Err(check::error(NAME, message));
    }
    Ok(())
}

/// `base + scale · u·Bᵀ` as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct LoraUp {
    pub scale: f32,
}

impl CustomOp3 for LoraUp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        base: &CpuStorage,
        base_l: &Layout,
        u: &CpuStorage,
        ul: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        check_layouts(base_l, ul, bl)?;
        cpu::up_add(self.scale, (base, base_l), (u, ul), (b, bl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        base: &MetalStorage,
        base_l: &Layout,
        u: &MetalStorage,
        ul: &Layout,
        b: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        check_layouts(base_l, ul, bl)?;
        metal::up_add(self.scale, (base, base_l), (u, ul), (b, bl))
    }
    fn bwd(
        &self,
        base: &Tensor,
        u: &Tensor,
        b: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dbase = base.track_op().then(|| g.clone());
        Ok((
            dbase,
            grad_x(u, b, g, self.scale)?,
            grad_weight(u, b, g, self.scale)?,
        ))
    }
}
