//! The Metal host layer: compile options, kernel cache, launches.
//!
//! Kernels are compiled from source when first used, by [`Options`] that apply to the whole process, and kept for its
//! life. [`precompile`] does it ahead of time:
//!
//! ```no_run
//! # fn main() -> candle_core::Result<()> {
//! use candle_core::Device;
//! use candle_fused::metal;
//!
//! let device = if metal::is_available() { Device::new_metal(0)? } else { Device::Cpu };
//! metal::precompile(&device)?;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    not(feature = "metal"),
    allow(
        dead_code,
        unused_imports,
        reason = "without the feature only tests of the pure parts are built"
    )
)]

// What only computes has no need of a device: its tests run on every machine.
pub(crate) mod broadcast;
mod error;
pub(crate) mod grid;
#[cfg(test)]
pub(crate) mod mirror;
pub mod mps;
pub(crate) mod options;
pub(crate) mod sources;

#[cfg(feature = "metal")]
mod device;
#[cfg(feature = "metal")]
pub(crate) mod elementwise;
#[cfg(feature = "metal")]
mod images;
#[cfg(feature = "metal")]
mod in_place;
#[cfg(feature = "metal")]
mod launch;
#[cfg(feature = "metal")]
mod library;
#[cfg(feature = "metal")]
pub(crate) mod matmul;
#[cfg(feature = "metal")]
mod operand;
#[cfg(feature = "metal")]
mod output;
#[cfg(feature = "metal")]
mod rows;
#[cfg(all(feature = "metal", test))]
mod tests;

pub use error::MetalError;
pub use options::{options, set_options, LanguageVersion, Options};

#[cfg(feature = "metal")]
pub use {
    device::{device_info, is_available, DeviceInfo},
    library::{cache_stats, clear_cache, precompile, CacheStats},
};
#[cfg(feature = "metal")]
pub(crate) use {
    images::{image_strides, pair, WindowParams},
    in_place::InPlace,
    launch::Launch,
    operand::{aligned4, alloc, dtype_name, finish, upload, Operand, Spread},
    output::{build, build_like, update},
    rows::{aligned_rows, row_grid, RowOperand, RowStrides, SIMD_COLS},
};
