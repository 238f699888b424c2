//! Metal Performance Shaders: Apple's own matrix kernels, on Candle's tensors.
//!
//! The ops built on them are in `ops::mps`. This is the layer below: Apple's kernels as [`MpsKernel`]s, which can be encoded
//! into any command buffer: [`Multiplication`], [`VectorMultiplication`], [`SoftMax`] and [`Neuron`], on [`Matrix`] ranges of
//! buffers. [`session()`] runs any number of them between two commands of Candle's, in order where they depend on each other, for one pair of waits. In a CustomOp:
//!
//! ```no_run
//! # use candle_core::backend::BackendStorage;
//! use candle_core::{DType, MetalStorage, Result};
//! use candle_fused::metal::mps::{session, Matrix, Multiplication, SoftMax};
//!
//! /// softmax(q·kᵀ) for q and k of 512×64
//! fn scores(q: &MetalStorage, k: &MetalStorage) -> Result<MetalStorage> {
//!     let device = q.device();
//!     let buffer = || device.new_buffer(512 * 512, DType::F32, "scores");
//!     let (products, out) = (buffer()?, buffer()?);
//!     session(device, "scores", |session| {
//!         let input = |buffer| Matrix::new(buffer, DType::F32, 512, 64);
//!         let scores = Matrix::new(&products, DType::F32, 512, 512);
//!         let result = Matrix::new(&out, DType::F32, 512, 512);
//!         session.encode(&Multiplication {
//!             transpose_right: true,
//!             ..Multiplication::new(input(q.buffer()), input(k.buffer()), scores)
//!         })?;
//!         session.encode(&SoftMax { input: scores, result })
//!     })?;
//!     Ok(MetalStorage::new(out, device.clone(), 512 * 512, DType::F32))
//! }
//! ```
//!
//! Within this crate a kernel of our own can be encoded there too: a `Launch` with `on(grid)` in the place of `run(grid)`.

// What only computes has no need of a device: its tests run on every machine.
pub(crate) mod order;
mod policy;
pub(crate) mod stored;

#[cfg(feature = "metal")]
mod cache;
#[cfg(feature = "metal")]
mod kernels;
#[cfg(feature = "metal")]
mod matrix;
#[cfg(feature = "metal")]
mod session;

pub use policy::Product;
pub(crate) use policy::{serves, Way};

#[cfg(feature = "metal")]
pub(super) use cache::{clear, stats};
#[cfg(feature = "metal")]
pub use objc2_metal_performance_shaders::MPSCNNNeuronType;
#[cfg(feature = "metal")]
pub use {
    kernels::{MpsKernel, Multiplication, Neuron, NeuronFunction, SoftMax, VectorMultiplication},
    matrix::Matrix,
    session::{is_supported, session, MpsSession},
};
