//! Metal Performance Shaders: Apple's own matrix kernels, on Candle's tensors.
//!
//! [`matmul`], [`softmax`] and [`activation`] are ops like any other, with gradients, for f32 and f16 on Metal. Each waits
//! for the GPU twice, since Candle 0.11 doesn't hand out its command buffer: that costs 2 to 4 ms, whatever the size.
//! [`matmul_auto`] is for products of which only some are large enough: it leaves the others to Candle.
//!
//! The kernels are [`Step`]s, which can be encoded into any command buffer: [`Multiplication`],
//! [`VectorMultiplication`], [`SoftMax`] and [`Neuron`], on [`Matrix`] ranges of buffers. [`visit`] runs any number of them
//! between two commands of Candle's, in order where they depend on each other, for one pair of waits. In a CustomOp:
//!
//! ```no_run
//! # use candle_core::backend::BackendStorage;
//! use candle_core::{DType, MetalStorage, Result};
//! use candle_fused::metal::mps::{visit, Matrix, Multiplication, SoftMax};
//!
//! /// softmax(q·kᵀ) for q and k of 512×64
//! fn scores(q: &MetalStorage, k: &MetalStorage) -> Result<MetalStorage> {
//!     let device = q.device();
//!     let buffer = || device.new_buffer(512 * 512, DType::F32, "scores");
//!     let (products, out) = (buffer()?, buffer()?);
//!     visit(device, "scores", |visit| {
//!         let input = |buffer| Matrix::new(buffer, DType::F32, 512, 64);
//!         let scores = Matrix::new(&products, DType::F32, 512, 512);
//!         let result = Matrix::new(&out, DType::F32, 512, 512);
//!         visit.step(&Multiplication {
//!             transpose_right: true,
//!             ..Multiplication::new(input(q.buffer()), input(k.buffer()), scores)
//!         })?;
//!         visit.step(&SoftMax { input: scores, result })
//!     })?;
//!     Ok(MetalStorage::new(out, device.clone(), 512 * 512, DType::F32))
//! }
//! ```
//!
//! Within this crate a kernel of our own is a step too: a `Launch` with `on(grid)` in the place of `run(grid)`.

// What only computes has no need of a device: its tests run on every machine.
pub(crate) mod order;
mod policy;
pub(crate) mod stored;

#[cfg(feature = "metal")]
mod kernels;
#[cfg(feature = "metal")]
mod matrix;
#[cfg(feature = "metal")]
mod ops;
#[cfg(feature = "metal")]
mod steps;
#[cfg(all(feature = "metal", test))]
mod tests;
#[cfg(feature = "metal")]
mod visit;

pub use policy::Product;

#[cfg(feature = "metal")]
pub(super) use kernels::{clear, stats};
#[cfg(feature = "metal")]
pub use objc2_metal_performance_shaders::MPSCNNNeuronType;
#[cfg(feature = "metal")]
pub use {
    matrix::Matrix,
    ops::{activation, matmul, matmul_auto, softmax, MpsActivation, MpsMatmul, MpsSoftmax},
    steps::{Multiplication, Neuron, NeuronFunction, SoftMax, Step, VectorMultiplication},
    visit::{is_supported, visit, Visit},
};
