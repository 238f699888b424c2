//! `MTLCommandEncoder`, `MTLComputeCommandEncoder` and `MTLBlitCommandEncoder`

use crate::device::{self, bytes};
use crate::event::MTLFence;
use crate::library::MTLComputePipelineState;
use crate::resource::{MTLBuffer, MTLResource};
use crate::softmetal::{self, BlitState, ComputeState};
use crate::types::{MTLBarrierScope, MTLResourceUsage, MTLSize};
use crate::MTLDevice;
use objc2::object;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::Message;
use objc2_foundation::{NSRange, NSString};
use std::ffi::c_void;
use std::ptr::NonNull;

crate::protocol!(
    MTLCommandEncoder,
    MTLComputeCommandEncoder,
    MTLBlitCommandEncoder
);

/// Does `compute` or `blit` with the encoder, whichever it is.
fn with<T: Message>(
    encoder: &T,
    compute: impl FnOnce(&softmetal::ComputeEncoder),
    blit: impl FnOnce(&softmetal::BlitEncoder),
) {
    match object::state::<ComputeState, _>(encoder) {
        Some(encoder) => compute(&encoder.0),
        None => blit(&object::expect::<BlitState, _>(encoder).0),
    }
}

/// Writes commands into a command buffer.
pub unsafe trait MTLCommandEncoder: NSObjectProtocol {
    fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>>
    where
        Self: Sized + Message,
    {
        device::system()
    }

    fn setLabel(&self, _label: Option<&NSString>)
    where
        Self: Sized + Message,
    {
    }

    fn pushDebugGroup(&self, _string: &NSString)
    where
        Self: Sized + Message,
    {
        with(
            self,
            |compute| compute.push_debug_group(),
            |blit| blit.push_debug_group(),
        );
    }

    fn popDebugGroup(&self)
    where
        Self: Sized + Message,
    {
        with(
            self,
            |compute| compute.pop_debug_group(),
            |blit| blit.pop_debug_group(),
        );
    }

    fn insertDebugSignpost(&self, _string: &NSString)
    where
        Self: Sized + Message,
    {
    }

    fn endEncoding(&self)
    where
        Self: Sized + Message,
    {
        with(
            self,
            |compute| compute.end_encoding(),
            |blit| blit.end_encoding(),
        );
    }
}

