//! The devices that every test runs on.

use candle_core::Device;
use std::sync::OnceLock;

/// The CPU, and Metal where the crate has it and a device can be made.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| [Device::Cpu].into_iter().chain(metal()).collect())
}

fn metal() -> Option<Device> {
    // `new_metal` panics where there is no device.
    #[cfg(feature = "metal")]
    if candle_fused::metal::is_available() {
        return Device::new_metal(0).ok();
    }
    None
}
