//! A look-alike of the `objc2-metal` crate: Metal's compute API on softmetal.
//!
//! Names and signatures are those of the real crate, so that code written against it compiles here unchanged. Protocols
//! are traits with default methods that any `ProtocolObject<dyn …>` has; what an object really is, is in [`softmetal`].

#![allow(non_snake_case, non_upper_case_globals)]
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

mod capture;
mod command;
mod device;
mod encoder;
mod event;
mod library;
mod residency;
mod resource;
pub mod softmetal;
mod types;

pub use capture::{MTLCaptureDescriptor, MTLCaptureManager};
pub use command::{MTLCommandBuffer, MTLCommandBufferHandler, MTLCommandQueue};
pub use device::{MTLArchitecture, MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice};
pub use encoder::{MTLBlitCommandEncoder, MTLCommandEncoder, MTLComputeCommandEncoder};
pub use event::{MTLEvent, MTLFence, MTLSharedEvent};
pub use library::{
    MTLCompileOptions, MTLComputePipelineState, MTLFunction, MTLFunctionConstantValues, MTLLibrary,
};
pub use residency::{MTLResidencySet, MTLResidencySetDescriptor};
pub use resource::{MTLAllocation, MTLBuffer, MTLResource};
pub use types::*;

/// Lets every object that has a protocol be used as one.
macro_rules! protocol {
    ($($name:ident),*) => {$(
        // SAFETY: the object has the protocol by way of `T`, and the methods need nothing else.
        unsafe impl<T: ?Sized + $name> $name for objc2::runtime::ProtocolObject<T> {}
        // SAFETY: that is what the bound says.
        unsafe impl<T: ?Sized + objc2::Message + $name> objc2::runtime::ImplementedBy<T> for dyn $name {}
        // SAFETY: as above.
        unsafe impl<T: ?Sized + objc2::Message + $name + Send> objc2::runtime::ImplementedBy<T>
            for dyn $name + Send {}
        // SAFETY: as above.
        unsafe impl<T: ?Sized + objc2::Message + $name + Send + Sync> objc2::runtime::ImplementedBy<T>
            for dyn $name + Send + Sync {}
    )*};
}
pub(crate) use protocol;
