//! Numbers to those that their codes stand for, with gradients straight through or clipped.

use super::cpu;
#[cfg(feature = "metal")]
use super::metal;
use super::Scheme;
use crate::{apply, check};
use candle_core::backend::BackendStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Layout, Result, Shape, Tensor};

/// [`fake_quantize`](super::fake_quantize()) and [`fake_quantize_clipped`](super::fake_quantize_clipped()) as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct FakeQuantize {
    pub scheme: Scheme,
    pub clipped: bool,
}

impl CustomOp1 for FakeQuantize {
    fn name(&self) -> &'static str {
        "fake_quantize"
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.scheme.check("fake_quantize", l.shape())?;
        Ok((cpu::fake(self.scheme, x, l)?, l.shape().clone()))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        self.scheme.check("fake_quantize", l.shape())?;
        Ok((metal::fake(self.scheme, x, l)?, l.shape().clone()))
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        match self.clipped {
            true => apply::op2(x, g, Clip(self.scheme)).map(Some),
            false => Ok(Some(g.clone())),
        }
    }
}

/// `(x, g) → g` where x is no further than half a step beyond the codes, 0 elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Clip(pub Scheme);

impl Clip {
    fn check(&self, x: (DType, &Layout), g: (DType, &Layout)) -> Result<()> {
        self.0.check("fake_quantize", x.1.shape())?;
        if (x.0, x.1.shape()) == (g.0, g.1.shape()) {
            return Ok(());
        }
        let message = format!(
            "g is {:?} of {:?}, x is {:?} of {:?}",
            g.1.shape(),
            g.0,
            x.1.shape(),
            x.0
        );
        Err(check::error("fake_quantize", message))
    }
}

impl CustomOp2 for Clip {
    fn name(&self) -> &'static str {
        "fake_quantize"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check((x.dtype(), xl), (g.dtype(), gl))?;
        Ok((cpu::clip(self.0, (x, xl), (g, gl))?, xl.shape().clone()))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.check((x.dtype(), xl), (g.dtype(), gl))?;
        Ok((metal::clip(self.0, (x, xl), (g, gl))?, xl.shape().clone()))
    }
}
