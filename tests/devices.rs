//! The devices that every test runs on.
//!
//! `CANDLE_FUSED_TEST_DEVICES=cpu` or `metal` leaves out the other.

use candle_core::Device;
use std::sync::OnceLock;

/// The CPU, and Metal where the crate has it and a device can be made.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(
        || match std::env::var("CANDLE_FUSED_TEST_DEVICES").as_deref() {
            Ok("cpu") => vec![Device::Cpu],
            Ok("metal") => vec![metal().expect("a Metal device")],
            Ok(other) => panic!("CANDLE_FUSED_TEST_DEVICES is cpu or metal, not {other}"),
            Err(_) => [Device::Cpu].into_iter().chain(metal()).collect(),
        },
    )
}

fn metal() -> Option<Device> {
    // `new_metal` panics where there is no device.
    #[cfg(feature = "metal")]
    if candle_fused::metal::is_available() {
        return Device::new_metal(0).ok();
    }
    None
}