/// Writes dispatches.
pub unsafe trait MTLComputeCommandEncoder: MTLCommandEncoder {
    fn setComputePipelineState(&self, state: &ProtocolObject<dyn MTLComputePipelineState>)
    where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self).set_pipeline(softmetal::pipeline(state));
    }

    /// # Safety
    /// `bytes` has `length` bytes, or `length` is 0.
    unsafe fn setBytes_length_atIndex(&self, pointer: NonNull<c_void>, length: usize, index: usize)
    where
        Self: Sized + Message,
    {
        // SAFETY: by the caller.
        softmetal::compute_encoder(self).set_bytes(unsafe { bytes(pointer, length) }, index);
    }

    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    ) where
        Self: Sized + Message,
    {
        let buffer = buffer.map(softmetal::buffer);
        softmetal::compute_encoder(self).set_buffer(buffer, offset, index);
    }

    unsafe fn setBufferOffset_atIndex(&self, offset: usize, index: usize)
    where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self).set_buffer_offset(offset, index);
    }

    /// # Safety
    /// `buffers` and `offsets` have as many elements as `range`; the buffers are null or live.
    unsafe fn setBuffers_offsets_withRange(
        &self,
        buffers: NonNull<*const ProtocolObject<dyn MTLBuffer>>,
        offsets: NonNull<usize>,
        range: NSRange,
    ) where
        Self: Sized + Message,
    {
        for i in 0..range.length {
            // SAFETY: by the caller.
            let (buffer, offset) =
                unsafe { (buffers.add(i).read().as_ref(), offsets.add(i).read()) };
            let buffer = buffer.map(softmetal::buffer);
            softmetal::compute_encoder(self).set_buffer(buffer, offset, range.location + i);
        }
    }

    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize)
    where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self).set_threadgroup_memory_length(length, index);
    }

    fn dispatchThreadgroups_threadsPerThreadgroup(
        &self,
        threadgroups_per_grid: MTLSize,
        threads_per_threadgroup: MTLSize,
    ) where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self).dispatch_threadgroups(
            threadgroups_per_grid.sides(),
            threads_per_threadgroup.sides(),
        );
    }

    fn dispatchThreads_threadsPerThreadgroup(
        &self,
        threads_per_grid: MTLSize,
        threads_per_threadgroup: MTLSize,
    ) where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self)
            .dispatch_threads(threads_per_grid.sides(), threads_per_threadgroup.sides());
    }

    fn memoryBarrierWithScope(&self, scope: MTLBarrierScope)
    where
        Self: Sized + Message,
    {
        if scope.contains(MTLBarrierScope::Buffers) {
            softmetal::compute_encoder(self).barrier();
        }
    }

    /// # Safety
    /// `resources` has `count` live resources.
    unsafe fn memoryBarrierWithResources_count(
        &self,
        resources: NonNull<NonNull<ProtocolObject<dyn MTLResource>>>,
        count: usize,
    ) where
        Self: Sized + Message,
    {
        let buffers: Vec<_> = (0..count)
            // SAFETY: by the caller.
            .map(|i| unsafe { softmetal::buffer(resources.add(i).read().as_ref()).clone() })
            .collect();
        softmetal::compute_encoder(self).barrier_for(&buffers);
    }

    fn updateFence(&self, fence: &ProtocolObject<dyn MTLFence>)
    where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self).update_fence(softmetal::fence(fence));
    }

    fn waitForFence(&self, fence: &ProtocolObject<dyn MTLFence>)
    where
        Self: Sized + Message,
    {
        softmetal::compute_encoder(self).wait_for_fence(softmetal::fence(fence));
    }

    fn useResource_usage(
        &self,
        resource: &ProtocolObject<dyn MTLResource>,
        _usage: MTLResourceUsage,
    ) where
        Self: Sized + Message,
    {
        softmetal::buffer(resource);
    }
}

/// Writes copies.
pub unsafe trait MTLBlitCommandEncoder: MTLCommandEncoder {
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        source_buffer: &ProtocolObject<dyn MTLBuffer>,
        source_offset: usize,
        destination_buffer: &ProtocolObject<dyn MTLBuffer>,
        destination_offset: usize,
        size: usize,
    ) where
        Self: Sized + Message,
    {
        let (from, to) = (
            softmetal::buffer(source_buffer),
            softmetal::buffer(destination_buffer),
        );
        softmetal::blit_encoder(self).copy(from, source_offset, to, destination_offset, size);
    }

    fn fillBuffer_range_value(
        &self,
        buffer: &ProtocolObject<dyn MTLBuffer>,
        range: NSRange,
        value: u8,
    ) where
        Self: Sized + Message,
    {
        let end = range.location.saturating_add(range.length);
        softmetal::blit_encoder(self).fill(softmetal::buffer(buffer), range.location..end, value);
    }

    /// Brings a managed resource to the host's side. There is only one side here.
    fn synchronizeResource(&self, resource: &ProtocolObject<dyn MTLResource>)
    where
        Self: Sized + Message,
    {
        softmetal::buffer(resource);
    }

    fn updateFence(&self, fence: &ProtocolObject<dyn MTLFence>)
    where
        Self: Sized + Message,
    {
        softmetal::blit_encoder(self).update_fence(softmetal::fence(fence));
    }

    fn waitForFence(&self, fence: &ProtocolObject<dyn MTLFence>)
    where
        Self: Sized + Message,
    {
        softmetal::blit_encoder(self).wait_for_fence(softmetal::fence(fence));
    }
}
