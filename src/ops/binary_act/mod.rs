//! An activation of a sum or a product: `z = x + y` or `x · y`, `out = act(z)`.
//!
//! Backward with `dz = g · act′(z)`: the sum gives `dx = dy = dz`, the product `dx = dz · y` and
//! `dy = dz · x`. Where y was broadcast, dy is summed back to its shape. Computed in f32.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, Act, STOCK_MOST};
use super::reduce::sum_to;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp2, CustomOp3, DType, InplaceOp2, Layout, Result, Shape, Tensor,
};

const NAME: &str = "binary_act";

/// What is done before the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    Add,
    Mul,
}

impl BinaryOp {
    #[cfg(feature = "metal")]
    fn name(self) -> &'static str {
        match self {
            BinaryOp::Add => "add",
            BinaryOp::Mul => "mul",
        }
    }
}

/// `act(x + y)`; y broadcasts to x's shape.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{add_act, Act};
/// let x = Tensor::new(&[1f32, -2., 3., -4.], &Device::Cpu)?;
/// let y = Tensor::new(&[-1f32, 3., -2., 5.], &Device::Cpu)?;
/// assert_eq!(add_act(&x, &y, Act::Relu)?.to_vec1::<f32>()?, [0., 1., 1., 1.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn add_act(x: &Tensor, y: &Tensor, act: Act) -> Result<Tensor> {
    apply(x, y, BinaryOp::Add, act)
}

/// `act(x · y)`; y broadcasts to x's shape.
pub fn mul_act(x: &Tensor, y: &Tensor, act: Act) -> Result<Tensor> {
    apply(x, y, BinaryOp::Mul, act)
}

/// `max(x + y, 0)`
pub fn add_relu(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    add_act(x, y, Act::Relu)
}

/// `max(x · y, 0)`
pub fn mul_relu(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    mul_act(x, y, Act::Relu)
}

/// `act(x + bias)` with a bias over the last dim.
pub fn bias_act(x: &Tensor, bias: &Tensor, act: Act) -> Result<Tensor> {
    check_bias(x, bias)?;
    add_act(x, bias, act)
}

/// `x = act(x + bias)` in x's own memory, for inference.
pub fn bias_act_inplace(x: &Tensor, bias: &Tensor, act: Act) -> Result<()> {
    check_bias(x, bias)?;
    add_act_inplace(x, bias, act)
}

fn check_bias(x: &Tensor, bias: &Tensor) -> Result<()> {
    check::float("bias_act", x)?;
    check::has_dims("bias_act", x)?;
    check::alike("bias_act", x, "bias", bias)?;
    check::over_last_dim("bias_act", x, "bias", bias)
}

/// `x = act(x + y)` in x's own memory, for inference.
pub fn add_act_inplace(x: &Tensor, y: &Tensor, act: Act) -> Result<()> {
    apply_inplace(x, y, BinaryOp::Add, act)
}

/// `x = act(x · y)` in x's own memory, for inference.
pub fn mul_act_inplace(x: &Tensor, y: &Tensor, act: Act) -> Result<()> {
    apply_inplace(x, y, BinaryOp::Mul, act)
}

fn check_args(x: &Tensor, y: &Tensor) -> Result<()> {
    check::float(NAME, x)?;
    check::alike(NAME, x, "y", y)?;
    check::broadcasts(NAME, x, "y", y)
}

fn apply(x: &Tensor, y: &Tensor, op: BinaryOp, act: Act) -> Result<Tensor> {
    check_args(x, y)?;
    if stock_loop(x, y, act) {
        return match op {
            BinaryOp::Add => x + y,
            BinaryOp::Mul => x * y,
        };
    }
    if !check::served(x) {
        return reference(x, y, op, act);
    }
    apply::op2(x, y, BinaryAct { op, act })
}

/// Stock's f32 sums and products are as fast as can be where the caches hold them. Their backward is not.
fn stock_loop(x: &Tensor, y: &Tensor, act: Act) -> bool {
    act == Act::Identity
        && !(x.track_op() || y.track_op())
        && (x.dtype() == DType::F32 && x.device().is_cpu())
        && x.dims() == y.dims()
        && (x.is_contiguous() && y.is_contiguous())
        && x.elem_count() < STOCK_MOST
}

fn apply_inplace(x: &Tensor, y: &Tensor, op: BinaryOp, act: Act) -> Result<()> {
    check_args(x, y)?;
    check::untracked(NAME, x)?;
    apply::inplace2(x, y, BinaryAct { op, act })
}

/// [`add_act`] and [`mul_act`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct BinaryAct {
    pub op: BinaryOp,
    pub act: Act,
}

impl CustomOp2 for BinaryAct {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        y: &CpuStorage,
        yl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, (x, xl), (y, yl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(*self, (x, xl), (y, yl))
    }
    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dy) = match (self.op, self.act) {
            (BinaryOp::Add, Act::Identity) => (g.clone(), g.clone()),
            (BinaryOp::Add, _) => {
                let dz = apply::op3(x, y, g, BinaryActBwd(*self))?;
                (dz.clone(), dz)
            }
            (BinaryOp::Mul, _) => {
                let both = apply::op3(x, y, g, BinaryActBwd(*self))?;
                (both.get(0)?, both.get(1)?)
            }
        };
        let dy = y.track_op().then(|| sum_to(&dy, y.shape())).transpose()?;
        Ok((x.track_op().then_some(dx), dy))
    }
}

impl InplaceOp2 for BinaryAct {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, xl: &Layout, y: &CpuStorage, yl: &Layout) -> Result<()> {
        cpu::forward_inplace(*self, (x, xl), (y, yl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &mut MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
    ) -> Result<()> {
        metal::forward_inplace(*self, (x, xl), (y, yl))
    }
}

/// `(x, y, g) → dz` for a sum, `→ [dx, dy]` stacked for a product; dy before it is summed back.
#[derive(Clone, Copy, Debug)]
pub struct BinaryActBwd(pub BinaryAct);

impl BinaryActBwd {
    fn shape(&self, x: &Layout) -> Shape {
        match self.0.op {
            BinaryOp::Add => x.shape().clone(),
            BinaryOp::Mul => [&[2], x.dims()].concat().into(),
        }
    }
}

impl CustomOp3 for BinaryActBwd {
    fn name(&self) -> &'static str {
        "binary_act_bwd"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        y: &CpuStorage,
        yl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let grads = cpu::backward(self.0, (x, xl), (y, yl), (g, gl))?;
        Ok((grads, self.shape(xl)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        let grads = metal::backward(self.0, (x, xl), (y, yl), (g, gl))?;
        Ok((grads, self.shape(xl)))
    }
}

/// The composition of stock ops that [`add_act`] and [`mul_act`] replace.
pub fn reference(x: &Tensor, y: &Tensor, op: BinaryOp, act: Act) -> Result<Tensor> {
    let z = match op {
        BinaryOp::Add => x.broadcast_add(y)?,
        BinaryOp::Mul => x.broadcast_mul(y)?,
    };
    activation::reference(&z, act)
}
