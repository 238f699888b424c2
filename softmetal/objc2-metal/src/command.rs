//! `MTLCommandQueue` and `MTLCommandBuffer`

use crate::device;
use crate::encoder::{MTLBlitCommandEncoder, MTLComputeCommandEncoder};
use crate::event::MTLEvent;
use crate::residency::MTLResidencySet;
use crate::softmetal::{self, Status};
use crate::types::{MTLCommandBufferStatus, MTLDispatchType};
use crate::MTLDevice;
use block2::{DynBlock, RcBlock};
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::Message;
use objc2_foundation::{NSError, NSString};
use std::ptr::NonNull;
use std::sync::Arc;

crate::protocol!(MTLCommandQueue, MTLCommandBuffer);

/// Called with a command buffer.
pub type MTLCommandBufferHandler =
    *mut DynBlock<dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>)>;

/// Runs command buffers in order.
pub unsafe trait MTLCommandQueue: NSObjectProtocol + Send + Sync {
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

    fn commandBuffer(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandBuffer>>>
    where
        Self: Sized + Message,
    {
        softmetal::queue(self)
            .command_buffer()
            .map(softmetal::wrap_command_buffer)
    }

    fn addResidencySet(&self, _residency_set: &ProtocolObject<dyn MTLResidencySet>)
    where
        Self: Sized + Message,
    {
    }

    fn removeResidencySet(&self, _residency_set: &ProtocolObject<dyn MTLResidencySet>)
    where
        Self: Sized + Message,
    {
    }
}

/// A block that a queue's thread may call.
#[allow(clippy::type_complexity)]
struct Handler(RcBlock<dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>)>);

// SAFETY: whoever adds a handler promises that it may be called on another thread.
unsafe impl Send for Handler {}

impl Handler {
    /// # Safety
    /// `block` is null or a live block that may be called on another thread.
    unsafe fn from_block(block: MTLCommandBufferHandler) -> Option<softmetal::Handler> {
        // SAFETY: by the caller.
        let handler = Self(unsafe { RcBlock::copy(block) }?);
        Some(Box::new(move |buffer| handler.call(buffer)))
    }

    fn call(&self, buffer: &Arc<softmetal::CommandBuffer>) {
        let view = softmetal::wrap_command_buffer(buffer.clone());
        self.0.call((NonNull::from(&*view),));
    }
}

/// Work for a GPU.
pub unsafe trait MTLCommandBuffer: NSObjectProtocol {
    fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>>
    where
        Self: Sized + Message,
    {
        device::system()
    }

    fn commandQueue(&self) -> Retained<ProtocolObject<dyn MTLCommandQueue>>
    where
        Self: Sized + Message,
    {
        softmetal::wrap_queue(softmetal::command_buffer(self).queue().clone())
    }

    fn setLabel(&self, label: Option<&NSString>)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).set_label(label.map(ToString::to_string).as_deref());
    }

    fn label(&self) -> Option<Retained<NSString>>
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self)
            .label()
            .map(|label| NSString::from_str(&label))
    }

    fn computeCommandEncoder(
        &self,
    ) -> Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>>
    where
        Self: Sized + Message,
    {
        self.computeCommandEncoderWithDispatchType(MTLDispatchType::Serial)
    }

    fn computeCommandEncoderWithDispatchType(
        &self,
        dispatch_type: MTLDispatchType,
    ) -> Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>>
    where
        Self: Sized + Message,
    {
        let concurrent = dispatch_type == MTLDispatchType::Concurrent;
        let encoder = softmetal::command_buffer(self).compute_encoder(concurrent);
        Some(softmetal::wrap_compute_encoder(encoder))
    }

    fn blitCommandEncoder(&self) -> Option<Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>>
    where
        Self: Sized + Message,
    {
        Some(softmetal::wrap_blit_encoder(
            softmetal::command_buffer(self).blit_encoder(),
        ))
    }

    fn encodeSignalEvent_value(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).signal_event(softmetal::event(event), value);
    }

    fn encodeWaitForEvent_value(&self, event: &ProtocolObject<dyn MTLEvent>, value: u64)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).wait_for_event(softmetal::event(event), value);
    }

    /// # Safety
    /// `block` is a block that may be called on another thread.
    unsafe fn addScheduledHandler(&self, block: MTLCommandBufferHandler)
    where
        Self: Sized + Message,
    {
        // SAFETY: by the caller.
        if let Some(handler) = unsafe { Handler::from_block(block) } {
            softmetal::command_buffer(self).add_scheduled_handler(handler);
        }
    }

    /// # Safety
    /// `block` is a block that may be called on another thread.
    unsafe fn addCompletedHandler(&self, block: MTLCommandBufferHandler)
    where
        Self: Sized + Message,
    {
        // SAFETY: by the caller.
        if let Some(handler) = unsafe { Handler::from_block(block) } {
            softmetal::command_buffer(self).add_completed_handler(handler);
        }
    }

    fn enqueue(&self)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).enqueue();
    }

    fn commit(&self)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).commit();
    }

    fn waitUntilScheduled(&self)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).wait_until_scheduled();
    }

    fn waitUntilCompleted(&self)
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self).wait_until_completed();
    }

    fn status(&self) -> MTLCommandBufferStatus
    where
        Self: Sized + Message,
    {
        match softmetal::command_buffer(self).status() {
            Status::NotEnqueued => MTLCommandBufferStatus::NotEnqueued,
            Status::Enqueued => MTLCommandBufferStatus::Enqueued,
            Status::Committed => MTLCommandBufferStatus::Committed,
            Status::Scheduled => MTLCommandBufferStatus::Scheduled,
            Status::Completed => MTLCommandBufferStatus::Completed,
            Status::Error => MTLCommandBufferStatus::Error,
        }
    }

    fn error(&self) -> Option<Retained<NSError>>
    where
        Self: Sized + Message,
    {
        softmetal::command_buffer(self)
            .error()
            .map(|error| softmetal::ns_error(&error))
    }
}
