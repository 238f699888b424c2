//! Fake quantisation: x to the values of its codes, with a straight-through or a clipped gradient.

#[cfg(feature = "metal")]
use super::metal;
use super::Scheme;
use super::{check_x, cpu, reference};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{Result, Tensor};

/// `dequantize(quantize(x))` in one pass, with the straight-through gradient `dx = g`.
pub fn fake_quantize(x: &Tensor, scheme: Scheme) -> Result<Tensor> {
    let clipped = false;
    op::apply("fake_quantize", FakeQuantize { scheme, clipped }, &[x])
}

/// [`fake_quantize`] without a gradient where x lies more than half a step beyond the outermost levels.
pub fn fake_quantize_clipped(x: &Tensor, scheme: Scheme) -> Result<Tensor> {
    let (op, clipped) = ("fake_quantize_clipped", true);
    op::apply(op, FakeQuantize { scheme, clipped }, &[x])
}

/// [`fake_quantize`], or [`fake_quantize_clipped`] if `clipped`, as a CustomOp.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::FakeQuantize;
/// use candle_fused::quant::{ScaleScope, Scheme};
/// let x = Tensor::new(&[[0.5f32, -1.5, 0.0, 1.0]], &Device::Cpu)?;
/// let scheme = Scheme::ternary(ScaleScope::Row);
/// let y = x.apply_op1(FakeQuantize { scheme, clipped: false })?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.75, -0.75, 0.0, 0.75]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FakeQuantize {
    pub scheme: Scheme,
    pub clipped: bool,
}

custom_op!(FakeQuantize: CustomOp1);

impl Op for FakeQuantize {
    signature!("fake_quantize"(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_x(name, &self.scheme, args[0])
    }
    kernels!(self, args => {
        let shape = args[0].1.shape().clone();
        Ok((device::fake_quantize(self.scheme, args[0])?, shape))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let dx = match self.clipped {
            true => op::apply(Self::NAME, ClipGrad(self.scheme), &[inputs[0], g])?,
            false => g.clone(),
        };
        Ok(vec![Some(dx)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], self.scheme, self.clipped)
    }
}

/// The clipped gradient: `(x, g) → g` where x is at most half a step beyond the outermost levels, 0 elsewhere.
struct ClipGrad(Scheme);

impl Op for ClipGrad {
    signature!("fake_quantize"(x, g));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_x(name, &self.0, args[0])?;
        check::same_dtype(name, args[0].dtype, "g", args[1].dtype)?;
        check::same_shape(name, args[0], "g", args[1])
    }
    kernels!(self, args => {
        let shape = args[0].1.shape().clone();
        Ok((device::clip_grad(self.0, args[0], args[1])?, shape))
    });
}
