//! What objects are made of, and the way from one to the other. Not part of the real crate.

use crate::{
    MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLComputePipelineState, MTLDevice, MTLEvent, MTLFence, MTLFunction, MTLLibrary,
};
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2::Message;
use objc2_foundation::NSError;
use std::sync::Arc;

pub use ::softmetal::*;

macro_rules! states {
    ($($state:ident($object:ty, $protocol:ident) $wrap:ident $unwrap:ident;)*) => {$(
        pub(crate) struct $state(pub(crate) Arc<$object>);
        impl State for $state {}

        /// The Objective-C view of an object.
        pub fn $wrap(object: Arc<$object>) -> Retained<ProtocolObject<dyn $protocol>> {
            object::new($state(object))
        }

        /// The object behind its Objective-C view. Panics if it is something else.
        #[track_caller]
        pub fn $unwrap<T: ?Sized + Message>(view: &T) -> &Arc<$object> {
            &object::expect::<$state, _>(view).0
        }
    )*};
}

states! {
    BufferState(Buffer, MTLBuffer) wrap_buffer buffer;
    QueueState(Queue, MTLCommandQueue) wrap_queue queue;
    CommandBufferState(CommandBuffer, MTLCommandBuffer) wrap_command_buffer command_buffer;
    ComputeState(ComputeEncoder, MTLComputeCommandEncoder) wrap_compute_encoder compute_encoder;
    BlitState(BlitEncoder, MTLBlitCommandEncoder) wrap_blit_encoder blit_encoder;
    FenceState(Fence, MTLFence) wrap_fence fence;
    EventState(Event, MTLEvent) wrap_event event;
    LibraryState(Library, MTLLibrary) wrap_library library;
    FunctionState(Function, MTLFunction) wrap_function function;
    PipelineState(Pipeline, MTLComputePipelineState) wrap_pipeline pipeline;
}

/// The device behind its Objective-C view.
#[track_caller]
pub fn device(view: &ProtocolObject<dyn MTLDevice>) -> &'static Arc<Device> {
    crate::device::state(view);
    Device::system()
}

pub(crate) fn ns_error(error: &Error) -> Retained<NSError> {
    NSError::describe(error.domain, error.code, &error.description)
}
