//! A Metal device in software.
//!
//! The objects of Metal's compute API in plain Rust: a [`Device`] makes [`Buffer`]s, [`Library`]s of MSL source and
//! [`Queue`]s; a [`CommandBuffer`] takes what its encoders write into it and runs it on the thread of its queue once
//! it is committed. Kernels are compiled by `softmetal-msl` and run by `softmetal-exec`; this crate does what Metal's
//! host side does, and what its validation layer checks, and more: see [`kind`] for what it can find.
//!
//! Programs use it through the look-alike crates next to it. Tests ask it with [`findings`], [`take_findings`] and
//! [`counters`].

mod buffer;
mod command;
mod command_buffer;
mod counters;
mod coverage;
mod device;
mod encoder;
mod error;
mod event;
mod finding;
mod hazard;
mod library;
pub mod limits;
pub mod mps;
mod order;
mod queue;
mod ranges;
mod run;
mod settings;
mod trace;
mod validate;

pub use buffer::{Buffer, BufferOptions, Storage};
pub use command_buffer::{CommandBuffer, Handler, Status};
pub use counters::{Counters, Record, Recorder, Totals};
pub use device::Device;
pub use encoder::{BlitEncoder, ComputeEncoder};
pub use error::Error;
pub use event::Event;
pub use finding::{kind, Finding, Severity};
pub use library::{CompileOptions, Constant, Function, Library, MathMode, Pipeline, Version};
pub use order::Fence;
pub use queue::Queue;
pub use settings::{Notes, Settings};

/// What was found on the device of this process so far.
pub fn findings() -> Vec<Finding> {
    Device::system().findings()
}

/// The same, and forgets it.
pub fn take_findings() -> Vec<Finding> {
    Device::system().take_findings()
}

/// The work of all dispatches on the device of this process so far.
pub fn counters() -> Totals {
    Device::system().totals()
}

/// Keeps the work of each dispatch on the device of this process from now on.
pub fn start_recording() {
    Device::system().recorder().start();
}

/// The work of each dispatch since [`start_recording`].
pub fn stop_recording() -> Vec<Record> {
    Device::system().recorder().stop()
}
