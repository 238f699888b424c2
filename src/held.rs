//! Tensors that an op holds beside its arguments, as the storages that kernels take.

use crate::check;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Layout, Result, Storage, Tensor};
use std::ops::Deref;

/// The storage of a tensor, locked for reading by the guard `G`.
pub struct Held<'a, G> {
    storage: G,
    layout: &'a Layout,
}

pub fn held(tensor: &Tensor) -> Held<'_, impl Deref<Target = Storage> + '_> {
    let (storage, layout) = tensor.storage_and_layout();
    Held { storage, layout }
}

impl<G: Deref<Target = Storage>> Held<'_, G> {
    pub fn cpu(&self, op: &str) -> Result<(&CpuStorage, &Layout)> {
        match &*self.storage {
            Storage::Cpu(storage) => Ok((storage, self.layout)),
            _ => Err(check::error(
                op,
                "a tensor held by the op is not on the CPU",
            )),
        }
    }

    #[cfg(feature = "metal")]
    pub fn metal(&self, op: &str) -> Result<(&MetalStorage, &Layout)> {
        match &*self.storage {
            Storage::Metal(storage) => Ok((storage, self.layout)),
            _ => Err(check::error(op, "a tensor held by the op is not on Metal")),
        }
    }
}
