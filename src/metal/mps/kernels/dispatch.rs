//! A kernel of our own, between shaders: so a convolution unfolds a part of the image, multiplies it and finishes the
//! products, part after part (see `ops/conv2d/metal/mps.rs`). What steps refer to outlives the session, params as well as
//! buffers.

use super::MpsKernel;
use crate::metal::grid::Grid;
use crate::metal::launch::{size, Binding, Launch};
use crate::metal::mps::order::Access;
use crate::metal::MetalError;
use candle_core::Result;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder};

/// What [`Launch::run`] would do on Candle's encoder, as a step of a session.
pub(crate) struct Dispatch<'a> {
    launch: Launch<'a>,
    grid: Grid,
}

impl<'a> Launch<'a> {
    pub(crate) fn on(self, grid: Grid) -> Dispatch<'a> {
        Dispatch { launch: self, grid }
    }
}

impl<'a> MpsKernel<'a> for Dispatch<'a> {
    fn encode(&self, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> Result<()> {
        let launch = &self.launch;
        let grid = launch.fit(self.grid)?;
        let encoder = commands.computeCommandEncoder();
        let encoder = encoder.ok_or_else(|| MetalError::InvalidDispatch {
            kernel: launch.kernel.clone(),
            reason: "there is no encoder".to_string(),
        })?;
        encoder.setComputePipelineState(launch.pipeline.as_ref());
        for (index, binding) in launch.bindings.iter().enumerate() {
            // SAFETY: the launch borrows the buffers, and the `len` bytes of the parameters behind `data`.
            unsafe {
                match *binding {
                    Binding::Input(buffer, offset) | Binding::Output(buffer, offset) => {
                        encoder.setBuffer_offset_atIndex(Some(buffer.as_ref()), offset, index)
                    }
                    Binding::Bytes { data, len, .. } => {
                        encoder.setBytes_length_atIndex(data, len, index)
                    }
                }
            }
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(grid.groups), size(grid.threads));
        encoder.endEncoding();
        Ok(())
    }

    /// A launch does not say how far into a buffer its kernel goes, so all of it counts from the offset on.
    fn accesses(&self) -> Vec<Access> {
        let access = |binding: &Binding| {
            let (buffer, offset, writes) = match *binding {
                Binding::Input(buffer, offset) => (buffer, offset, false),
                Binding::Output(buffer, offset) => (buffer, offset, true),
                Binding::Bytes { .. } => return None,
            };
            let raw: &ProtocolObject<dyn MTLBuffer> = buffer.as_ref();
            Some(Access {
                buffer: std::ptr::from_ref(raw).addr(),
                bytes: offset..buffer.length(),
                writes,
            })
        };
        self.launch.bindings.iter().filter_map(access).collect()
    }
}
