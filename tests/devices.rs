//! The devices that every test runs on.

use candle_core::Device;
use std::sync::OnceLock;

/// The CPU, and Metal where the crate has it and a device can be made.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let mut devices = vec![Device::Cpu];
        if cfg!(feature = "metal") {
            devices.extend(Device::new_metal(0));
        }
        devices
    })
}
