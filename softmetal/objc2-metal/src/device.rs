//! `MTLDevice`

use crate::event::{MTLEvent, MTLFence, MTLSharedEvent};
use crate::library::{MTLCompileOptions, MTLComputePipelineState, MTLFunction, MTLLibrary};
use crate::residency::{self, MTLResidencySet, MTLResidencySetDescriptor};
use crate::resource::{self, MTLBuffer};
use crate::softmetal::{self, limits, Buffer, Device, Event, Fence, Library, Pipeline, Queue};
use crate::types::{MTLGPUFamily, MTLResourceOptions, MTLSize};
use crate::MTLCommandQueue;
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol, ProtocolObject};
use objc2::Message;
use objc2_foundation::{NSArray, NSError, NSString};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

pub(crate) struct DeviceState {
    architecture: Retained<MTLArchitecture>,
}

impl State for DeviceState {
    fn send(&self, selector: &str) -> Option<*const AnyObject> {
        (selector == "architecture").then(|| Retained::as_ptr(&self.architecture).cast())
    }
}

/// The one device there is.
pub(crate) fn system() -> Retained<ProtocolObject<dyn MTLDevice>> {
    static SYSTEM: LazyLock<Retained<ProtocolObject<dyn MTLDevice>>> = LazyLock::new(|| {
        let name = Device::system().settings.architecture.clone();
        object::new(DeviceState {
            architecture: object::new(Architecture(name)),
        })
    });
    SYSTEM.clone()
}

#[track_caller]
pub(crate) fn state<T: ?Sized + Message>(device: &T) -> &DeviceState {
    object::expect(device)
}

pub fn MTLCopyAllDevices() -> Retained<NSArray<ProtocolObject<dyn MTLDevice>>> {
    NSArray::from_retained_slice(&[system()])
}

pub fn MTLCreateSystemDefaultDevice() -> Option<Retained<ProtocolObject<dyn MTLDevice>>> {
    Some(system())
}

struct Architecture(String);
impl State for Architecture {}

objc2::class!(
    /// The kind of GPU.
    MTLArchitecture: NSObject, Architecture
);

impl MTLArchitecture {
    pub fn name(&self) -> Retained<NSString> {
        NSString::from_str(&self.state().0)
    }
}

crate::protocol!(MTLDevice);

/// A GPU.
pub unsafe trait MTLDevice: NSObjectProtocol + Send + Sync {
    fn name(&self) -> Retained<NSString>
    where
        Self: Sized + Message,
    {
        NSString::from_str(Device::system().name())
    }

    fn registryID(&self) -> u64
    where
        Self: Sized + Message,
    {
        Device::system().registry_id()
    }

    fn architecture(&self) -> Retained<MTLArchitecture>
    where
        Self: Sized + Message,
    {
        state(self).architecture.clone()
    }

    fn maxThreadsPerThreadgroup(&self) -> MTLSize
    where
        Self: Sized + Message,
    {
        let side = limits::THREADS_PER_GROUP;
        MTLSize {
            width: side,
            height: side,
            depth: side,
        }
    }

    fn maxThreadgroupMemoryLength(&self) -> usize
    where
        Self: Sized + Message,
    {
        limits::THREADGROUP_MEMORY
    }

    fn maxBufferLength(&self) -> usize
    where
        Self: Sized + Message,
    {
        limits::BUFFER
    }

    fn hasUnifiedMemory(&self) -> bool
    where
        Self: Sized + Message,
    {
        true
    }

    fn isLowPower(&self) -> bool
    where
        Self: Sized + Message,
    {
        false
    }

    fn isHeadless(&self) -> bool
    where
        Self: Sized + Message,
    {
        true
    }

    fn isRemovable(&self) -> bool
    where
        Self: Sized + Message,
    {
        false
    }

