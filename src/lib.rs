//! Fused, trainable ops and drop-in layers for Candle, on the CPU and on Metal.
//!
//! One way in for each user:
//!
//! - **Models**: [`nn`] is `candle_nn` with faster layers that keep their gradients. Change `use candle_nn::…` to
//!   `use candle_fused::nn::…`.
//! - **Own layers**: [`ops`] has each op as a function, `ops::rms_norm(&x, Some(&weight), eps)`.
//! - **Chains of methods**: [`FusedTensorOps`] has methods for ops that Candle's `Tensor` has none for or loses the gradients
//!   of, and for in-place forms, `x.rms_norm_inplace(None, eps)`.
//! - **Graphs of CustomOps**: each op is one public struct, `x.apply_op2(&weight, ops::RmsNorm { eps })`.
//!
//! With the feature `metal`, the module `metal` has compile options, warm-up, device information and Metal Performance
//! Shaders.
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

mod act;
mod check;
mod cpu;
pub mod ext;
mod layout;
mod memory;
#[cfg(any(feature = "metal", test))]
pub mod metal;
pub mod nn;
mod op;
pub mod ops;
mod philox;
pub mod quant;

pub use ext::FusedTensorOps;
pub use memory::keep_freed_memory;
#[doc(hidden)]
pub use ops::reference;
