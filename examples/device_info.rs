//! What Candle and this crate see of the GPU.
//!
//!     cargo run --features metal --example device_info

#[cfg(feature = "metal")]
fn main() -> candle_core::Result<()> {
    use candle_core::Device;
    use candle_fused::metal;

    if !metal::is_available() {
        println!("No Metal device here: ops run on the CPU.");
        return Ok(());
    }
    let device = Device::new_metal(0)?;
    println!("{}", metal::device_info(&device)?);
    let mps = metal::mps::is_supported(&device);
    println!(
        "performance shaders      {}",
        if mps { "yes" } else { "no" }
    );
    metal::precompile(&device)?;
    println!(
        "kernel libraries         {} compiled",
        metal::cache_stats().libraries
    );
    Ok(())
}

#[cfg(not(feature = "metal"))]
fn main() {
    println!("Built without the `metal` feature: ops run on the CPU.");
    println!("On a Mac: cargo run --features metal --example device_info");
}
