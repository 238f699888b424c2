//! The gradient of a convolution's weight.

use super::{check_shape, cpu, Geometry};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};

pub const NAME: &str = "conv2d_bwd_weight";

/// `(x, g) → dw`: the correlation of x with the gradient of y, batch for channels.
#[derive(Clone, Copy, Debug)]
pub struct WeightGrad(pub Geometry);

impl WeightGrad {
    pub(super) fn check(&self, x: &Layout, g: &Layout) -> Result<()> {
        self.0.check(NAME)?;
        check_shape(NAME, "x", x, &self.0.x_shape())?;
        check_shape(NAME, "g", g, &self.0.y_shape())
    }
}

impl CustomOp2 for WeightGrad {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::weight_grad(self, (x, xl), (g, gl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        super::metal::weight_grad(self, (x, xl), (g, gl))
    }
}
