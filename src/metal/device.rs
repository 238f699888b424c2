//! What can be known about the GPU.

use super::error::MetalError;
use candle_core::{Device, Result};
use candle_metal_kernels::metal::{Device as RawDevice, MetalDeviceType};
use objc2_metal::MTLDevice;
use std::fmt;

/// A description of a Metal device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The vendor's name, such as "Apple M3 Max".
    pub name: String,
    /// The architecture, such as "applegpu_g15s".
    pub architecture: String,
    /// The class of the GPU as told by its architecture.
    pub class: &'static str,
    pub registry_id: u64,
    /// Threads of a threadgroup at most; a kernel's own limit may be lower.
    pub max_threads_per_threadgroup: usize,
    /// Threadgroup memory, in bytes.
    pub max_threadgroup_memory: usize,
    /// The largest buffer, in bytes.
    pub max_buffer_length: usize,
    /// How much memory can be used with good performance, in bytes.
    pub recommended_max_working_set: usize,
    /// How much of it this process uses now, in bytes.
    pub allocated: usize,
    pub has_unified_memory: bool,
}

/// Whether a Metal device can be made. Ask before `Device::new_metal`, which panics where there is none, as on a
/// headless or virtualised Mac.
pub fn is_available() -> bool {
    !RawDevice::all().is_empty()
}

/// What Metal tells about the GPU behind a device.
pub fn device_info(device: &Device) -> Result<DeviceInfo> {
    let Device::Metal(device) = device else {
        let given = format!("device_info was given {:?}", device.location());
        return Err(MetalError::NotAvailable(given).into());
    };
    let device = device.metal_device();
    let raw: &objc2::runtime::ProtocolObject<dyn MTLDevice> = device.as_ref();
    Ok(DeviceInfo {
        name: raw.name().to_string(),
        architecture: device.architecture_name(),
        class: match device.device_type() {
            MetalDeviceType::Phone => "phone",
            MetalDeviceType::BasePro => "base or Pro",
            MetalDeviceType::Max => "Max",
            MetalDeviceType::Ultra => "Ultra",
            MetalDeviceType::Medium => "unknown",
        },
        registry_id: device.registry_id(),
        max_threads_per_threadgroup: raw.maxThreadsPerThreadgroup().width,
        max_threadgroup_memory: raw.maxThreadgroupMemoryLength(),
        max_buffer_length: raw.maxBufferLength(),
        recommended_max_working_set: device.recommended_max_working_set_size(),
        allocated: device.current_allocated_size(),
        has_unified_memory: raw.hasUnifiedMemory(),
    })
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes >> 20;
        writeln!(
            f,
            "{} ({}, class {})",
            self.name, self.architecture, self.class
        )?;
        writeln!(
            f,
            "threads per threadgroup  {}",
            self.max_threads_per_threadgroup
        )?;
        writeln!(
            f,
            "threadgroup memory       {} KiB",
            self.max_threadgroup_memory >> 10
        )?;
        writeln!(
            f,
            "largest buffer           {} MiB",
            mib(self.max_buffer_length)
        )?;
        writeln!(
            f,
            "recommended working set  {} MiB",
            mib(self.recommended_max_working_set)
        )?;
        writeln!(f, "allocated now            {} MiB", mib(self.allocated))?;
        write!(
            f,
            "unified memory           {}",
            if self.has_unified_memory { "yes" } else { "no" }
        )
    }
}
