//! A tensor as codes.

use super::{dequantize, Per, Scheme};
use crate::check;
use candle_core::{DType, Device, Result, Shape, Tensor};

/// Codes, and the scales that make numbers of them.
#[derive(Clone, Debug)]
pub struct Quantized {
    codes: Tensor,
    scales: Tensor,
    offsets: Option<Tensor>,
    shape: Shape,
    scheme: Scheme,
}

impl Quantized {
    /// Of tensors made elsewhere: `codes` are u8, packed along the last dim of `shape` as the scheme has it, `scales` and
    /// `offsets` f32 of [`Scheme::scales_shape`]. Offsets are the zero points or the biases of the schemes that have them.
    pub fn new(
        codes: Tensor,
        scales: Tensor,
        offsets: Option<Tensor>,
        shape: impl Into<Shape>,
        scheme: Scheme,
    ) -> Result<Self> {
        let op = "quantized";
        let shape = shape.into();
        scheme.check(op, &shape)?;
        let accept = |name: &str, t: &Tensor, dtype: DType, accepted: Shape| {
            if t.dtype() != dtype || t.shape() != &accepted {
                let message = format!(
                    "{name} are {:?} of {:?}, {accepted:?} of {dtype:?} accepted",
                    t.shape(),
                    t.dtype(),
                );
                return Err(check::error(op, message));
            }
            if !t.device().same_device(codes.device()) {
                let (a, b) = (t.device().location(), codes.device().location());
                let message = format!("{name} are on {a:?}, the codes on {b:?}");
                return Err(check::error(op, message));
            }
            Ok(())
        };
        accept("codes", &codes, DType::U8, scheme.codes_shape(&shape))?;
        accept("scales", &scales, DType::F32, scheme.scales_shape(&shape))?;
        match (&offsets, scheme.has_offsets()) {
            (Some(offsets), true) => {
                accept("offsets", offsets, DType::F32, scheme.scales_shape(&shape))?
            }
            (None, false) => {}
            (given, _) => {
                let given = if given.is_some() { "offsets" } else { "none" };
                let accepted = if scheme.has_offsets() {
                    "offsets"
                } else {
                    "none"
                };
                let message = format!("{given} given, {:?} has {accepted}", scheme.grid);
                return Err(check::error(op, message));
            }
        }
        Ok(Quantized {
            codes: codes.contiguous()?,
            scales: scales.contiguous()?,
            offsets: offsets.map(|offsets| offsets.contiguous()).transpose()?,
            shape,
            scheme,
        })
    }

    /// u8, packed along the last dim.
    pub fn codes(&self) -> &Tensor {
        &self.codes
    }

    /// f32
    pub fn scales(&self) -> &Tensor {
        &self.scales
    }

    /// Zero points or biases in f32, of the schemes that have them.
    pub fn offsets(&self) -> Option<&Tensor> {
        self.offsets.as_ref()
    }

    /// Of the numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub fn device(&self) -> &Device {
        self.codes.device()
    }

    /// What it takes in memory.
    pub fn bytes(&self) -> usize {
        let offsets = self.offsets.as_ref().map_or(0, Tensor::elem_count);
        self.codes.elem_count() + size_of::<f32>() * (self.scales.elem_count() + offsets)
    }

    /// The numbers that the codes stand for.
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        dequantize(self, dtype)
    }

    /// The same outside any graph: products with it give its scales and offsets no gradient.
    pub fn detach(&self) -> Self {
        Quantized {
            scales: self.scales.detach(),
            offsets: self.offsets.as_ref().map(Tensor::detach),
            ..self.clone()
        }
    }

    /// So many rows of a matrix, from this one on.
    pub(crate) fn rows(&self, start: usize, count: usize) -> Result<Self> {
        let (_, cols) = self.shape.dims2()?;
        let narrow = |t: &Tensor| t.narrow(0, start, count);
        let of_units = |t: &Tensor| match self.scheme.per {
            Per::Tensor | Per::Column => Ok(t.clone()),
            Per::Row | Per::Group(_) => narrow(t),
        };
        let offsets = self.offsets.as_ref().map(of_units).transpose()?;
        let (codes, scales) = (narrow(&self.codes)?, of_units(&self.scales)?);
        Quantized::new(codes, scales, offsets, (count, cols), self.scheme)
    }

    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let offsets = self.offsets.as_ref().map(|t| t.to_device(device));
        Ok(Quantized {
            codes: self.codes.to_device(device)?,
            scales: self.scales.to_device(device)?,
            offsets: offsets.transpose()?,
            ..self.clone()
        })
    }
}
