//! `y = base + scale · u·Bᵀ`: an adapter's second half, beside a base that has been computed.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, NAME};
use crate::check;
use crate::op::{self, Args, Grads, Op, OpResult, Spec};
use crate::ops::linear::{self, grad_weight, grad_x};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Result, Tensor};

/// `base + scale · u·Bᵀ` for base `[.., out]`, u `[.., rank]` and B `[out, rank]`, differentiable in all of them.
pub(crate) fn up_add(base: &Tensor, u: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    op::apply(NAME, UpAdd { scale }, &[base, u, b])
}

struct UpAdd {
    scale: f32,
}

impl Op for UpAdd {
    const NAME: &'static str = NAME;
    const ARGS: &'static [&'static str] = &["base", "u", "b"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, args)?;
        let (base, u, b) = (args[0], args[1], args[2]);
        linear::check_layouts(name, u.layout, b.layout, None)?;
        let (got, expected) = (base.shape(), linear::output_shape(u.layout, b.dims()[0]));
        match *got == expected {
            true => Ok(()),
            false => Err(check::error(
                name,
                format_args!("got base of shape {got:?}, expected {expected:?}"),
            )),
        }
    }

    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage> {
        cpu::up_add(self.scale, args)
    }

    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        metal::up_add(self.scale, args)
    }

    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (base, u, b) = (inputs[0], inputs[1], inputs[2]);
        Ok(vec![
            base.track_op().then(|| g.clone()),
            grad_x(u, b, g, self.scale)?,
            grad_weight(u, b, g, self.scale)?,
        ])
    }

    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        args[0] + (linear::reference(args[1], args[2], None)? * f64::from(self.scale))?
    }
}