    /// An Apple7 GPU (M1), with what all Metal 3 devices have.
    fn supportsFamily(&self, gpu_family: MTLGPUFamily) -> bool
    where
        Self: Sized + Message,
    {
        (MTLGPUFamily::Apple1..=MTLGPUFamily::Apple7).contains(&gpu_family)
            || (MTLGPUFamily::Mac1..=MTLGPUFamily::Common3).contains(&gpu_family)
            || gpu_family == MTLGPUFamily::Metal3
    }

    fn recommendedMaxWorkingSetSize(&self) -> u64
    where
        Self: Sized + Message,
    {
        Device::system().recommended_working_set()
    }

    fn currentAllocatedSize(&self) -> usize
    where
        Self: Sized + Message,
    {
        Device::system().allocated()
    }

    fn newCommandQueue(&self) -> Option<Retained<ProtocolObject<dyn MTLCommandQueue>>>
    where
        Self: Sized + Message,
    {
        Some(softmetal::wrap_queue(Queue::new(Device::system())))
    }

    fn newBufferWithLength_options(
        &self,
        length: usize,
        options: MTLResourceOptions,
    ) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>>
    where
        Self: Sized + Message,
    {
        Buffer::new(Device::system(), length, resource::options(options)?)
            .map(softmetal::wrap_buffer)
    }

    /// # Safety
    /// `pointer` has `length` bytes, or `length` is 0.
    unsafe fn newBufferWithBytes_length_options(
        &self,
        pointer: NonNull<c_void>,
        length: usize,
        options: MTLResourceOptions,
    ) -> Option<Retained<ProtocolObject<dyn MTLBuffer>>>
    where
        Self: Sized + Message,
    {
        // SAFETY: by the caller.
        let bytes = unsafe { bytes(pointer, length) };
        Buffer::with_bytes(Device::system(), bytes, resource::options(options)?)
            .map(softmetal::wrap_buffer)
    }

    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        options: Option<&MTLCompileOptions>,
    ) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, Retained<NSError>>
    where
        Self: Sized + Message,
    {
        let options = options.map(MTLCompileOptions::get).unwrap_or_default();
        Library::new(Device::system(), &source.to_string(), &options)
            .map(softmetal::wrap_library)
            .map_err(|error| softmetal::ns_error(&error))
    }

    fn newComputePipelineStateWithFunction_error(
        &self,
        compute_function: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Retained<ProtocolObject<dyn MTLComputePipelineState>>, Retained<NSError>>
    where
        Self: Sized + Message,
    {
        Pipeline::new(softmetal::function(compute_function))
            .map(softmetal::wrap_pipeline)
            .map_err(|error| softmetal::ns_error(&error))
    }

    fn newFence(&self) -> Option<Retained<ProtocolObject<dyn MTLFence>>>
    where
        Self: Sized + Message,
    {
        Some(softmetal::wrap_fence(Arc::new(Fence::default())))
    }

    fn newEvent(&self) -> Option<Retained<ProtocolObject<dyn MTLEvent>>>
    where
        Self: Sized + Message,
    {
        Some(softmetal::wrap_event(Arc::new(Event::default())))
    }

    fn newSharedEvent(&self) -> Option<Retained<ProtocolObject<dyn MTLSharedEvent>>>
    where
        Self: Sized + Message,
    {
        Some(object::new(softmetal::EventState(Arc::new(
            Event::default(),
        ))))
    }

    fn newResidencySetWithDescriptor_error(
        &self,
        _desc: &MTLResidencySetDescriptor,
    ) -> Result<Retained<ProtocolObject<dyn MTLResidencySet>>, Retained<NSError>>
    where
        Self: Sized + Message,
    {
        Ok(residency::new())
    }
}

/// The bytes at a pointer, which may point anywhere if there are none.
///
/// # Safety
/// `pointer` has `length` bytes that nobody writes during `'a`.
pub(crate) unsafe fn bytes<'a>(pointer: NonNull<c_void>, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts(pointer.cast().as_ptr(), length) }
}
