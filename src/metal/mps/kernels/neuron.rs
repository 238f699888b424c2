//! `MPSMatrixNeuron`

use super::MpsKernel;
use crate::check;
use crate::metal::mps::cache;
use crate::metal::mps::matrix::{accesses, check_apart, check_same, Matrix};
use crate::metal::mps::order::Access;
use candle_core::Result;
use objc2::runtime::ProtocolObject;
use objc2::AnyThread;
use objc2_metal::MTLCommandBuffer;
use objc2_metal_performance_shaders::{MPSCNNNeuronType, MPSMatrixNeuron};

/// `result = function(alpha · input + bias)`, by `MPSMatrixNeuron`; the bias is a matrix of one row.
#[derive(Clone, Copy, Debug)]
pub struct Neuron<'a> {
    pub input: Matrix<'a>,
    pub bias: Option<Matrix<'a>>,
    pub result: Matrix<'a>,
    pub function: NeuronFunction,
    pub alpha: f64,
}

/// A function of `MPSMatrixNeuron` with the parameters that it has for all columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeuronFunction {
    /// Any but PReLU, which has a parameter for each column.
    pub kind: MPSCNNNeuronType,
    pub a: f32,
    pub b: f32,
    pub c: f32,
}

const OP: &str = "MPSMatrixNeuron";

impl Neuron<'_> {
    fn check(&self) -> Result<()> {
        check_same(OP, &self.input, &self.result)?;
        if let Some(bias) = self.bias {
            bias.check_vector(OP, "bias", self.input.columns)?;
            check_apart(OP, &bias, &self.result)?;
            if (bias.dtype, bias.matrices) != (self.input.dtype, 1) {
                let what = format!(
                    "{} biases of {:?} given, one of the input's dtype accepted",
                    bias.matrices, bias.dtype
                );
                return Err(check::error(OP, what));
            }
        }
        let MPSCNNNeuronType(kind) = self.function.kind;
        if !(0..MPSCNNNeuronType::Count.0).contains(&kind)
            || self.function.kind == MPSCNNNeuronType::PReLU
        {
            let what = format!("function {kind} given, any but PReLU accepted");
            return Err(check::error(OP, what));
        }
        Ok(())
    }
}

impl<'a> MpsKernel<'a> for Neuron<'a> {
    fn encode(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<()> {
        self.check()?;
        let device = commands.device();
        let NeuronFunction { kind, a, b, c } = self.function;
        let [a_, b_, c_] = [a, b, c].map(|p| u64::from(p.to_bits()));
        let shape = [kind.0 as u64, a_, b_, c_, self.alpha.to_bits(), 0];
        let make = || {
            // SAFETY: the function has its parameters for all columns.
            unsafe {
                let kernel = MPSMatrixNeuron::initWithDevice(MPSMatrixNeuron::alloc(), &device);
                kernel.setNeuronType_parameterA_parameterB_parameterC(kind, a, b, c);
                kernel.setAlpha(self.alpha);
                kernel
            }
        };
        // SAFETY: `check` has accepted both matrices, and the bias as a vector.
        let (input, result, bias) = unsafe {
            let bias = self.bias.map(|bias| bias.vector());
            (self.input.matrix(), self.result.matrix(), bias)
        };
        cache::with_cached_kernel(&device, shape, make, |kernel: &MPSMatrixNeuron| {
            // SAFETY: the matrices have the same shape and the bias their columns, as `check` has seen.
            unsafe {
                kernel.encodeToCommandBuffer_inputMatrix_biasVector_resultMatrix(
                    commands,
                    &input,
                    bias.as_deref(),
                    &result,
                )
            }
        });
        Ok(())
    }

    fn accesses(&self) -> Vec<Access> {
        accesses([self.input].into_iter().chain(self.bias), self.result)
    }
}
