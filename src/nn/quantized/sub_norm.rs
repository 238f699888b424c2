//! The RMS norm that BitNet applies to the input of a layer before it is rounded.

use crate::{check, ops};
use candle_core::{Device, Module, Result, Tensor};

/// An RMS norm over the last dim, with or without a weight, that a layer applies to its input before it is rounded.
#[derive(Clone, Debug)]
pub struct SubNorm {
    weight: Option<Tensor>,
    eps: f32,
}

impl SubNorm {
    /// Without a weight.
    pub fn new(eps: f32) -> Self {
        SubNorm { weight: None, eps }
    }

    /// With a weight `[in]`.
    pub fn with_weight(weight: Tensor, eps: f32) -> Self {
        SubNorm {
            weight: Some(weight),
            eps,
        }
    }

    /// The weight, `[in]`.
    pub fn weight(&self) -> Option<&Tensor> {
        self.weight.as_ref()
    }

    /// The number added to the mean square.
    pub fn eps(&self) -> f32 {
        self.eps
    }

    /// Accepts a norm that fits a layer with `cols` inputs.
    pub(super) fn check(&self, layer: &str, cols: usize, device: &Device) -> Result<()> {
        check::eps(layer, self.eps.into())?;
        match &self.weight {
            Some(weight) => check_vector(layer, "the norm's weight", weight, cols, device),
            None => Ok(()),
        }
    }

    pub(super) fn detach(&self) -> Self {
        SubNorm {
            weight: self.weight.as_ref().map(Tensor::detach),
            eps: self.eps,
        }
    }
}

impl Module for SubNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = as_input(self.weight.as_ref(), x)?;
        ops::rms_norm(x, weight.as_ref(), self.eps)
    }
}

/// The input of a layer, through its norm if it has one.
pub(super) fn normed(norm: Option<&SubNorm>, x: &Tensor) -> Result<Tensor> {
    norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
}

/// A bias or a norm's weight in the dtype of the input.
pub(super) fn as_input(t: Option<&Tensor>, x: &Tensor) -> Result<Option<Tensor>> {
    t.map(|t| t.to_dtype(x.dtype())).transpose()
}

/// Accepts a float vector of `len` elements on the device of the layer's weight.
pub(super) fn check_vector(
    layer: &str,
    name: &str,
    t: &Tensor,
    len: usize,
    device: &Device,
) -> Result<()> {
    check::is_float(layer, t)?;
    if t.dims() != [len] {
        let message = format!("got {name} of shape {:?}, expected [{len}]", t.shape());
        return Err(check::error(layer, message));
    }
    if !t.device().same_device(device) {
        let (a, b) = (t.device().location(), device.location());
        let message = format!("got {name} on {a:?}, expected {b:?} as for the weight");
        return Err(check::error(layer, message));
    }
    Ok(())
}
