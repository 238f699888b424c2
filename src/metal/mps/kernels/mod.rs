//! The kernels as steps, encoded into whatever command buffer is given.
//!
//! Each checks its arguments first: a wrong one is an error here, where Metal Performance Shaders end the process.

mod dispatch;
mod multiplication;
mod neuron;
mod softmax;

pub use multiplication::{Multiplication, VectorMultiplication};
pub use neuron::{Neuron, NeuronFunction};
pub use softmax::SoftMax;

use super::order::Access;
use candle_core::Result;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLCommandBuffer;

/// Something that a command buffer can do with buffers that live for `'a`.
pub trait MpsKernel<'a> {
    /// Adds the step to a command buffer that has no open encoder. Candle's buffers are untracked: nothing orders this
    /// step against others that touch them, unless it is a step of a [`MpsSession`](super::MpsSession).
    fn encode(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<()>;

    #[doc(hidden)]
    fn accesses(&self) -> Vec<Access>;
}
