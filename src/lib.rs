//! Fused, trainable ops and drop-in layers for Candle, on the CPU and on Metal.
//!
//! - [`nn`]: `candle_nn` with faster layers that keep their gradients; a model changes its `use` line.
//! - [`ops`]: the ops as functions and CustomOps, each with the composed reference it replaces.
//! - [`FusedTensorOps`]: the same ops as methods on a tensor, in place too.
//! - `metal` (with the feature of that name): compile options, warm-up, device information, and Metal Performance Shaders.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_fused::ops::{self, Act};
//!
//! let x = Tensor::randn(0f32, 1., (4, 64), &Device::Cpu)?;
//! let weight = Tensor::ones(64, x.dtype(), x.device())?;
//! let y = ops::rms_norm(&x, Some(&weight), 1e-5)?;
//! let y = ops::activation(&y, Act::Silu)?;
//! assert_eq!(y.dims(), x.dims());
//! # candle_core::Result::Ok(())
//! ```
//!
//! f32, f16 and bf16 of any layout are accepted; 16-bit types are computed in f32. Devices and dtypes
//! without a kernel here (CUDA, f64) run the composed reference.

mod apply;
mod check;
mod cpu;
pub mod ext;
mod held;
mod layout;
#[cfg(any(feature = "metal", test))]
pub mod metal;
pub mod nn;
pub mod ops;

pub use ext::FusedTensorOps;
