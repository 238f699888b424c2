//! The calls of a program that was written for the real crate.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2::AnyThread;
use objc2_foundation::NSString;
use objc2_metal::*;
use objc2_metal_performance_shaders::*;
use std::ptr::NonNull;

fn device() -> Retained<ProtocolObject<dyn MTLDevice>> {
    MTLCreateSystemDefaultDevice().expect("a device")
}

fn buffer(values: &[f32]) -> Retained<ProtocolObject<dyn MTLBuffer>> {
    let bytes = NonNull::from(values).cast();
    // SAFETY: that is the length of the values.
    unsafe {
        device().newBufferWithBytes_length_options(
            bytes,
            4 * values.len(),
            MTLResourceOptions::empty(),
        )
    }
    .expect("a buffer")
}

fn matrix(rows: usize, columns: usize, values: &[f32]) -> Retained<MPSMatrix> {
    // SAFETY: the descriptor fits the buffer.
    unsafe {
        let descriptor = MPSMatrixDescriptor::matrixDescriptorWithRows_columns_rowBytes_dataType(
            rows,
            columns,
            4 * columns,
            MPSDataType::Float32,
        );
        MPSMatrix::initWithBuffer_descriptor(MPSMatrix::alloc(), &buffer(values), &descriptor)
    }
}

fn vector(values: &[f32]) -> Retained<MPSVector> {
    // SAFETY: the descriptor fits the buffer.
    unsafe {
        let descriptor = MPSVectorDescriptor::vectorDescriptorWithLength_dataType(
            values.len(),
            MPSDataType::Float32,
        );
        MPSVector::initWithBuffer_offset_descriptor(
            MPSVector::alloc(),
            &buffer(values),
            0,
            &descriptor,
        )
    }
}

fn run(encode: impl FnOnce(&ProtocolObject<dyn MTLCommandBuffer>)) -> MTLCommandBufferStatus {
    let buffer = device()
        .newCommandQueue()
        .expect("a queue")
        .commandBuffer()
        .expect("a command buffer");
    encode(&buffer);
    buffer.commit();
    buffer.waitUntilCompleted();
    buffer.status()
}

fn values(matrix: &MPSMatrix) -> Vec<f32> {
    // SAFETY: the buffer has so many floats, and no command buffer uses it.
    unsafe {
        let data = matrix.data();
        std::slice::from_raw_parts(data.contents().cast().as_ptr(), data.length() / 4).to_vec()
    }
}

#[test]
fn matrices_are_multiplied() {
    let a = matrix(2, 2, &[1.0, 2.0, 3.0, 4.0]);
    let b = matrix(2, 2, &[1.0, 0.0, 1.0, 1.0]);
    let c = matrix(2, 2, &[0.0; 4]);
    // SAFETY: the matrices suit the kernel.
    unsafe {
        let kernel = MPSMatrixMultiplication::initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta(
            MPSMatrixMultiplication::alloc(), &device(), false, true, 2, 2, 2, 1.0, 0.0,
        );
        kernel.setLabel(Some(&NSString::from_str("product")));
        assert_eq!(kernel.label().expect("a label").to_string(), "product");
        let status = run(|buffer| {
            kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(buffer, &a, &b, &c)
        });
        assert_eq!(status, MTLCommandBufferStatus::Completed);
        assert_eq!(values(&c), [1.0, 3.0, 3.0, 7.0]);
        // One row further on there is nothing left.
        kernel.setLeftMatrixOrigin(MTLOrigin { x: 1, y: 0, z: 0 });
        let status = run(|buffer| {
            kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(buffer, &a, &b, &c)
        });
        assert_eq!(status, MTLCommandBufferStatus::Error);
    }
}

#[test]
fn subclasses_have_what_their_superclasses_have() {
    let x = matrix(1, 2, &[0.0, 0.0]);
    let y = matrix(1, 2, &[0.0; 2]);
    // SAFETY: the matrices suit the kernels.
    unsafe {
        let kernel = MPSMatrixLogSoftMax::initWithDevice(MPSMatrixLogSoftMax::alloc(), &device());
        kernel.setSourceRows(1);
        kernel.setBatchSize(1);
        let status =
            run(|buffer| kernel.encodeToCommandBuffer_inputMatrix_resultMatrix(buffer, &x, &y));
        assert_eq!(status, MTLCommandBufferStatus::Completed);
        assert!(values(&y)
            .iter()
            .all(|value| (value - 0.5f32.ln()).abs() < 1e-6));

        let kernel =
            MPSMatrixFullyConnected::initWithDevice(MPSMatrixFullyConnected::alloc(), &device());
        kernel.setNeuronType_parameterA_parameterB_parameterC(
            MPSCNNNeuronType::Linear,
            2.0,
            1.0,
            0.0,
        );
        let w = matrix(2, 2, &[1.0, 0.0, 0.0, 1.0]);
        let bias = vector(&[1.0, 2.0]);
        let status = run(|buffer| {
            kernel.encodeToCommandBuffer_inputMatrix_weightMatrix_biasVector_resultMatrix(
                buffer,
                &x,
                &w,
                Some(&bias),
                &y,
            );
        });
        assert_eq!(status, MTLCommandBufferStatus::Completed);
        assert_eq!(values(&y), [3.0, 5.0]);
    }
}
