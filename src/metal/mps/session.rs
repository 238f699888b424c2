//! The bridge between Candle's stream of commands and Metal Performance Shaders.
//!
//! A shader needs the command buffer itself, which Candle 0.11 doesn't hand out. So it runs on a queue of ours, and the
//! host keeps the order: it waits for Candle's commands before, and for ours after. The day Candle hands out its command
//! buffer, only this file changes.

use super::kernels::MpsKernel;
use super::order::Order;
use crate::metal::error::MetalError;
use candle_core::{MetalDevice, Result};
use candle_metal_kernels::metal::{Buffer, Device};
use objc2::rc::{autoreleasepool, Retained};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandQueue, MTLDevice, MTLEvent};
use objc2_metal_performance_shaders::MPSSupportsMTLDevice;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

type Queue = Retained<ProtocolObject<dyn MTLCommandQueue>>;

/// By the registry id of the device.
static QUEUES: LazyLock<Mutex<HashMap<u64, Queue>>> = LazyLock::new(Mutex::default);

/// Steps that the GPU does between two commands of Candle's, made by [`session`].
///
/// A step that touches what an earlier one has written, or writes what an earlier one has read, waits for it; others may
/// run at the same time. All buffers outlive the session, so that Candle's pool cannot give them to anybody else meanwhile.
pub struct MpsSession<'a> {
    commands: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    order: Order,
    /// For waits within the command buffer, and how many there were.
    event: Option<Retained<ProtocolObject<dyn MTLEvent>>>,
    waits: u64,
    buffers: PhantomData<&'a Buffer>,
}

/// Runs the steps that `encode` adds to the session, after all that Candle's device was told to do so far, and returns when
/// they are done. Commands that fail name `op`, a step that is refused names its shader.
///
/// Outputs and scratch have to be allocated before: a buffer that comes from Candle's pool during a session may still be in
/// use by commands that another thread has encoded. A session is one command buffer, and the system ends one that takes
/// seconds: longer work is for several sessions.
pub fn session<'a>(
    device: &MetalDevice,
    op: &'static str,
    encode: impl FnOnce(&mut MpsSession<'a>) -> Result<()>,
) -> Result<()> {
    let queue = queue(device.metal_device())?;
    device.flush_and_wait_current()?;
    let failed = |reason| MetalError::CommandBufferFailed { op, reason };
    autoreleasepool(|_| {
        let commands = queue.commandBuffer();
        let commands = commands.ok_or_else(|| failed("there is no command buffer".to_string()))?;
        let mut session = MpsSession {
            commands,
            order: Order::default(),
            event: None,
            waits: 0,
            buffers: PhantomData,
        };
        encode(&mut session)?;
        let MpsSession { commands, .. } = session;
        commands.commit();
        commands.waitUntilCompleted();
        if commands.status() == MTLCommandBufferStatus::Completed {
            return Ok(());
        }
        // Metal may ignore whatever else comes from a queue that has failed.
        queues().remove(&device.metal_device().registry_id());
        let error = commands.error();
        let reason = error.map_or("no reason given".to_string(), |error| error.to_string());
        Err(failed(reason).into())
    })
}

impl<'a> MpsSession<'a> {
    /// Adds a kernel.
    pub fn encode(&mut self, kernel: &impl MpsKernel<'a>) -> Result<()> {
        if self.order.must_wait(kernel.accesses()) {
            self.wait()?;
        }
        kernel.encode(&self.commands)
    }

    /// Lets all further steps wait for those before. Metal orders nothing by itself here, for Candle's buffers are
    /// untracked.
    fn wait(&mut self) -> Result<()> {
        let event = match self.event.take() {
            Some(event) => event,
            None => self.commands.device().newEvent().ok_or_else(|| {
                MetalError::NotAvailable("the device could not make an event".to_string())
            })?,
        };
        self.waits += 1;
        self.commands.encodeSignalEvent_value(&event, self.waits);
        self.commands.encodeWaitForEvent_value(&event, self.waits);
        self.event = Some(event);
        Ok(())
    }
}

/// Whether Metal Performance Shaders run on a device.
pub fn is_supported(device: &candle_core::Device) -> bool {
    match device {
        candle_core::Device::Metal(device) => supports(device.metal_device()),
        _ => false,
    }
}

fn supports(device: &Device) -> bool {
    // SAFETY: nothing is asked of the caller.
    unsafe { MPSSupportsMTLDevice(Some(device.as_ref())) }
}

fn queue(device: &Device) -> Result<Queue> {
    let id = device.registry_id();
    if let Some(queue) = queues().get(&id) {
        return Ok(queue.clone());
    }
    if !supports(device) {
        let what = "Metal Performance Shaders don't run on this device".to_string();
        return Err(MetalError::NotAvailable(what).into());
    }
    let queue = device
        .new_command_queue()
        .map_err(candle_core::MetalError::from)?;
    Ok(queues().entry(id).or_insert(queue).clone())
}

fn queues() -> MutexGuard<'static, HashMap<u64, Queue>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}
