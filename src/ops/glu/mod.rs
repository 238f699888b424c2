//! Gated linear units: `out = act(gate) · up`, from two tensors or from one packed `[.., gate | up]`.
//!
//! Backward: `dgate = g · up · act′(gate)`, `dup = g · act(gate)`, both in one pass. Computed in f32.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, Act};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{Layout, Result, Shape, Tensor, D};

const NAME: &str = "glu";

/// `act(gate) · up`; both of one shape.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{glu, Act};
/// let gate = Tensor::new(&[-1f32, 2.], &Device::Cpu)?;
/// let up = Tensor::new(&[5f32, 3.], &Device::Cpu)?;
/// assert_eq!(glu(&gate, &up, Act::Relu)?.to_vec1::<f32>()?, [0., 6.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn glu(gate: &Tensor, up: &Tensor, act: Act) -> Result<Tensor> {
    op::apply(NAME, Glu(act), &[gate, up])
}

/// `act(gate) · up` of a tensor `[.., 2n]` that holds the gate in the first half of its last dim.
pub fn glu_packed(x: &Tensor, act: Act) -> Result<Tensor> {
    op::apply("glu_packed", GluPacked(act), &[x])
}

/// `gate = act(gate) · up` in the gate's own memory, for inference.
pub fn glu_inplace(gate: &Tensor, up: &Tensor, act: Act) -> Result<()> {
    op::apply_inplace("glu_inplace", Glu(act), gate, &[up])
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident, $packed:ident = $act:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
            op::apply(stringify!($name), Glu($act), &[gate, up])
        }
        $(#[$doc])*
        ///
        /// The gate is the first half of the last dim.
        pub fn $packed(x: &Tensor) -> Result<Tensor> {
            op::apply(stringify!($packed), GluPacked($act), &[x])
        }
    )*};
}

named! {
    /// `silu(gate) · up`
    swiglu, swiglu_packed = Act::Silu;
    /// `gelu(gate) · up`, with the tanh form of GELU
    geglu, geglu_packed = Act::GeluTanh;
    /// `relu(gate) · up`
    reglu, reglu_packed = Act::Relu;
}

/// [`glu`] as a CustomOp, out of place and in place.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{Act, Glu};
/// let gate = Tensor::new(&[-1f32, 2.], &Device::Cpu)?;
/// let up = Tensor::new(&[5f32, 3.], &Device::Cpu)?;
/// assert_eq!(gate.apply_op2(&up, Glu(Act::Relu))?.to_vec1::<f32>()?, [0., 6.]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Glu(pub Act);

custom_op!(Glu: CustomOp2, InplaceOp2);

impl Op for Glu {
    signature!(NAME(gate, up));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_shape(name, args[0], "up", args[1])
    }
    kernels!(self, args => device::forward(self.0, args[0], args[1]));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let both = op::apply("glu_bwd", GluBwd(self.0), &[inputs[0], inputs[1], g])?;
        op::grads(inputs, &[&|| both.get(0), &|| both.get(1)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], self.0)
    }
}

impl InplaceOp for Glu {
    kernels!(in place: self, gate, rest => device::inplace(self.0, gate, rest[0]));
}

/// [`glu_packed`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct GluPacked(pub Act);

custom_op!(GluPacked: CustomOp1);

impl Op for GluPacked {
    signature!("glu_packed"(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        halved(name, args[0].layout).map(drop)
    }
    kernels!(self, args => {
        let shape = halved(Self::NAME, args[0].1)?;
        Ok((device::forward_packed(self.0, args[0])?, shape))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let dx = op::apply("glu_packed_bwd", GluPackedBwd(self.0), &[inputs[0], g])?;
        Ok(vec![Some(dx)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference_packed(args[0], self.0)
    }
}

/// The shape of one half of a packed tensor.
fn halved(name: &str, x: &Layout) -> Result<Shape> {
    let mut dims = x.dims().to_vec();
    match dims.last_mut() {
        Some(last) if last.is_multiple_of(2) => *last /= 2,
        _ => {
            let message = format!(
                "got a packed x of shape {:?}, expected an even last dim",
                x.dims()
            );
            return Err(check::error(name, message));
        }
    }
    Ok(dims.into())
}

/// `(gate, up, g) → [dgate, dup]`, stacked.
#[derive(Clone, Copy, Debug)]
struct GluBwd(Act);

impl Op for GluBwd {
    signature!("glu_bwd"(gate, up, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_shape(name, args[0], "up", args[1])?;
        check::same_shape(name, args[0], "grad_out", args[2])
    }
    kernels!(self, args => {
        let shape = [&[2], args[0].1.dims()].concat().into();
        Ok((device::backward(self.0, args[0], args[1], args[2])?, shape))
    });
}

/// `(packed x, g) → packed dx`
#[derive(Clone, Copy, Debug)]
struct GluPackedBwd(Act);

impl Op for GluPackedBwd {
    signature!("glu_packed_bwd"(x, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let half = halved(name, args[0].layout)?;
        check::has_shape(name, "grad_out", args[1].layout, half.dims())
    }
    kernels!(self, args => {
        let dx = device::backward_packed(self.0, args[0], args[1])?;
        Ok((dx, args[0].1.shape().clone()))
    });
}

/// The composition of stock ops that [`glu`] replaces.
pub fn reference(gate: &Tensor, up: &Tensor, act: Act) -> Result<Tensor> {
    activation::reference(gate, act)? * up
}

/// The composition of stock ops that [`glu_packed`] replaces.
pub fn reference_packed(x: &Tensor, act: Act) -> Result<Tensor> {
    let n = x.dim(D::Minus1)? / 2;
    let (gate, up) = (x.narrow(D::Minus1, 0, n)?, x.narrow(D::Minus1, n, n)?);
    reference(&gate, &up, act)
}
