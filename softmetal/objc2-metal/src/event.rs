//! `MTLFence`, `MTLEvent` and `MTLSharedEvent`

use crate::device;
use crate::softmetal;
use crate::MTLDevice;
use objc2::rc::Retained;
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::Message;
use objc2_foundation::NSString;
use std::time::Duration;

crate::protocol!(MTLFence, MTLEvent, MTLSharedEvent);

/// Orders the encoders of a queue.
pub unsafe trait MTLFence: NSObjectProtocol + Send + Sync {
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
}

/// Orders the command buffers of different queues.
pub unsafe trait MTLEvent: NSObjectProtocol + Send + Sync {
    fn device(&self) -> Option<Retained<ProtocolObject<dyn MTLDevice>>>
    where
        Self: Sized + Message,
    {
        Some(device::system())
    }

    fn setLabel(&self, _label: Option<&NSString>)
    where
        Self: Sized + Message,
    {
    }
}

/// An event that the host can see and set.
pub unsafe trait MTLSharedEvent: MTLEvent {
    fn signaledValue(&self) -> u64
    where
        Self: Sized + Message,
    {
        softmetal::event(self).value()
    }

    fn setSignaledValue(&self, signaled_value: u64)
    where
        Self: Sized + Message,
    {
        softmetal::event(self).set_value(signaled_value);
    }

    fn waitUntilSignaledValue_timeoutMS(&self, value: u64, milliseconds: u64) -> bool
    where
        Self: Sized + Message,
    {
        softmetal::event(self).wait_for(value, Duration::from_millis(milliseconds))
    }
}
