//! One dispatch of one kernel. Nothing else in the crate touches Candle's encoder (but for the call of Candle's own GEMM), so
//! hazards are right in one place.

use super::error::MetalError;
use super::grid::Grid;
use super::library;
use super::operand::Operand;
use super::sources::Source;
use candle_core::{MetalDevice, Result};
use candle_metal_kernels::metal::{Buffer, ComputePipeline};
use objc2_metal::MTLSize;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Binds arguments in the order of their `[[buffer(n)]]` and dispatches.
///
/// Candle's encoder runs dispatches concurrently on untracked buffers; it inserts barriers by what is bound as input and
/// as output for each dispatch. Whatever a kernel writes must therefore be bound by `output` or `inout`.
pub(crate) struct Launch<'a> {
    device: &'a MetalDevice,
    pub(super) kernel: String,
    pub(super) pipeline: ComputePipeline,
    pub(super) bindings: Vec<Binding<'a>>,
}

pub(super) enum Binding<'a> {
    Input(&'a Buffer, usize),
    Output(&'a Buffer, usize),
    Bytes {
        data: NonNull<c_void>,
        len: usize,
        lives: PhantomData<&'a ()>,
    },
}

impl<'a> Launch<'a> {
    pub(crate) fn new(
        device: &'a MetalDevice,
        source: &'static Source,
        kernel: &str,
    ) -> Result<Self> {
        let pipeline = library::pipeline(device.metal_device(), source, kernel)?;
        Ok(Self {
            device,
            kernel: kernel.to_string(),
            pipeline,
            bindings: Vec::with_capacity(8),
        })
    }

    /// The next argument, read.
    pub(crate) fn input(self, operand: &'a Operand<'_>) -> Self {
        self.bind(Binding::Input(operand.buffer(), operand.offset()))
    }

    /// The next argument, read; where there is none, another one's buffer stands in for what the kernel won't read.
    pub(crate) fn input_or(self, operand: Option<&'a Operand<'_>>, other: &'a Operand<'_>) -> Self {
        match operand {
            Some(operand) => self.input(operand),
            None => self.input_buffer(other.buffer()),
        }
    }

    /// The next argument, read: what an earlier launch has written.
    pub(crate) fn input_buffer(self, buffer: &'a Buffer) -> Self {
        self.bind(Binding::Input(buffer, 0))
    }

    /// The next argument, written.
    pub(crate) fn output(self, buffer: &'a Buffer) -> Self {
        self.bind(Binding::Output(buffer, 0))
    }

    /// The next argument, written from a byte offset on.
    pub(crate) fn output_at(self, buffer: &'a Buffer, offset: usize) -> Self {
        self.bind(Binding::Output(buffer, offset))
    }

    /// The next argument, read and written. An output binding orders both.
    pub(crate) fn inout(self, operand: &'a Operand<'_>) -> Self {
        self.overwrite(operand.buffer(), operand.offset())
    }

    /// The next argument, written from a byte offset on, in a tensor that is there already.
    pub(crate) fn overwrite(self, buffer: &'a Buffer, offset: usize) -> Self {
        // Whoever had the buffer before may have labelled it with a length.
        if cfg!(debug_assertions) {
            buffer.set_label("");
        }
        self.bind(Binding::Output(buffer, offset))
    }

    /// The next argument, a `#[repr(C)]` struct that mirrors one of the kernel's.
    pub(crate) fn params<P: Copy + 'static>(self, params: &'a P) -> Self {
        const {
            assert!(
                size_of::<P>() > 0 && size_of::<P>() < 4096,
                "setBytes takes 1 to 4095 bytes"
            )
        };
        let data = NonNull::from(params).cast();
        self.bind(Binding::Bytes {
            data,
            len: size_of::<P>(),
            lives: PhantomData,
        })
    }

    /// Encodes the dispatch. Candle's device is locked only in here, so outputs can be allocated up to this call.
    pub(crate) fn run(self, grid: Grid) -> Result<()> {
        let grid = self.fit(grid)?;
        let guard = self.device.command_encoder()?;
        let encoder = guard.as_ref();
        encoder.set_compute_pipeline_state(&self.pipeline);
        for (index, binding) in self.bindings.iter().enumerate() {
            match *binding {
                Binding::Input(buffer, offset) => {
                    encoder.set_input_buffer(index, Some(buffer), offset)
                }
                Binding::Output(buffer, offset) => {
                    encoder.set_output_buffer(index, Some(buffer), offset)
                }
                Binding::Bytes { data, len, .. } => {
                    encoder.set_bytes_directly(index, len, data.as_ptr())
                }
            }
        }
        encoder.dispatch_thread_groups(size(grid.groups), size(grid.threads));
        Ok(())
    }

    /// The grid within the limits of the pipeline.
    pub(super) fn fit(&self, grid: Grid) -> Result<Grid> {
        let invalid = |reason| MetalError::InvalidDispatch {
            kernel: self.kernel.clone(),
            reason,
        };
        let limit = self.pipeline.max_total_threads_per_threadgroup();
        Ok(grid.fit(limit).map_err(invalid)?)
    }

    fn bind(mut self, binding: Binding<'a>) -> Self {
        self.bindings.push(binding);
        self
    }
}

pub(super) fn size([width, height, depth]: [usize; 3]) -> MTLSize {
    MTLSize {
        width,
        height,
        depth,
    }
}
