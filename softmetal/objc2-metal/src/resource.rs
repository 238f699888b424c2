//! `MTLAllocation`, `MTLResource` and `MTLBuffer`

use crate::device;
use crate::softmetal::{self, BufferOptions, BufferState, Storage};
use crate::types::{MTLHazardTrackingMode, MTLResourceOptions, MTLStorageMode};
use crate::MTLDevice;
use objc2::object;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::Message;
use objc2_foundation::{NSRange, NSString};
use std::ffi::c_void;
use std::ptr::NonNull;

crate::protocol!(MTLAllocation, MTLResource, MTLBuffer);

/// How to make a buffer; none if the storage mode is not for buffers.
pub(crate) fn options(options: MTLResourceOptions) -> Option<BufferOptions> {
    let storage = match (options.bits() >> 4) & 0xf {
        0 => Storage::Shared,
        1 => Storage::Managed,
        2 => Storage::Private,
        _ => return None,
    };
    let tracked = !options.contains(MTLResourceOptions::HazardTrackingModeUntracked);
    Some(BufferOptions { storage, tracked })
}

/// Memory of a device.
pub unsafe trait MTLAllocation: NSObjectProtocol {
    fn allocatedSize(&self) -> usize
    where
        Self: Sized + Message,
    {
        object::state::<BufferState, _>(self).map_or(0, |buffer| buffer.0.length())
    }
}

/// Memory of a device that kernels can use.
pub unsafe trait MTLResource: MTLAllocation {
    fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>>
    where
        Self: Sized + Message,
    {
        device::system()
    }

    fn label(&self) -> Option<Retained<NSString>>
    where
        Self: Sized + Message,
    {
        softmetal::buffer(self)
            .label()
            .map(|label| NSString::from_str(&label))
    }

    fn setLabel(&self, label: Option<&NSString>)
    where
        Self: Sized + Message,
    {
        softmetal::buffer(self).set_label(label.map(ToString::to_string).as_deref());
    }

    fn storageMode(&self) -> MTLStorageMode
    where
        Self: Sized + Message,
    {
        match softmetal::buffer(self).options().storage {
            Storage::Shared => MTLStorageMode::Shared,
            Storage::Managed => MTLStorageMode::Managed,
            Storage::Private => MTLStorageMode::Private,
        }
    }

    fn hazardTrackingMode(&self) -> MTLHazardTrackingMode
    where
        Self: Sized + Message,
    {
        if softmetal::buffer(self).options().tracked {
            MTLHazardTrackingMode::Tracked
        } else {
            MTLHazardTrackingMode::Untracked
        }
    }

    fn resourceOptions(&self) -> MTLResourceOptions
    where
        Self: Sized + Message,
    {
        MTLResourceOptions(self.storageMode().0 << 4 | self.hazardTrackingMode().0 << 8)
    }
}

/// Bytes.
pub unsafe trait MTLBuffer: MTLResource {
    fn length(&self) -> usize
    where
        Self: Sized + Message,
    {
        softmetal::buffer(self).length()
    }

    fn contents(&self) -> NonNull<c_void>
    where
        Self: Sized + Message,
    {
        let contents = softmetal::buffer(self).contents().cast();
        NonNull::new(contents).unwrap_or(NonNull::dangling())
    }

    /// Tells that the host wrote a managed buffer. Others need no telling.
    fn didModifyRange(&self, _range: NSRange)
    where
        Self: Sized + Message,
    {
        softmetal::buffer(self);
    }
}
