//! `MTLCaptureManager`: there is nothing that could open a capture, so none is made.

use crate::types::MTLCaptureDestination;
use crate::MTLDevice;
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::{NSObject, ProtocolObject};
use objc2_foundation::{NSError, NSURL};

struct Nothing;
impl State for Nothing {}

objc2::class!(
    /// Starts captures.
    MTLCaptureManager: NSObject, Nothing
);

objc2::class!(
    /// What to capture, and where to.
    MTLCaptureDescriptor: NSObject, Nothing
);

impl MTLCaptureManager {
    pub unsafe fn sharedCaptureManager() -> Retained<Self> {
        object::new(Nothing)
    }

    pub fn startCaptureWithDescriptor_error(
        &self,
        _descriptor: &MTLCaptureDescriptor,
    ) -> Result<(), Retained<NSError>> {
        const NOT_SUPPORTED: isize = 1;
        let text = "softmetal makes no captures; SOFTMETAL_TRACE=file.json lists all dispatches";
        Err(NSError::describe("MTLCaptureError", NOT_SUPPORTED, text))
    }

    pub fn stopCapture(&self) {}
}

impl MTLCaptureDescriptor {
    pub fn new() -> Retained<Self> {
        object::new(Nothing)
    }

    pub fn setDestination(&self, _destination: MTLCaptureDestination) {}

    pub fn set_capture_device(&self, _device: &ProtocolObject<dyn MTLDevice>) {}

    pub fn setOutputURL(&self, _output_url: Option<&NSURL>) {}
}
