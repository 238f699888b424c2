//! Activations by `MPSMatrixNeuron`; the backward pass is that of [`ops::activation`](crate::ops::activation).
//!
//! Apple gives formulas, and by these some specials differ from ours: relu and leaky_relu of NaN are NaN, and relu of −∞ is
//! 0 · −∞ = NaN, where ours are 0; softplus is ln(1 + eˣ) as it stands, which is ∞ from where eˣ is. Everything else is
//! the same within rounding.

use super::{check_dtype, check_tensor, not_on_metal, Rows};
use crate::metal::mps::{visit, Matrix, Neuron, NeuronFunction};
use crate::metal::{alloc, finish};
use crate::ops::activation::{Act, ActivationBwd};
use crate::{apply, check};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor};
use objc2_metal_performance_shaders::MPSCNNNeuronType;

const NAME: &str = "mps_activation";

/// `act(x)` for an f32 or f16 tensor on Metal, of any layout: identity, relu, leaky_relu, gelu_erf, sigmoid, tanh or
/// softplus.
///
/// [`ops::activation`](crate::ops::activation()) does not wait for the GPU, and takes all activations, bf16 and other
/// devices.
pub fn activation(x: &Tensor, act: Act) -> Result<Tensor> {
    function(act)?;
    check_tensor(NAME, x)?;
    apply::op1(x, MpsActivation(act))
}

/// [`activation`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct MpsActivation(pub Act);

impl CustomOp1 for MpsActivation {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Err(not_on_metal(NAME, "the CPU"))
    }
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        check_dtype(NAME, x.dtype())?;
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
            visit(x.device(), NAME, |visit| visit.step(&neuron))?;
        }
        Ok((finish(out, x.device(), count, x.dtype()), l.shape().clone()))
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        if self.0 == Act::Identity {
            return Ok(Some(grad_out.clone()));
        }
        apply::op2(x, grad_out, ActivationBwd(self.0)).map(Some)
    }
}

/// The function that is `act`, if there is one.
fn function(act: Act) -> Result<NeuronFunction> {
    let (kind, a, b) = match act {
        Act::Identity => (MPSCNNNeuronType::None, 0.0, 0.0),
        Act::Relu => (MPSCNNNeuronType::ReLU, 0.0, 0.0),
        Act::LeakyRelu(slope) => (MPSCNNNeuronType::ReLU, slope, 0.0),
        Act::GeluErf => (MPSCNNNeuronType::GeLU, 0.0, 0.0),
        Act::Sigmoid => (MPSCNNNeuronType::Sigmoid, 0.0, 0.0),
        Act::Tanh => (MPSCNNNeuronType::TanH, 1.0, 1.0),
        Act::Softplus => (MPSCNNNeuronType::SoftPlus, 1.0, 1.0),
        Act::Relu2 | Act::Gelu | Act::Silu => {
            let what = format!(
                "{} given, identity, relu, leaky_relu, gelu_erf, sigmoid, tanh or softplus accepted",
                act.name()
            );
            return Err(check::error(NAME, what));
        }
    };
    Ok(NeuronFunction { kind, a, b, c: 0.0 })
}
