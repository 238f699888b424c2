//! The MLPs of a block: two linear layers ([`Mlp`]), or three with a gate ([`SwiGlu`]).

use crate::nn::activation::IntoAct;
use crate::nn::{linear_b, linear_no_bias, Linear};
use crate::ops::{self, Act};
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// Two linear layers with an activation between them, which the first one applies.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::transformer::mlp;
/// use candle_fused::nn::{Activation, Module, VarBuilder};
/// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let layer = mlp(8, 32, Activation::Gelu, true, vb)?;
/// assert_eq!(layer.forward(&Tensor::ones((2, 8), DType::F32, &Device::Cpu)?)?.dims(), [2, 8]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    up: Linear,
    down: Linear,
}

impl Mlp {
    /// Of any layers; the first one has the activation.
    pub fn new(up: Linear, down: Linear) -> Self {
        Mlp { up, down }
    }

    /// The same layer outside any graph.
    pub fn detached(&self) -> Self {
        Mlp::new(self.up.detached(), self.down.detached())
    }
}

impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?)
    }
}

/// An MLP with the variables `fc1` and `fc2`, as Hugging Face's ViT, CLIP and Phi call them.
pub fn mlp(
    hidden: usize,
    intermediate: usize,
    act: impl Into<candle_nn::Activation>,
    bias: bool,
    vb: VarBuilder,
) -> Result<Mlp> {
    let up = linear_b(hidden, intermediate, bias, vb.pp("fc1"))?;
    let down = linear_b(intermediate, hidden, bias, vb.pp("fc2"))?;
    Ok(Mlp::new(act.into().with(|act| up.with_act(act))?, down))
}

/// A gated MLP, `down(act(gate(x)) · up(x))`, with SiLU for the activation unless another is set.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::transformer::swiglu;
/// use candle_fused::nn::{Module, VarBuilder};
/// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let layer = swiglu(8, 32, vb)?;
/// assert_eq!(layer.forward(&Tensor::ones((2, 8), DType::F32, &Device::Cpu)?)?.dims(), [2, 8]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct SwiGlu {
    gate: Linear,
    up: Linear,
    down: Linear,
    act: Act,
}

impl SwiGlu {
    /// Of any layers.
    pub fn new(gate: Linear, up: Linear, down: Linear) -> Self {
        SwiGlu {
            gate,
            up,
            down,
            act: Act::Silu,
        }
    }

    /// Another activation: an [`Act`], or a stock `Activation`, for which it returns a `Result`.
    pub fn with_act<A: IntoAct>(self, act: A) -> A::Out<Self> {
        act.with(|act| SwiGlu { act, ..self })
    }

    /// The same layer outside any graph.
    pub fn detached(&self) -> Self {
        SwiGlu {
            gate: self.gate.detached(),
            up: self.up.detached(),
            down: self.down.detached(),
            act: self.act,
        }
    }
}

impl Module for SwiGlu {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (gate, up) = (self.gate.forward(x)?, self.up.forward(x)?);
        self.down.forward(&ops::glu(&gate, &up, self.act)?)
    }
}

/// A gated MLP with the variables of Hugging Face's Llama: `gate_proj`, `up_proj` and `down_proj`, without biases.
pub fn swiglu(hidden: usize, intermediate: usize, vb: VarBuilder) -> Result<SwiGlu> {
    Ok(SwiGlu::new(
        linear_no_bias(hidden, intermediate, vb.pp("gate_proj"))?,
        linear_no_bias(hidden, intermediate, vb.pp("up_proj"))?,
        linear_no_bias(intermediate, hidden, vb.pp("down_proj"))?,
    ))
}

/// The MLP of a block.
#[derive(Clone, Debug)]
pub enum FeedForward {
    Mlp(Mlp),
    SwiGlu(SwiGlu),
}

impl FeedForward {
    /// The same layer outside any graph.
    pub fn detached(&self) -> Self {
        match self {
            FeedForward::Mlp(layer) => FeedForward::Mlp(layer.detached()),
            FeedForward::SwiGlu(layer) => FeedForward::SwiGlu(layer.detached()),
        }
    }
}

impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            FeedForward::Mlp(layer) => layer.forward(x),
            FeedForward::SwiGlu(layer) => layer.forward(x),
        }
    }
}

impl From<Mlp> for FeedForward {
    fn from(layer: Mlp) -> Self {
        FeedForward::Mlp(layer)
    }
}

impl From<SwiGlu> for FeedForward {
    fn from(layer: SwiGlu) -> Self {
        FeedForward::SwiGlu(layer)
    }
}
