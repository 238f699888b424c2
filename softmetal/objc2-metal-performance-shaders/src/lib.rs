//! A look-alike of the `objc2-metal-performance-shaders` crate: its kernels for matrices, on softmetal.
//!
//! Names and signatures are those of the real crate. The computation and the checks are in `softmetal::mps`; a
//! condition that is not met makes the command buffer fail, where the real framework ends the process.

#![allow(non_snake_case, non_upper_case_globals)]
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

mod kernel;
mod matrix;
mod multiplication;
mod neuron;
mod softmax;
mod types;

pub use kernel::{MPSKernel, MPSMatrixBinaryKernel, MPSMatrixUnaryKernel};
pub use matrix::{MPSMatrix, MPSMatrixDescriptor, MPSVector, MPSVectorDescriptor};
pub use multiplication::{MPSMatrixMultiplication, MPSMatrixVectorMultiplication};
pub use neuron::{MPSMatrixFullyConnected, MPSMatrixNeuron};
pub use softmax::{
    MPSMatrixLogSoftMax, MPSMatrixLogSoftMaxGradient, MPSMatrixSoftMax, MPSMatrixSoftMaxGradient,
};
pub use types::{MPSCNNNeuronType, MPSDataType, MPSKernelOptions};

use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;

/// Whether a device can run these kernels.
pub unsafe fn MPSSupportsMTLDevice(device: Option<&ProtocolObject<dyn MTLDevice>>) -> bool {
    device.is_some()
}
