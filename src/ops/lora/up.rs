//! `y = base + scale · u·Bᵀ`: an adapter's second half, beside a base that has been computed.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, NAME};
use crate::check;
use crate::op::{self, kernels, signature, Grads, Op, Spec};
use crate::ops::linear::{self, grad_weight, grad_x};
use candle_core::{Result, Tensor};

/// `base + scale · u·Bᵀ` for base `[.., out]`, u `[.., rank]` and B `[out, rank]`, differentiable in all of them.
pub(crate) fn up_add(base: &Tensor, u: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    op::apply(NAME, UpAdd { scale }, &[base, u, b])
}

struct UpAdd {
    scale: f32,
}

impl Op for UpAdd {
    signature!(NAME(base, u, b));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (base, u, b) = (args[0], args[1], args[2]);
        linear::check_layouts(name, u.layout, b.layout, None)?;
        let expected = linear::output_shape(u.layout, b.dims()[0]);
        check::has_shape(name, "base", base.layout, expected.dims())
    }

    kernels!(self, args => device::up_add(self.scale, args));

    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let du = || grad_x(inputs[2], g, self.scale);
        let db = || grad_weight(inputs[1], g, self.scale);
        op::grads(inputs, &[&|| Ok(g.clone()), &du, &db])
    }

    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        args[0] + (linear::reference(args[1], args[2], None)? * f64::from(self.scale))?
    }
}
