//! Activations: `y = act(x)`, backward `dx = g · act′(x)`. Computed in f32 whatever the dtype.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
mod metal;

use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, InplaceOp1, Layout, Result, Shape, Tensor,
};

const NAME: &str = "activation";

/// An activation function, as an op of its own or fused into another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// x
    Identity,
    /// max(x, 0); its derivative at 0 is 0
    Relu,
    /// max(x, 0)²
    Relu2,
    /// x, times the slope where negative
    LeakyRelu(f32),
    /// x·Φ(x) by the tanh approximation: ½x(1 + tanh(√(2/π)(x + 0.044715x³)))
    Gelu,
    /// x·Φ(x) with the exact normal distribution function Φ
    GeluErf,
    /// x·σ(x)
    Silu,
    /// σ(x) = 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// tanh(x)
    Tanh,
    /// ln(1 + eˣ)
    Softplus,
}

impl Act {
    /// The snake_case name, as in kernel names.
    pub fn name(self) -> &'static str {
        match self {
            Act::Identity => "identity",
            Act::Relu => "relu",
            Act::Relu2 => "relu2",
            Act::LeakyRelu(_) => "leaky_relu",
            Act::Gelu => "gelu",
            Act::GeluErf => "gelu_erf",
            Act::Silu => "silu",
            Act::Sigmoid => "sigmoid",
            Act::Tanh => "tanh",
            Act::Softplus => "softplus",
        }
    }

    /// The parameter that kernels take beside x.
    #[cfg(feature = "metal")]
    pub(crate) fn param(self) -> f32 {
        match self {
            Act::LeakyRelu(slope) => slope,
            _ => 0.0,
        }
    }

    /// The code that `act_fwd` of common.metal knows it by.
    #[cfg(any(feature = "metal", test))]
    pub(crate) fn code(self) -> u32 {
        match self {
            Act::Identity => 0,
            Act::Relu => 1,
            Act::Relu2 => 2,
            Act::LeakyRelu(_) => 3,
            Act::Gelu => 4,
            Act::GeluErf => 5,
            Act::Silu => 6,
            Act::Sigmoid => 7,
            Act::Tanh => 8,
            Act::Softplus => 9,
        }
    }
}

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
    check::float(NAME, x)?;
    if act == Act::Identity {
        return Ok(x.clone());
    }
    if stock_relu(x, act) || !check::served(x) {
        return reference(x, act);
    }
    apply::op1(x, Activation(act))
}

/// Stock's ReLU is as fast as can be where the caches hold f32, or little of 16-bit types. Its backward is
/// not.
fn stock_relu(x: &Tensor, act: Act) -> bool {
    let most = match x.dtype() {
        DType::F32 => STOCK_MOST,
        _ => 16 * 1024,
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
    check::float(NAME, x)?;
    check::untracked(NAME, x)?;
    apply::inplace1(x, Activation(act))
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident = $act:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &Tensor) -> Result<Tensor> {
            activation(x, $act)
        }
    )*};
}

named! {
    /// max(x, 0)
    relu = Act::Relu;
    /// max(x, 0)²
    relu2 = Act::Relu2;
    /// The tanh form of GELU.
    gelu = Act::Gelu;
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
pub fn leaky_relu(x: &Tensor, slope: f32) -> Result<Tensor> {
    activation(x, Act::LeakyRelu(slope))
}

/// [`activation`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct Activation(pub Act);

impl CustomOp1 for Activation {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self.0, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        metal::forward(self.0, x, l)
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        apply::op2(x, grad_out, ActivationBwd(self.0)).map(Some)
    }
}

impl InplaceOp1 for Activation {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, l: &Layout) -> Result<()> {
        cpu::forward_inplace(self.0, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &mut MetalStorage, l: &Layout) -> Result<()> {
        metal::forward_inplace(self.0, x, l)
    }
}

/// `g · act′(z)`: the gradient of what went into an activation. Without one, z isn't asked for.
pub(crate) fn grad_before(
    act: Act,
    g: &Tensor,
    z: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    match act {
        Act::Identity => Ok(g.clone()),
        act => apply::op2(&z()?, g, ActivationBwd(act)),
    }
}

/// `(x, g) → g · act′(x)`
#[derive(Clone, Copy, Debug)]
pub struct ActivationBwd(pub Act);

impl CustomOp2 for ActivationBwd {
    fn name(&self) -> &'static str {
        "activation_bwd"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::backward(self.0, (x, xl), (g, gl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::backward(self.0, (x, xl), (g, gl))
    }
}

/// The composition of stock ops that [`activation`] replaces.
pub fn reference(x: &Tensor, act: Act) -> Result<Tensor> {
    match act {
        Act::Identity => Ok(x.clone()),
        Act::Relu => x.relu(),
        Act::Relu2 => x.relu()?.sqr(),
        Act::LeakyRelu(slope) => candle_nn::ops::leaky_relu(x, slope as f64),
        Act::Gelu => x.gelu(),
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
    use super::Act;

    #[test]
    fn codes_are_those_of_the_kernels() {
        let common = include_str!("../../../kernels/parts/common.metal");
        let acts = [
            Act::Relu,
            Act::Relu2,
            Act::LeakyRelu(0.5),
            Act::Gelu,
            Act::GeluErf,
            Act::Silu,
            Act::Sigmoid,
            Act::Tanh,
            Act::Softplus,
        ];
        for act in acts {
            let kind = format!("{act:?}").replace("(0.5)", "");
            let case = format!("case {}u: return {kind}::fwd(x, param);", act.code());
            assert!(common.contains(&case), "no {case}");
        }
        assert_eq!(Act::Identity.code(), 0);
        assert!(common.contains("default: return Identity::fwd(x, param);"));
    }
}
