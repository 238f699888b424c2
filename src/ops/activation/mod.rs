//! Activations: `y = act(x)`, backward `dx = g · act′(x)`. Computed in f32 whatever the dtype.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

pub use crate::act::Act;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{DType, Result, Tensor};

const NAME: &str = "activation";

/// `act(x)`, for f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{activation, Act};
/// let x = Tensor::new(&[-1f32, 0., 2.], &Device::Cpu)?;
/// let y = activation(&x, Act::Relu)?;
/// assert_eq!(y.to_vec1::<f32>()?, [0., 0., 2.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn activation(x: &Tensor, act: Act) -> Result<Tensor> {
    apply(NAME, x, act)
}

fn apply(name: &'static str, x: &Tensor, act: Act) -> Result<Tensor> {
    if act == Act::Identity {
        check::is_float(name, x)?;
        return Ok(x.clone());
    }
    if stock_relu(x, act) {
        return x.relu();
    }
    op::apply(name, Activation(act), &[x])
}

/// Stock's ReLU is as fast as can be where the caches hold f32, or little of 16-bit types. Its backward is
/// not.
fn stock_relu(x: &Tensor, act: Act) -> bool {
    let most = match x.dtype() {
        DType::F32 => STOCK_MOST,
        DType::F16 | DType::BF16 => 16 * 1024,
        _ => 0,
    };
    act == Act::Relu
        && !x.track_op()
        && x.device().is_cpu()
        && x.is_contiguous()
        && x.elem_count() < most
}

/// From this many f32 on, output memory decides the time, and ours comes in larger pages.
pub(crate) const STOCK_MOST: usize = (32 << 20) / size_of::<f32>();

/// `x = act(x)` in x's own memory, for inference.
pub fn activation_inplace(x: &Tensor, act: Act) -> Result<()> {
    op::apply_inplace("activation_inplace", Activation(act), x, &[])
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident = $act:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor) -> Result<Tensor> {
            apply(stringify!($name), x, $act)
        }
    )*};
}

named! {
    /// max(x, 0)
    relu = Act::Relu;
    /// max(x, 0)²
    relu2 = Act::Relu2;
    /// The tanh form of GELU.
    gelu = Act::GeluTanh;
    /// The exact GELU.
    gelu_erf = Act::GeluErf;
    /// x·σ(x)
    silu = Act::Silu;
    /// 1 / (1 + e⁻ˣ)
    sigmoid = Act::Sigmoid;
    /// tanh(x)
    tanh = Act::Tanh;
    /// ln(1 + eˣ)
    softplus = Act::Softplus;
}

/// x, times `slope` where negative.
pub fn leaky_relu(x: &Tensor, slope: f64) -> Result<Tensor> {
    apply("leaky_relu", x, Act::LeakyRelu(slope))
}

/// [`activation`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct Activation(pub Act);

custom_op!(Activation: CustomOp1, InplaceOp1);

impl Op for Activation {
    signature!(NAME(x));
    kernels!(self, args => device::forward(self.0, args[0]));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let dx = grad_through_act(self.0, g, || Ok(inputs[0].clone()))?;
        Ok(vec![Some(dx)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], self.0)
    }
}

impl InplaceOp for Activation {
    kernels!(in place: self, x, _ => device::inplace(self.0, x));
}

/// `g · act′(z)`: the gradient of the activation's input z. `z` is not called for the identity, which needs none.
pub(crate) fn grad_through_act(
    act: Act,
    g: &Tensor,
    z: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    match act {
        Act::Identity => Ok(g.clone()),
        act => op::apply("activation_bwd", ActivationBwd(act), &[&z()?, g]),
    }
}

/// `(x, g) → g · act′(x)`
#[derive(Clone, Copy, Debug)]
struct ActivationBwd(Act);

impl Op for ActivationBwd {
    signature!("activation_bwd"(x, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_shape(name, args[0], "grad_out", args[1])
    }
    kernels!(self, args => device::backward(self.0, args[0], args[1]));
}

/// The composition of stock ops that [`activation`] replaces.
pub fn reference(x: &Tensor, act: Act) -> Result<Tensor> {
    match act {
        Act::Identity => Ok(x.clone()),
        Act::Relu => x.relu(),
        Act::Relu2 => x.relu()?.sqr(),
        Act::LeakyRelu(slope) => candle_nn::ops::leaky_relu(x, slope),
        Act::GeluTanh => x.gelu(),
        Act::GeluErf => x.gelu_erf(),
        Act::Silu => x.silu(),
        Act::Sigmoid => candle_nn::ops::sigmoid(x),
        Act::Tanh => x.tanh(),
        // ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|) never overflows.
        Act::Softplus => x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    /// A gradient that would flow through a gradient must be an error, never silently nothing.
    #[test]
    fn second_derivatives_are_refused() -> Result<()> {
        let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
        let slope = grad_through_act(Act::Silu, &x.detach(), || Ok(x.as_tensor().clone()))?;
        assert_eq!(slope.dims(), [2]);
        assert!(slope.backward().is_err());
        Ok(())
    }
}
