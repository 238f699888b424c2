//! A quantised tensor: packed codes with their scales.

use super::{ScaleScope, Scheme};
use crate::check;
use candle_core::{DType, Device, Result, Shape, Tensor};

/// Packed codes, and the scales (and offsets) that turn them into numbers.
#[derive(Clone, Debug)]
pub struct Quantized {
    codes: Tensor,
    scales: Tensor,
    offsets: Option<Tensor>,
    shape: Shape,
    scheme: Scheme,
}

impl Quantized {
    /// From tensors made elsewhere: u8 `codes` of [`Scheme::codes_shape`], and f32 `scales` and `offsets` of
    /// [`Scheme::scales_shape`]. Offsets are the zero points or biases of schemes that have them. `shape` is that of the
    /// numbers.
    pub fn new(
        codes: Tensor,
        scales: Tensor,
        offsets: Option<Tensor>,
        shape: impl Into<Shape>,
        scheme: Scheme,
    ) -> Result<Self> {
        let name = "quantized";
        let shape = shape.into();
        scheme.check(name, &shape)?;
        let accept = |what: &str, t: &Tensor, dtype: DType, expected: Shape| {
            if t.dtype() != dtype || t.shape() != &expected {
                let message = format!(
                    "got {what} of shape {:?} and dtype {:?}, expected {expected:?} and {dtype:?}",
                    t.shape(),
                    t.dtype(),
                );
                return Err(check::error(name, message));
            }
            check::same_device(name, &["codes", what], &[&codes, t])
        };
        accept("codes", &codes, DType::U8, scheme.codes_shape(&shape)?)?;
        let scales_shape = scheme.scales_shape(&shape)?;
        accept("scales", &scales, DType::F32, scales_shape.clone())?;
        match (&offsets, scheme.has_offsets()) {
            (Some(offsets), true) => accept("offsets", offsets, DType::F32, scales_shape)?,
            (None, false) => {}
            (given, has) => {
                let word = |some: bool| if some { "offsets" } else { "no offsets" };
                let message = format!(
                    "got {}, expected {} for {:?}",
                    word(given.is_some()),
                    word(has),
                    scheme.levels
                );
                return Err(check::error(name, message));
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

    /// From contiguous outputs of `quantize`, which are what [`Quantized::new`] would check for.
    pub(crate) fn from_outputs(
        codes: Tensor,
        scales: Tensor,
        offsets: Option<Tensor>,
        shape: Shape,
        scheme: Scheme,
    ) -> Self {
        Quantized {
            codes,
            scales,
            offsets,
            shape,
            scheme,
        }
    }

    /// The codes in u8, packed along the last dim.
    pub fn codes(&self) -> &Tensor {
        &self.codes
    }

    /// The scales in f32.
    pub fn scales(&self) -> &Tensor {
        &self.scales
    }

    /// Zero points or biases in f32, for schemes that have them.
    pub fn offsets(&self) -> Option<&Tensor> {
        self.offsets.as_ref()
    }

    /// The shape of the numbers.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub fn device(&self) -> &Device {
        self.codes.device()
    }

    /// Bytes of memory that codes, scales and offsets take.
    pub fn bytes(&self) -> usize {
        let offsets = self.offsets.as_ref().map_or(0, Tensor::elem_count);
        self.codes.elem_count() + size_of::<f32>() * (self.scales.elem_count() + offsets)
    }

    /// The same outside any graph: products with it give its scales and offsets no gradient.
    pub fn detach(&self) -> Self {
        Quantized {
            scales: self.scales.detach(),
            offsets: self.offsets.as_ref().map(Tensor::detach),
            ..self.clone()
        }
    }

    /// `count` rows of a matrix, from row `start` on.
    pub(crate) fn rows(&self, start: usize, count: usize) -> Result<Self> {
        let (_, cols) = self.shape.dims2()?;
        let narrow = |t: &Tensor| t.narrow(0, start, count);
        let scales_of_rows = |t: &Tensor| match self.scheme.scope {
            ScaleScope::Tensor | ScaleScope::Column => Ok(t.clone()),
            ScaleScope::Row | ScaleScope::Group(_) => narrow(t),
        };
        let offsets = self.offsets.as_ref().map(scales_of_rows).transpose()?;
        let (codes, scales) = (narrow(&self.codes)?, scales_of_rows(&self.scales)?);
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
