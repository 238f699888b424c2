//! `MPSMatrixSoftMax`, `MPSMatrixLogSoftMax` and their gradients

use crate::kernel::{origin, Kernel, KernelState, MPSMatrixBinaryKernel, MPSMatrixUnaryKernel};
use crate::matrix::MPSMatrix;
use objc2::rc::{Allocated, Retained};
use objc2::runtime::ProtocolObject;
use objc2_metal::{softmetal as objects, MTLCommandBuffer, MTLDevice};
use softmetal::mps::{SoftMax, SoftMaxGradient};
use std::cell::RefCell;

objc2::class!(
    /// The softmax of each row.
    MPSMatrixSoftMax: MPSMatrixUnaryKernel, KernelState
);

objc2::class!(
    /// The logarithm of the softmax of each row.
    MPSMatrixLogSoftMax: MPSMatrixSoftMax, KernelState
);

objc2::class!(
    /// The gradient of a softmax.
    MPSMatrixSoftMaxGradient: MPSMatrixBinaryKernel, KernelState
);

objc2::class!(
    /// The gradient of the logarithm of a softmax.
    MPSMatrixLogSoftMaxGradient: MPSMatrixSoftMaxGradient, KernelState
);

macro_rules! init {
    ($($class:ident: $kernel:ident $log:literal;)*) => {$(
        impl $class {
            pub unsafe fn initWithDevice(
                _this: Allocated<Self>,
                device: &ProtocolObject<dyn MTLDevice>,
            ) -> Retained<Self> {
                KernelState::make(device, Kernel::$kernel(RefCell::new($kernel::new($log))))
            }
        }
    )*};
}

init! {
    MPSMatrixSoftMax: SoftMax false;
    MPSMatrixLogSoftMax: SoftMax true;
    MPSMatrixSoftMaxGradient: SoftMaxGradient false;
    MPSMatrixLogSoftMaxGradient: SoftMaxGradient true;
}

impl MPSMatrixSoftMax {
    fn kernel(&self) -> &RefCell<SoftMax> {
        match &self.state().kernel {
            Kernel::SoftMax(kernel) => kernel,
            _ => unreachable!("a softmax is made of one"),
        }
    }

    pub unsafe fn sourceRows(&self) -> usize {
        self.kernel().borrow().rows
    }

    pub unsafe fn setSourceRows(&self, source_rows: usize) {
        self.kernel().borrow_mut().rows = source_rows;
    }

    pub unsafe fn sourceColumns(&self) -> usize {
        self.kernel().borrow().columns
    }

    pub unsafe fn setSourceColumns(&self, source_columns: usize) {
        self.kernel().borrow_mut().columns = source_columns;
    }

    pub unsafe fn encodeToCommandBuffer_inputMatrix_resultMatrix(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        input_matrix: &MPSMatrix,
        result_matrix: &MPSMatrix,
    ) {
        let state = self.state();
        let kernel = SoftMax {
            source_origin: origin(&state.primary),
            result_origin: origin(&state.result),
            batch: state.batch(),
            ..self.kernel().borrow().clone()
        };
        kernel.encode(
            objects::command_buffer(command_buffer),
            input_matrix.get(),
            result_matrix.get(),
        );
    }
}

impl MPSMatrixSoftMaxGradient {
    fn kernel(&self) -> &RefCell<SoftMaxGradient> {
        match &self.state().kernel {
            Kernel::SoftMaxGradient(kernel) => kernel,
            _ => unreachable!("a gradient is made of one"),
        }
    }

    pub unsafe fn sourceRows(&self) -> usize {
        self.kernel().borrow().rows
    }

    pub unsafe fn setSourceRows(&self, source_rows: usize) {
        self.kernel().borrow_mut().rows = source_rows;
    }

    pub unsafe fn sourceColumns(&self) -> usize {
        self.kernel().borrow().columns
    }

    pub unsafe fn setSourceColumns(&self, source_columns: usize) {
        self.kernel().borrow_mut().columns = source_columns;
    }

    pub unsafe fn encodeToCommandBuffer_gradientMatrix_forwardOutputMatrix_resultMatrix(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        gradient_matrix: &MPSMatrix,
        forward_output_matrix: &MPSMatrix,
        result_matrix: &MPSMatrix,
    ) {
        let state = self.state();
        let kernel = SoftMaxGradient {
            gradient_origin: origin(&state.primary),
            output_origin: origin(&state.secondary),
            result_origin: origin(&state.result),
            batch: state.batch(),
            ..self.kernel().borrow().clone()
        };
        let command_buffer = objects::command_buffer(command_buffer);
        kernel.encode(
            command_buffer,
            gradient_matrix.get(),
            forward_output_matrix.get(),
            result_matrix.get(),
        );
    }
}
