//! Tensors that an op overwrites.

use super::error::MetalError;
use super::{grid, sources, Launch, Operand};
use crate::layout::collapsed;
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result};

/// Dims that `copy_to_strided` can walk; neighbours with a common stride count as one.
const MAX_DIMS: usize = 8;

/// The target of an in-place op: the tensor itself where it is contiguous, else a copy that [`InPlace::commit`] writes
/// back.
///
/// Candle refuses targets with repeated elements before an op gets to see them.
pub(crate) struct InPlace<'a> {
    storage: &'a MetalStorage,
    layout: &'a Layout,
    operand: Operand<'a>,
}

impl<'a> InPlace<'a> {
    pub(crate) fn new(storage: &'a MetalStorage, layout: &'a Layout) -> Result<Self> {
        Ok(Self {
            storage,
            layout,
            operand: Operand::contiguous(storage, layout)?,
        })
    }

    /// What to launch on, with [`Launch::inout`].
    pub(crate) fn operand(&self) -> &Operand<'a> {
        &self.operand
    }

    /// To be called after the launch.
    pub(crate) fn commit(self) -> Result<()> {
        if self.layout.is_contiguous() {
            return Ok(());
        }
        let size = self.storage.dtype().size_in_bytes();
        let kernel = match size {
            2 => "copy_to_strided_u16",
            4 => "copy_to_strided_u32",
            _ => candle_core::bail!("in-place copy: no kernel for {:?}", self.storage.dtype()),
        };
        let params =
            StridedParams::new(self.layout).map_err(|reason| MetalError::InvalidDispatch {
                kernel: kernel.to_string(),
                reason,
            })?;
        Launch::new(self.storage.device(), &sources::COPY, kernel)?
            .input(&self.operand)
            .overwrite(self.storage.buffer(), self.layout.start_offset() * size)
            .params(&params)
            .run(grid::elementwise(self.operand.count(), 1))
    }
}

/// `StridedParams` of copy.metal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct StridedParams {
    strides: [u64; MAX_DIMS],
    dims: [u32; MAX_DIMS],
    count: u32,
    rank: u32,
}

impl StridedParams {
    pub(super) fn new(layout: &Layout) -> std::result::Result<Self, String> {
        let merged = collapsed(layout);
        if merged.len() > MAX_DIMS {
            return Err(format!(
                "more than {MAX_DIMS} dims of {layout:?} cannot be merged"
            ));
        }
        let narrow =
            |n: usize| u32::try_from(n).map_err(|_| format!("{n} elements are more than 2^32-1"));
        let mut params = Self {
            strides: [0; MAX_DIMS],
            dims: [1; MAX_DIMS],
            count: narrow(layout.shape().elem_count())?,
            rank: merged.len() as u32,
        };
        for (i, (dim, stride)) in merged.into_iter().enumerate() {
            params.dims[i] = narrow(dim)?;
            params.strides[i] = stride as u64;
        }
        Ok(params)
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    StridedParams => "copy" StridedParams { strides, dims, count, rank }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_hold_the_merged_dims() {
        let layout = Layout::contiguous((3, 4, 5)).narrow(1, 1, 2).unwrap();
        let params = StridedParams::new(&layout).unwrap();
        assert_eq!((params.count, params.rank), (30, 2));
        assert_eq!(
            (params.dims[..2].to_vec(), params.strides[..2].to_vec()),
            (vec![3, 10], vec![20, 1])
        );
    }
}
