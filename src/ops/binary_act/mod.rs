//! An activation of a sum or a product: `z = x + y` or `x · y`, `out = act(z)`.
//!
//! Backward with `dz = g · act′(z)`: the sum gives `dx = dy = dz`, the product `dx = dz · y` and
//! `dy = dz · x`. Where y was broadcast, dy is summed back to its shape. Computed in f32.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, Act, STOCK_MOST};
use super::reduce::sum_to;
use crate::check;
use crate::layout::as_vector;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{DType, Layout, Result, Shape, Tensor};

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
    apply("add_act", x, y, BinaryOp::Add, act)
}

/// `act(x · y)`; y broadcasts to x's shape.
pub fn mul_act(x: &Tensor, y: &Tensor, act: Act) -> Result<Tensor> {
    apply("mul_act", x, y, BinaryOp::Mul, act)
}

/// `max(x + y, 0)`
pub fn add_relu(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    apply("add_relu", x, y, BinaryOp::Add, Act::Relu)
}

/// `max(x · y, 0)`
pub fn mul_relu(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    apply("mul_relu", x, y, BinaryOp::Mul, Act::Relu)
}

/// `act(x + bias)` with a bias over the last dim.
pub fn bias_act(x: &Tensor, bias: &Tensor, act: Act) -> Result<Tensor> {
    let bias = as_vector(bias, x.dims().last().copied().unwrap_or(1))?;
    check_bias("bias_act", x, &bias)?;
    apply("bias_act", x, &bias, BinaryOp::Add, act)
}

/// `x = act(x + bias)` in x's own memory, for inference.
pub fn bias_act_inplace(x: &Tensor, bias: &Tensor, act: Act) -> Result<()> {
    let bias = as_vector(bias, x.dims().last().copied().unwrap_or(1))?;
    check_bias("bias_act_inplace", x, &bias)?;
    apply_inplace("bias_act_inplace", x, &bias, BinaryOp::Add, act)
}

/// A bias is stricter than what the op accepts: it does not broadcast along the last dim.
fn check_bias(name: &'static str, x: &Tensor, bias: &Tensor) -> Result<()> {
    check::has_dims(name, x.layout())?;
    check::vector(name, "bias", bias, x.dims()[x.rank() - 1], "last dim")
}

/// `x = act(x + y)` in x's own memory, for inference.
pub fn add_act_inplace(x: &Tensor, y: &Tensor, act: Act) -> Result<()> {
    apply_inplace("add_act_inplace", x, y, BinaryOp::Add, act)
}

/// `x = act(x · y)` in x's own memory, for inference.
pub fn mul_act_inplace(x: &Tensor, y: &Tensor, act: Act) -> Result<()> {
    apply_inplace("mul_act_inplace", x, y, BinaryOp::Mul, act)
}

fn apply(name: &'static str, x: &Tensor, y: &Tensor, op: BinaryOp, act: Act) -> Result<Tensor> {
    if stock_loop(x, y, act) {
        return match op {
            BinaryOp::Add => x + y,
            BinaryOp::Mul => x * y,
        };
    }
    op::apply(name, BinaryAct { op, act }, &[x, y])
}

fn apply_inplace(name: &'static str, x: &Tensor, y: &Tensor, op: BinaryOp, act: Act) -> Result<()> {
    op::apply_inplace(name, BinaryAct { op, act }, x, &[y])
}

/// Stock's f32 sums and products are as fast as can be where the caches hold them. Their backward is not.
fn stock_loop(x: &Tensor, y: &Tensor, act: Act) -> bool {
    act == Act::Identity
        && !(x.track_op() || y.track_op())
        && (x.dtype() == DType::F32 && y.dtype() == DType::F32)
        && (x.device().is_cpu() && y.device().is_cpu())
        && x.dims() == y.dims()
        && (x.is_contiguous() && y.is_contiguous())
        && x.elem_count() < STOCK_MOST
}

/// [`add_act`] and [`mul_act`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct BinaryAct {
    /// What is done with x and y.
    pub op: BinaryOp,
    /// The activation of the sum or product.
    pub act: Act,
}

custom_op!(BinaryAct: CustomOp2, InplaceOp2);

impl Op for BinaryAct {
    signature!(NAME(x, y));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::broadcasts(name, args[0], "y", args[1])
    }
    kernels!(self, args => device::forward(*self, args[0], args[1]));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, y) = (inputs[0], inputs[1]);
        let grads = || op::apply("binary_act_bwd", BinaryActBwd(*self), &[x, y, g]);
        let (dx, dy) = match (self.op, self.act) {
            (BinaryOp::Add, Act::Identity) => (g.clone(), g.clone()),
            (BinaryOp::Add, _) => {
                let dz = grads()?;
                (dz.clone(), dz)
            }
            (BinaryOp::Mul, _) => {
                let both = grads()?;
                (both.get(0)?, both.get(1)?)
            }
        };
        op::grads(inputs, &[&|| Ok(dx.clone()), &|| sum_to(&dy, y.shape())])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], self.op, self.act)
    }
}

impl InplaceOp for BinaryAct {
    kernels!(in place: self, x, rest => device::inplace(*self, x, rest[0]));
}

/// `(x, y, g) → dz` for a sum, `→ [dx, dy]` stacked for a product; dy before it is summed back.
#[derive(Clone, Copy, Debug)]
struct BinaryActBwd(BinaryAct);

impl BinaryActBwd {
    fn shape(&self, x: &Layout) -> Shape {
        match self.0.op {
            BinaryOp::Add => x.shape().clone(),
            BinaryOp::Mul => [&[2], x.dims()].concat().into(),
        }
    }
}

impl Op for BinaryActBwd {
    signature!("binary_act_bwd"(x, y, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::broadcasts(name, args[0], "y", args[1])?;
        check::same_shape(name, args[0], "grad_out", args[2])
    }
    kernels!(self, args => {
        let grads = device::backward(self.0, args[0], args[1], args[2])?;
        Ok((grads, self.shape(args[0].1)))
    });
}

/// The composition of stock ops that [`add_act`] and [`mul_act`] replace.
pub fn reference(x: &Tensor, y: &Tensor, op: BinaryOp, act: Act) -> Result<Tensor> {
    let z = match op {
        BinaryOp::Add => x.broadcast_add(y)?,
        BinaryOp::Mul => x.broadcast_mul(y)?,
    };
    activation::reference(&z, act)
}
