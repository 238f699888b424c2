//! What a launch writes: a new storage, or a tensor in place.

use super::{alloc, finish, InPlace, Operand};
use crate::op::on_metal::{Arg, ArgMut, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;

/// A storage of `count` elements, of x's dtype and on its device, which `launch` writes. It is not called where there is
/// nothing to write.
pub(crate) fn build(
    x: &MetalStorage,
    count: usize,
    launch: impl FnOnce(&Buffer) -> Result<()>,
) -> Result<MetalStorage> {
    let out = alloc(x.device(), count, x.dtype())?;
    if count > 0 {
        launch(&out)?;
    }
    Ok(finish(out, x.device(), count, x.dtype()))
}

/// As [`build`], of x's shape.
pub(crate) fn build_like((x, l): Arg, launch: impl FnOnce(&Buffer) -> Result<()>) -> OpResult {
    let out = build(x, l.shape().elem_count(), launch)?;
    Ok((out, l.shape().clone()))
}

/// Overwrites x: `launch` gets its storage, and an operand whose elements are in their places for
/// [`Launch::inout`](super::Launch::inout). It is not called where there is nothing to write.
pub(crate) fn update(
    (x, l): ArgMut,
    launch: impl FnOnce(&MetalStorage, &Operand<'_>) -> Result<()>,
) -> Result<()> {
    if l.shape().elem_count() == 0 {
        return Ok(());
    }
    let target = InPlace::new(x, l)?;
    launch(x, target.operand())?;
    target.commit()
}
