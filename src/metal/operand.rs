//! Tensors as kernels want them: a buffer, a byte offset, and a rule for the index.

use super::broadcast::{Broadcast, Rows};
use crate::layout::MatrixLayout;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Error, Layout, MetalDevice, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// A buffer of the storage itself, or of a copy. A copy has to be held as the `Arc` that Candle's pool counts:
/// otherwise the pool would hand the same memory out again, for the output of the very launch that reads it.
enum BufferOwner<'a> {
    Borrowed(&'a Buffer),
    Copied(Arc<Buffer>),
}

/// An argument of a kernel. Element `i` of its shape is `buffer[(i / repeat) % period]` from `offset` on.
pub(crate) struct Operand<'a> {
    buffer: BufferOwner<'a>,
    offset: usize,
    count: usize,
    period: usize,
    repeat: usize,
    dtype: DType,
}

impl<'a> Operand<'a> {
    /// Every element in its place: `period == count`. Other layouts are copied.
    pub(crate) fn contiguous(storage: &'a MetalStorage, layout: &Layout) -> Result<Self> {
        let count = layout.shape().elem_count();
        Self::dense(storage, layout, count, 1)
    }

    /// Read with `(i / repeat) % period`: dims broadcast at either end are not materialised.
    pub(crate) fn broadcast(storage: &'a MetalStorage, layout: &Layout) -> Result<Self> {
        let Broadcast { core, repeat, .. } = Broadcast::new(layout);
        Self::dense(storage, &core, layout.shape().elem_count(), repeat)
    }

    /// Rows where they lie, and the dims and strides (in elements) that lead to them. Dims that are broadcast are not
    /// materialised; only rows whose own elements are apart are copied.
    pub(crate) fn rows(
        storage: &'a MetalStorage,
        layout: &Layout,
    ) -> Result<(Self, Vec<(usize, usize)>)> {
        let Rows { copied, dims } = Rows::new(layout);
        let (buffer, offset) = match copied {
            None => (
                BufferOwner::Borrowed(storage.buffer()),
                layout.start_offset() * storage.dtype().size_in_bytes(),
            ),
            Some(core) => (BufferOwner::Copied(copy(storage, &core)?), 0),
        };
        let count = layout.shape().elem_count();
        Ok((Self::whole(buffer, offset, count, storage.dtype()), dims))
    }

    /// What a launch has left: every element in its place.
    pub(crate) fn fresh(buffer: Arc<Buffer>, count: usize, dtype: DType) -> Operand<'static> {
        Operand::whole(BufferOwner::Copied(buffer), 0, count, dtype)
    }

    /// The tensor where it lies, for a kernel that knows its strides.
    pub(crate) fn strided(storage: &'a MetalStorage, layout: &Layout) -> Self {
        let count = layout.shape().elem_count();
        // A view of nothing may begin past the end.
        let start = if count == 0 { 0 } else { layout.start_offset() };
        let (buffer, dtype) = (BufferOwner::Borrowed(storage.buffer()), storage.dtype());
        Self::whole(buffer, start * dtype.size_in_bytes(), count, dtype)
    }

    /// The same operand, borrowed.
    pub(crate) fn reborrow(&self) -> Operand<'_> {
        Operand {
            buffer: BufferOwner::Borrowed(self.buffer()),
            ..*self
        }
    }

    /// As many elements in the buffer as the shape has.
    fn whole(buffer: BufferOwner<'a>, offset: usize, count: usize, dtype: DType) -> Self {
        Self {
            buffer,
            offset,
            count,
            period: count,
            repeat: 1,
            dtype,
        }
    }

    /// A matrix where it lies, and its strides. Copied only where no single stride leads from row to row.
    pub(crate) fn matrix(
        storage: &'a MetalStorage,
        layout: &Layout,
    ) -> Result<(Self, MatrixLayout)> {
        Ok(match MatrixLayout::new(layout) {
            Some(matrix) => (Self::strided(storage, layout), matrix),
            None => (
                Self::contiguous(storage, layout)?,
                MatrixLayout::of_shape(layout.shape()),
            ),
        })
    }

    fn dense(
        storage: &'a MetalStorage,
        core: &Layout,
        count: usize,
        repeat: usize,
    ) -> Result<Self> {
        let (buffer, offset) = match core.contiguous_offsets() {
            Some((start, _)) => (
                BufferOwner::Borrowed(storage.buffer()),
                start * storage.dtype().size_in_bytes(),
            ),
            None => (BufferOwner::Copied(copy(storage, core)?), 0),
        };
        let period = core.shape().elem_count();
        Ok(Self {
            buffer,
            offset,
            count,
            period,
            repeat,
            dtype: storage.dtype(),
        })
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        match &self.buffer {
            BufferOwner::Borrowed(buffer) => buffer,
            BufferOwner::Copied(buffer) => buffer,
        }
    }

    /// Where the elements begin, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Elements of the shape, broadcast dims included.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether vectors of `bytes` bytes may be loaded from the first element on. Buffers themselves begin at a page.
    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        self.offset.is_multiple_of(bytes)
    }
}

/// Fresh memory for an output; its content is whatever the pool left there.
pub(crate) fn alloc(device: &MetalDevice, count: usize, dtype: DType) -> Result<Arc<Buffer>> {
    let buffer = device
        .new_buffer_builder()
        .with_size_for(count, dtype)
        .build()?;
    // The pool rounds lengths up, so that a store past the output stays inside. softmetal takes the true length from here.
    if cfg!(debug_assertions) {
        buffer.set_label(&format!("used:{}", count * dtype.size_in_bytes()));
    }
    Ok(buffer)
}

/// A buffer with these elements, for a table that a kernel reads.
pub(crate) fn upload<T>(device: &MetalDevice, data: &[T]) -> Result<Arc<Buffer>> {
    device.new_buffer_builder().with_data(data).build()
}

/// An output that a launch has written, as the storage that an op returns.
pub(crate) fn finish(
    buffer: Arc<Buffer>,
    device: &MetalDevice,
    count: usize,
    dtype: DType,
) -> MetalStorage {
    MetalStorage::new(buffer, device.clone(), count, dtype)
}

/// The last part of a kernel's name.
pub(crate) fn dtype_name(dtype: DType, op: &'static str) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::F16 => Ok("f16"),
        DType::BF16 => Ok("bf16"),
        other => Err(Error::UnsupportedDTypeForOp(other, op).bt()),
    }
}

fn copy(storage: &MetalStorage, layout: &Layout) -> Result<Arc<Buffer>> {
    let device = storage.device();
    let count = layout.shape().elem_count();
    let buffer = alloc(device, count, storage.dtype())?;
    let mut copy = finish(buffer.clone(), device, count, storage.dtype());
    storage.copy_strided_src(&mut copy, 0, layout)?;
    Ok(buffer)
}

/// Whether a kernel may read all operands four elements at a time, as its `aligned` parameter.
pub(crate) fn aligned4(operands: &[&Operand]) -> u32 {
    let aligned = |o: &&Operand| o.is_aligned(4 * o.dtype().size_in_bytes());
    u32::from(operands.iter().all(aligned))
}

/// `Spread` of common.metal: how a kernel reads a broadcast operand.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    period: u64,
    repeat: u64,
}

impl From<&Operand<'_>> for Spread {
    fn from(operand: &Operand) -> Self {
        Self {
            period: operand.period as u64,
            repeat: operand.repeat as u64,
        }
    }
}
