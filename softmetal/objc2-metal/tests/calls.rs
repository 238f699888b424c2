//! The calls of a program that was written for the real crate.

use block2::RcBlock;
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_foundation::{NSRange, NSString};
use objc2_metal::*;
use std::ffi::{c_void, CStr};
use std::ptr::NonNull;
use std::sync::mpsc;

const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
constant ushort factor [[function_constant(3)]];
kernel void times(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < n) y[i] = x[i] * float(factor);
}
";

type Object<P> = Retained<ProtocolObject<P>>;

fn device() -> Object<dyn MTLDevice> {
    MTLCreateSystemDefaultDevice().expect("a device")
}

fn pointer<T>(value: &T) -> NonNull<c_void> {
    NonNull::from(value).cast()
}

fn size(width: usize) -> MTLSize {
    MTLSize {
        width,
        height: 1,
        depth: 1,
    }
}

fn pipeline(factor: u16) -> Object<dyn MTLComputePipelineState> {
    let device = device();
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_1);
    options.setMathMode(MTLMathMode::Safe);
    let library = device
        .newLibraryWithSource_options_error(&NSString::from_str(SOURCE), Some(&options))
        .expect("a library");
    let constants = MTLFunctionConstantValues::new();
    // SAFETY: the value is of that type.
    unsafe { constants.setConstantValue_type_atIndex(pointer(&factor), MTLDataType::UShort, 3) };
    let function = library
        .newFunctionWithName_constantValues_error(&NSString::from_str("times"), &constants)
        .expect("a function");
    assert!(library
        .newFunctionWithName(&NSString::from_str("nothing"))
        .is_none());
    device
        .newComputePipelineStateWithFunction_error(&function)
        .expect("a pipeline")
}

fn contents(buffer: &ProtocolObject<dyn MTLBuffer>) -> Vec<f32> {
    // SAFETY: the buffer has so many floats, and no command buffer uses it.
    unsafe { std::slice::from_raw_parts(buffer.contents().cast().as_ptr(), buffer.length() / 4) }
        .to_vec()
}

/// Encodes y = 3 · x for `count` elements and commits.
fn times_three(
    y: &ProtocolObject<dyn MTLBuffer>,
    count: u32,
    handler: Option<MTLCommandBufferHandler>,
) -> Object<dyn MTLCommandBuffer> {
    let device = device();
    let x = [1f32, 2.0, 3.0, 4.0];
    let shared =
        MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    // SAFETY: that is the length of the bytes.
    let x = unsafe { device.newBufferWithBytes_length_options(pointer(&x), 16, shared) }
        .expect("a buffer");
    let queue = device.newCommandQueue().expect("a queue");
    let buffer = queue.commandBuffer().expect("a command buffer");
    let encoder = buffer
        .computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
        .expect("an encoder");
    encoder.setComputePipelineState(&pipeline(3));
    // SAFETY: indices and offsets are those of the kernel.
    unsafe {
        encoder.setBuffer_offset_atIndex(Some(&x), 0, 0);
        encoder.setBuffer_offset_atIndex(Some(y), 0, 1);
        encoder.setBytes_length_atIndex(pointer(&count), 4, 2);
    }
    encoder.dispatchThreads_threadsPerThreadgroup(size(4), size(4));
    encoder.updateFence(&device.newFence().expect("a fence"));
    encoder.endEncoding();
    if let Some(handler) = handler {
        // SAFETY: the block may be called on any thread.
        unsafe { buffer.addCompletedHandler(handler) };
    }
    buffer.commit();
    buffer
}

