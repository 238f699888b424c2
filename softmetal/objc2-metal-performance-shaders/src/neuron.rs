//! `MPSMatrixNeuron` and `MPSMatrixFullyConnected`

use crate::kernel::{origin, Kernel, KernelState, MPSMatrixBinaryKernel, MPSMatrixUnaryKernel};
use crate::matrix::{MPSMatrix, MPSVector};
use crate::types::MPSCNNNeuronType;
use objc2::rc::{Allocated, Retained};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSData;
use objc2_metal::{softmetal as objects, MTLCommandBuffer, MTLDevice};
use softmetal::mps::{FullyConnected, Neuron, NeuronKind};
use std::cell::{RefCell, RefMut};

objc2::class!(
    /// result = neuron(alpha · input + bias)
    MPSMatrixNeuron: MPSMatrixUnaryKernel, KernelState
);

objc2::class!(
    /// result = neuron(alpha · input · weight + bias)
    MPSMatrixFullyConnected: MPSMatrixBinaryKernel, KernelState
);

/// The properties that both have.
macro_rules! neuron_properties {
    ($class:ident) => {
        impl $class {
            pub unsafe fn setNeuronType_parameterA_parameterB_parameterC(
                &self,
                neuron_type: MPSCNNNeuronType,
                parameter_a: f32,
                parameter_b: f32,
                parameter_c: f32,
            ) {
                let mut neuron = self.neuron();
                neuron.kind = neuron_type.get();
                neuron.parameters = [parameter_a, parameter_b, parameter_c];
                neuron.slopes.clear();
            }

            pub unsafe fn neuronType(&self) -> MPSCNNNeuronType {
                MPSCNNNeuronType::from(self.neuron().kind)
            }

            pub unsafe fn neuronParameterA(&self) -> f32 {
                self.neuron().parameters[0]
            }

            pub unsafe fn neuronParameterB(&self) -> f32 {
                self.neuron().parameters[1]
            }

            pub unsafe fn neuronParameterC(&self) -> f32 {
                self.neuron().parameters[2]
            }

            pub unsafe fn alpha(&self) -> f64 {
                self.neuron().alpha
            }

            pub unsafe fn setAlpha(&self, alpha: f64) {
                self.neuron().alpha = alpha;
            }

            pub unsafe fn sourceNumberOfFeatureVectors(&self) -> usize {
                self.neuron().rows
            }

            pub unsafe fn setSourceNumberOfFeatureVectors(&self, vectors: usize) {
                self.neuron().rows = vectors;
            }

            pub unsafe fn sourceInputFeatureChannels(&self) -> usize {
                self.neuron().columns
            }

            pub unsafe fn setSourceInputFeatureChannels(&self, channels: usize) {
                self.neuron().columns = channels;
            }
        }
    };
}

neuron_properties!(MPSMatrixNeuron);
neuron_properties!(MPSMatrixFullyConnected);

impl MPSMatrixNeuron {
    pub unsafe fn initWithDevice(
        _this: Allocated<Self>,
        device: &ProtocolObject<dyn MTLDevice>,
    ) -> Retained<Self> {
        KernelState::make(device, Kernel::Neuron(RefCell::default()))
    }

    fn neuron(&self) -> RefMut<'_, Neuron> {
        match &self.state().kernel {
            Kernel::Neuron(neuron) => neuron.borrow_mut(),
            _ => unreachable!("a neuron is made of one"),
        }
    }

    pub unsafe fn setNeuronToPReLUWithParametersA(&self, a: &NSData) {
        let floats = a.to_vec();
        let floats = floats
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let mut neuron = self.neuron();
        neuron.kind = NeuronKind::PReLU;
        neuron.parameters = [0.0; 3];
        neuron.slopes = floats.collect();
    }

    pub unsafe fn encodeToCommandBuffer_inputMatrix_biasVector_resultMatrix(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        input_matrix: &MPSMatrix,
        bias_vector: Option<&MPSVector>,
        result_matrix: &MPSMatrix,
    ) {
        let state = self.state();
        let neuron = Neuron {
            source_origin: origin(&state.primary),
            result_origin: origin(&state.result),
            batch: state.batch(),
            ..self.neuron().clone()
        };
        let command_buffer = objects::command_buffer(command_buffer);
        let bias = bias_vector.map(MPSVector::get);
        neuron.encode(
            command_buffer,
            input_matrix.get(),
            bias,
            result_matrix.get(),
        );
    }
}

impl MPSMatrixFullyConnected {
    pub unsafe fn initWithDevice(
        _this: Allocated<Self>,
        device: &ProtocolObject<dyn MTLDevice>,
    ) -> Retained<Self> {
        KernelState::make(device, Kernel::FullyConnected(RefCell::default()))
    }

    fn kernel(&self) -> RefMut<'_, FullyConnected> {
        match &self.state().kernel {
            Kernel::FullyConnected(kernel) => kernel.borrow_mut(),
            _ => unreachable!("a fully connected layer is made of one"),
        }
    }

    fn neuron(&self) -> RefMut<'_, Neuron> {
        RefMut::map(self.kernel(), |kernel| &mut kernel.neuron)
    }

    pub unsafe fn sourceOutputFeatureChannels(&self) -> usize {
        self.kernel().outputs.unwrap_or(usize::MAX)
    }

    pub unsafe fn setSourceOutputFeatureChannels(&self, channels: usize) {
        self.kernel().outputs = Some(channels);
    }

    pub unsafe fn encodeToCommandBuffer_inputMatrix_weightMatrix_biasVector_resultMatrix(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        input_matrix: &MPSMatrix,
        weight_matrix: &MPSMatrix,
        bias_vector: Option<&MPSVector>,
        result_matrix: &MPSMatrix,
    ) {
        let state = self.state();
        let mut kernel = self.kernel().clone();
        kernel.neuron.source_origin = origin(&state.primary);
        kernel.neuron.result_origin = origin(&state.result);
        kernel.neuron.batch = state.batch();
        kernel.weight_origin = origin(&state.secondary);
        kernel.encode(
            objects::command_buffer(command_buffer),
            input_matrix.get(),
            weight_matrix.get(),
            bias_vector.map(MPSVector::get),
            result_matrix.get(),
        );
    }
}
