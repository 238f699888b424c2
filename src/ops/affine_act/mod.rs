//! `out = act(z)` with `z = x · scale + bias`; scale and bias broadcast to x's shape.
//!
//! Backward with `dz = g · act′(z)`: `dx = dz · scale`, `dscale = dz · x`, `dbias = dz`, the last two
//! summed back to their shapes. Computed in f32.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, grad_through_act, Act};
use super::binary_act::mul_act;
use super::reduce::sum_to;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{Result, Tensor};

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
    op::apply(NAME, AffineAct(act), &[x, scale, bias])
}

/// `x = act(x · scale + bias)` in x's own memory, for inference.
pub fn affine_act_inplace(x: &Tensor, scale: &Tensor, bias: &Tensor, act: Act) -> Result<()> {
    op::apply_inplace("affine_act_inplace", AffineAct(act), x, &[scale, bias])
}

/// [`affine_act`] as a CustomOp, out of place and in place: `x.apply_op3(&scale, &bias, AffineAct(Act::Relu))`.
#[derive(Clone, Copy, Debug)]
pub struct AffineAct(pub Act);

custom_op!(AffineAct: CustomOp3, InplaceOp3);

impl Op for AffineAct {
    signature!(NAME(x, scale, bias));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::broadcasts(name, args[0], "scale", args[1])?;
        check::broadcasts(name, args[0], "bias", args[2])
    }
    kernels!(self, args => device::forward(self.0, args));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, scale, bias) = (inputs[0], inputs[1], inputs[2]);
        let dz = grad_through_act(self.0, g, || affine_act(x, scale, bias, Act::Identity))?;
        let dx = || mul_act(&dz, scale, Act::Identity);
        let dscale = || sum_to(&mul_act(&dz, x, Act::Identity)?, scale.shape());
        let dbias = || sum_to(&dz, bias.shape());
        op::grads(inputs, &[&dx, &dscale, &dbias])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], args[2], self.0)
    }
}

impl InplaceOp for AffineAct {
    kernels!(in place: self, x, rest => device::inplace(self.0, x, rest));
}

/// The composition of stock ops that [`affine_act`] replaces.
pub fn reference(x: &Tensor, scale: &Tensor, bias: &Tensor, act: Act) -> Result<Tensor> {
    let z = x.broadcast_mul(scale)?.broadcast_add(bias)?;
    activation::reference(&z, act)
}