#[test]
fn a_kernel_runs_and_the_handler_is_called() {
    let y = device()
        .newBufferWithLength_options(16, MTLResourceOptions::empty())
        .expect("a buffer");
    let (sender, receiver) = mpsc::channel();
    let block = RcBlock::new(
        move |buffer: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            // SAFETY: the command buffer lives as long as the call.
            let status = unsafe { buffer.as_ref() }.status();
            sender.send(status).expect("a receiver");
        },
    );
    let buffer = times_three(&y, 4, Some(RcBlock::as_ptr(&block)));
    drop(block);
    buffer.waitUntilCompleted();
    assert_eq!(receiver.recv(), Ok(MTLCommandBufferStatus::Completed));
    assert!(buffer.error().is_none());
    assert_eq!(contents(&y), [3.0, 6.0, 9.0, 12.0]);
}

#[test]
fn a_wrong_kernel_gives_an_error() {
    let y = device()
        .newBufferWithLength_options(8, MTLResourceOptions::empty())
        .expect("a buffer");
    let buffer = times_three(&y, 4, None);
    buffer.waitUntilCompleted();
    assert_eq!(buffer.status(), MTLCommandBufferStatus::Error);
    let text = {
        let description = buffer.error().expect("an error").localizedDescription();
        description.UTF8String()
    };
    // SAFETY: the text outlives its string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    assert!(
        text.contains("out-of-bounds-write") && text.contains("kernel times"),
        "{text}"
    );
}

#[test]
fn blits_fill_and_copy() {
    let device = device();
    let private = MTLResourceOptions::StorageModePrivate;
    let a = device
        .newBufferWithLength_options(8, private)
        .expect("a buffer");
    let b = device
        .newBufferWithLength_options(8, MTLResourceOptions::StorageModeShared)
        .expect("a buffer");
    let buffer = device
        .newCommandQueue()
        .expect("a queue")
        .commandBuffer()
        .expect("a command buffer");
    let encoder = buffer.blitCommandEncoder().expect("an encoder");
    encoder.fillBuffer_range_value(&a, NSRange::new(0, 8), 0);
    // SAFETY: both ranges are there.
    unsafe { encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(&a, 0, &b, 0, 8) };
    encoder.endEncoding();
    buffer.commit();
    buffer.waitUntilCompleted();
    assert_eq!(contents(&b), [0.0, 0.0]);
    assert_eq!(a.storageMode(), MTLStorageMode::Private);
    assert_eq!(a.hazardTrackingMode(), MTLHazardTrackingMode::Tracked);
}

#[test]
fn the_architecture_is_asked_for_in_two_ways() {
    let device = device();
    // SAFETY: the answer is an object.
    let raw: *const AnyObject = unsafe { objc2::msg_send![&*device, architecture] };
    assert!(!raw.is_null());
    assert!(device
        .architecture()
        .name()
        .to_string()
        .starts_with("applegpu_"));
    assert_eq!(device, MTLCopyAllDevices().to_vec()[0]);
    assert_eq!(device.newCommandQueue().expect("a queue").device(), device);
}

#[test]
fn residency_sets_take_buffers_by_a_cast() {
    let device = device();
    let buffer = device
        .newBufferWithLength_options(8, MTLResourceOptions::empty())
        .expect("a buffer");
    let set = device
        .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
        .expect("a set");
    let raw: *const ProtocolObject<dyn MTLBuffer> = &*buffer;
    // SAFETY: every buffer is an allocation, and the pointer is the same.
    let allocation = unsafe { &*(raw as *const ProtocolObject<dyn MTLAllocation>) };
    set.addAllocation(allocation);
    set.addAllocation(allocation);
    assert_eq!((set.allocationCount(), allocation.allocatedSize()), (1, 8));
    set.removeAllocation(allocation);
    assert!(!set.containsAllocation(allocation));
    let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&*buffer);
    resource.setLabel(Some(&NSString::from_str("mine")));
    assert_eq!(buffer.label().expect("a label").to_string(), "mine");
}

#[test]
fn captures_are_refused() {
    let descriptor = MTLCaptureDescriptor::new();
    descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
    // SAFETY: nothing is asked of the caller.
    let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
    let error = manager
        .startCaptureWithDescriptor_error(&descriptor)
        .expect_err("refused");
    assert!(error.to_string().contains("SOFTMETAL_TRACE"));
}
