//! The devices that every test runs on.
//!
//! `CANDLE_FUSED_TEST_DEVICES=cpu` or `metal` leaves out the other.

use candle_core::Device;

thread_local! {
    static DEVICES: &'static [Device] = Box::leak(make().into_boxed_slice());
}

/// The CPU, and Metal where the crate has it and a device can be made.
///
/// Each test has devices of its own: where threads share one, Candle's `synchronize` on Metal forgets the fences of what
/// another thread has just encoded.
pub fn devices() -> &'static [Device] {
    DEVICES.with(|devices| *devices)
}

fn make() -> Vec<Device> {
    match std::env::var("CANDLE_FUSED_TEST_DEVICES").as_deref() {
        Ok("cpu") => vec![Device::Cpu],
        Ok("metal") => vec![metal().expect("a Metal device")],
        Ok(other) => panic!("CANDLE_FUSED_TEST_DEVICES is cpu or metal, not {other}"),
        Err(_) => [Device::Cpu].into_iter().chain(metal()).collect(),
    }
}

fn metal() -> Option<Device> {
    // `new_metal` panics where there is no device.
    #[cfg(feature = "metal")]
    if candle_fused::metal::is_available() {
        return Device::new_metal(0).ok();
    }
    None
}
