//! Activations by `MPSMatrixNeuron`; the backward pass is that of [`ops::activation`](crate::ops::activation).
//!
//! Apple gives formulas, and by these some specials differ from ours: relu and leaky_relu of NaN are NaN, and relu of −∞ is
//! 0 · −∞ = NaN, where ours are 0; softplus is ln(1 + eˣ) as it stands, which is ∞ from where eˣ is. Everything else is
//! the same within rounding.

use super::{apply, check_dtypes, not_on_the_cpu, Rows};
use crate::act::Act;
use crate::check;
use crate::metal::mps::{session, Matrix, Neuron, NeuronFunction};
use crate::metal::{alloc, finish};
use crate::op::{custom_op, signature, Args, Grads, Op, OpResult, Spec};
use crate::ops::activation::grad_through_act;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, MetalStorage, Result, Tensor};
use objc2_metal_performance_shaders::MPSCNNNeuronType;

const NAME: &str = "mps_activation";

/// `act(x)` for an f32 or f16 tensor on Metal, of any layout: identity, relu, leaky_relu, gelu_erf, sigmoid, tanh or
/// softplus.
///
/// [`ops::activation`](crate::ops::activation()) does not wait for the GPU, and takes all activations, bf16 and other
/// devices.
pub fn activation(x: &Tensor, act: Act) -> Result<Tensor> {
    apply(NAME, MpsActivation(act), &[x])
}

/// [`activation`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct MpsActivation(pub Act);

custom_op!(MpsActivation: CustomOp1);

impl Op for MpsActivation {
    signature!(NAME(x));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        function(self.0)?;
        check_dtypes(name, Self::ARGS, args)
    }
    fn cpu(&self, _: Args<CpuStorage>) -> OpResult<CpuStorage> {
        not_on_the_cpu::<Self>()
    }
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        let (x, l) = args[0];
        let function = function(self.0)?;
        let count = l.shape().elem_count();
        let out = alloc(x.device(), count, x.dtype())?;
        if count > 0 {
            let rows = Rows::new(x, l)?;
            let input = rows.matrix();
            let neuron = Neuron {
                input,
                bias: None,
                result: Matrix::new(&out, x.dtype(), input.rows, input.columns),
                function,
                alpha: 1.0,
            };
            session(x.device(), NAME, |session| session.encode(&neuron))?;
        }
        Ok((finish(out, x.device(), count, x.dtype()), l.shape().clone()))
    }
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let dx = grad_through_act(self.0, g, || Ok(inputs[0].clone()))?;
        Ok(vec![Some(dx)])
    }
}

/// The function that is `act`, if there is one.
fn function(act: Act) -> Result<NeuronFunction> {
    let (kind, a, b) = match act {
        Act::Identity => (MPSCNNNeuronType::None, 0.0, 0.0),
        Act::Relu => (MPSCNNNeuronType::ReLU, 0.0, 0.0),
        Act::LeakyRelu(slope) => (MPSCNNNeuronType::ReLU, slope as f32, 0.0),
        Act::GeluErf => (MPSCNNNeuronType::GeLU, 0.0, 0.0),
        Act::Sigmoid => (MPSCNNNeuronType::Sigmoid, 0.0, 0.0),
        Act::Tanh => (MPSCNNNeuronType::TanH, 1.0, 1.0),
        Act::Softplus => (MPSCNNNeuronType::SoftPlus, 1.0, 1.0),
        Act::Relu2 | Act::GeluTanh | Act::Silu => {
            let what = format!(
                "got {}, expected identity, relu, leaky_relu, gelu_erf, sigmoid, tanh or softplus",
                act.name()
            );
            return Err(check::error(NAME, what));
        }
    };
    Ok(NeuronFunction { kind, a, b, c: 0.0 })
}
