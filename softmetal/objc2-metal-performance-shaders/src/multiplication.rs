//! `MPSMatrixMultiplication` and `MPSMatrixVectorMultiplication`

use crate::kernel::{origin, properties, Kernel, KernelState, MPSKernel, MPSMatrixBinaryKernel};
use crate::matrix::{MPSMatrix, MPSVector};
use objc2::rc::{Allocated, Retained};
use objc2::runtime::ProtocolObject;
use objc2_metal::{softmetal as objects, MTLCommandBuffer, MTLDevice, MTLOrigin};
use softmetal::mps::{Multiplication, VectorMultiplication};

objc2::class!(
    /// result = alpha · op(left) · op(right) + beta · result
    MPSMatrixMultiplication: MPSKernel, KernelState
);

properties!(MPSMatrixMultiplication {
    leftMatrixOrigin, setLeftMatrixOrigin: primary MTLOrigin;
    rightMatrixOrigin, setRightMatrixOrigin: secondary MTLOrigin;
    resultMatrixOrigin, setResultMatrixOrigin: result MTLOrigin;
    batchStart, setBatchStart: batch_start usize;
    batchSize, setBatchSize: batch_size usize;
});

impl MPSMatrixMultiplication {
    pub unsafe fn initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta(
        _this: Allocated<Self>,
        device: &ProtocolObject<dyn MTLDevice>,
        transpose_left: bool,
        transpose_right: bool,
        result_rows: usize,
        result_columns: usize,
        interior_columns: usize,
        alpha: f64,
        beta: f64,
    ) -> Retained<Self> {
        let kernel = Multiplication {
            transpose_left,
            transpose_right,
            alpha,
            beta,
            ..Multiplication::new(result_rows, result_columns, interior_columns)
        };
        KernelState::make(device, Kernel::Multiplication(kernel))
    }

    pub unsafe fn initWithDevice_resultRows_resultColumns_interiorColumns(
        _this: Allocated<Self>,
        device: &ProtocolObject<dyn MTLDevice>,
        result_rows: usize,
        result_columns: usize,
        interior_columns: usize,
    ) -> Retained<Self> {
        let kernel = Multiplication::new(result_rows, result_columns, interior_columns);
        KernelState::make(device, Kernel::Multiplication(kernel))
    }

    pub unsafe fn encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        left_matrix: &MPSMatrix,
        right_matrix: &MPSMatrix,
        result_matrix: &MPSMatrix,
    ) {
        let state = self.state();
        let Kernel::Multiplication(kernel) = &state.kernel else {
            unreachable!("a multiplication is made of one")
        };
        let kernel = Multiplication {
            left_origin: origin(&state.primary),
            right_origin: origin(&state.secondary),
            result_origin: origin(&state.result),
            batch: state.batch(),
            ..kernel.clone()
        };
        let command_buffer = objects::command_buffer(command_buffer);
        kernel.encode(
            command_buffer,
            left_matrix.get(),
            right_matrix.get(),
            result_matrix.get(),
        );
    }
}

objc2::class!(
    /// result = alpha · op(matrix) · vector + beta · result
    MPSMatrixVectorMultiplication: MPSMatrixBinaryKernel, KernelState
);

impl MPSMatrixVectorMultiplication {
    pub unsafe fn initWithDevice_transpose_rows_columns_alpha_beta(
        _this: Allocated<Self>,
        device: &ProtocolObject<dyn MTLDevice>,
        transpose: bool,
        rows: usize,
        columns: usize,
        alpha: f64,
        beta: f64,
    ) -> Retained<Self> {
        let kernel = VectorMultiplication {
            transpose,
            alpha,
            beta,
            ..VectorMultiplication::new(rows, columns)
        };
        KernelState::make(device, Kernel::VectorMultiplication(kernel))
    }

    pub unsafe fn initWithDevice_rows_columns(
        _this: Allocated<Self>,
        device: &ProtocolObject<dyn MTLDevice>,
        rows: usize,
        columns: usize,
    ) -> Retained<Self> {
        let kernel = VectorMultiplication::new(rows, columns);
        KernelState::make(device, Kernel::VectorMultiplication(kernel))
    }

    pub unsafe fn encodeToCommandBuffer_inputMatrix_inputVector_resultVector(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        input_matrix: &MPSMatrix,
        input_vector: &MPSVector,
        result_vector: &MPSVector,
    ) {
        let state = self.state();
        let Kernel::VectorMultiplication(kernel) = &state.kernel else {
            unreachable!("a multiplication is made of one")
        };
        let kernel = VectorMultiplication {
            matrix_origin: origin(&state.primary),
            vector_origin: origin(&state.secondary),
            result_origin: origin(&state.result),
            batch: state.batch(),
            ..kernel.clone()
        };
        let command_buffer = objects::command_buffer(command_buffer);
        kernel.encode(
            command_buffer,
            input_matrix.get(),
            input_vector.get(),
            result_vector.get(),
        );
    }
}
