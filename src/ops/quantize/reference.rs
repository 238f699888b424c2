//! Quantisation in plain Candle: the specification of the kernels, and what runs where there is none.

use super::{Levels, Packing, Quantized, Rounding, ScaleScope, Scheme};
use crate::ops::limits::{at_least, at_most};
use crate::philox;
use candle_core::{DType, Device, Result, Shape, Tensor, D};

/// What [`fake_quantize`](super::fake_quantize) and its clipped form compute, with gradients by the detach trick.
pub fn reference(x: &Tensor, scheme: Scheme, clipped: bool) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let rows = ScaleRows::new(&x.detach(), scheme)?;
    let values = rows.back(&rows.values(&rows.codes()?)?)?;
    let values = values.to_dtype(x.dtype())?;
    let through = match clipped {
        true => {
            let v = rows.back(&rows.positions()?)?;
            let (min, max) = (scheme.min_code() as f64, scheme.max_code() as f64);
            let inside = v.ge(min - 0.5)?.mul(&v.le(max + 0.5)?)?;
            inside.where_cond(x, &x.detach())?
        }
        false => x.clone(),
    };
    values + (&through - through.detach())?
}

/// What [`quantize`](super::quantize) computes.
pub fn reference_quantize(x: &Tensor, scheme: Scheme) -> Result<Quantized> {
    let (shape, device) = (x.shape(), x.device());
    let scales_shape = scheme.scales_shape(shape)?;
    if x.elem_count() == 0 {
        // Candle fills no tensor without elements on Metal.
        let cpu = &Device::Cpu;
        let codes = Tensor::zeros(scheme.codes_shape(shape)?, DType::U8, cpu)?;
        let scales = Tensor::full(scheme.eps, scales_shape, cpu)?;
        let offsets = scheme.has_offsets().then(|| scales.zeros_like());
        let q = Quantized::new(codes, scales, offsets.transpose()?, shape, scheme)?;
        return q.to_device(device);
    }
    let rows = ScaleRows::new(x, scheme)?;
    let codes = pack(&rows.back(&rows.codes()?)?, scheme)?;
    let column = |t: &Tensor| t.reshape(&scales_shape);
    let offsets = rows.offsets.as_ref().map(column).transpose()?;
    Quantized::new(codes, column(&rows.scales)?, offsets, shape, scheme)
}

/// What [`dequantize`](super::dequantize) computes.
pub fn reference_dequantize(q: &Quantized, dtype: DType) -> Result<Tensor> {
    let scheme = *q.scheme();
    if q.shape().elem_count() == 0 {
        return Tensor::zeros(q.shape(), dtype, q.device());
    }
    let view = View::new(q.shape(), scheme.scope);
    let column = |t: &Tensor| t.reshape(((), 1));
    let rows = ScaleRows {
        x: view.of(&unpack(q)?)?,
        view,
        scales: column(q.scales())?,
        offsets: q.offsets().map(column).transpose()?,
        inverse_scales: None,
        mean: None,
        scheme,
    };
    rows.back(&rows.values(&rows.x)?)?.to_dtype(dtype)
}

/// A view of a tensor in which the elements of a row share a scale.
struct View {
    shape: Shape,
    scope: ScaleScope,
}

impl View {
    fn new(shape: &Shape, scope: ScaleScope) -> Self {
        View {
            shape: shape.clone(),
            scope,
        }
    }

    fn cols(&self) -> usize {
        self.shape.dims().last().copied().unwrap_or(1)
    }

    fn of(&self, t: &Tensor) -> Result<Tensor> {
        match self.scope {
            ScaleScope::Tensor => t.reshape((1, ())),
            ScaleScope::Row => t.reshape(((), self.cols())),
            ScaleScope::Column => t.reshape(((), self.cols()))?.t()?.contiguous(),
            ScaleScope::Group(group) => t.reshape(((), group)),
        }
    }

    fn back(&self, t: &Tensor) -> Result<Tensor> {
        match self.scope {
            ScaleScope::Column => t.t()?.contiguous()?.reshape(&self.shape),
            _ => t.reshape(&self.shape),
        }
    }
}

/// The numbers (or codes) that share a scale, as rows, with their scales and offsets as columns; in f32.
struct ScaleRows {
    view: View,
    x: Tensor,
    scales: Tensor,
    offsets: Option<Tensor>,
    /// Inverse scales, for the levels that multiply by them.
    inverse_scales: Option<Tensor>,
    /// The threshold of centred signs.
    mean: Option<Tensor>,
    scheme: Scheme,
}

impl ScaleRows {
    fn new(x: &Tensor, scheme: Scheme) -> Result<Self> {
        let view = View::new(x.shape(), scheme.scope);
        let x = view.of(&x.to_dtype(DType::F32)?)?;
        let eps = f64::from(scheme.eps);
        let last = D::Minus1;
        let (mut offsets, mut inverse_scales, mut mean) = (None, None, None);
        let scales = match scheme.levels {
            Levels::Ternary => {
                let scales = at_least(&means(&x.abs()?)?, eps)?;
                inverse_scales = Some(scales.recip()?);
                scales
            }
            Levels::Sign { centred } => {
                mean = centred.then(|| means(&x)).transpose()?;
                at_least(&means(&x.abs()?)?, eps)?
            }
            Levels::Int8 => {
                let max = at_least(&x.abs()?.max_keepdim(last)?, eps)?;
                inverse_scales = Some((max.ones_like()? * 127.)?.div(&max)?);
                max.div(&(max.ones_like()? * 127.)?)?
            }
            Levels::ZeroPoint { .. } => {
                let max = at_least(&x.max_keepdim(last)?, 0.0)?;
                let min = at_most(&x.min_keepdim(last)?, 0.0)?;
                let range = at_least(&(&max - &min)?, eps)?;
                let codes = (range.ones_like()? * scheme.max_code() as f64)?;
                let scales = range.div(&codes)?;
                inverse_scales = Some(scales.recip()?);
                offsets = Some(round(&(min.neg()? / &scales)?)?);
                scales
            }
            Levels::Affine { .. } => {
                let (max, min) = (x.max_keepdim(last)?, x.min_keepdim(last)?);
                let codes = (max.ones_like()? * scheme.max_code() as f64)?;
                let step = at_least(&(&max - &min)?.div(&codes)?, eps)?;
                let low = min.abs()?.gt(&max.abs()?)?;
                let step = low.where_cond(&step, &step.neg()?)?;
                let edge = low.where_cond(&min, &max)?;
                let nearest = round(&(&edge / &step)?)?;
                let none = nearest.eq(0f64)?;
                let adjusted = (&edge / &nearest)?;
                offsets = Some(none.where_cond(&edge.zeros_like()?, &edge)?);
                none.where_cond(&step, &adjusted)?
            }
        };
        // NaN for a row with an element that is not finite, else 0.
        let flaw = (&x * 0.)?.sum_keepdim(last)?;
        Ok(ScaleRows {
            scales: (scales + flaw)?,
            view,
            x,
            offsets,
            inverse_scales,
            mean,
            scheme,
        })
    }

    /// The codes before they are rounded and clamped.
    fn positions(&self) -> Result<Tensor> {
        let (x, scales) = (&self.x, &self.scales);
        match (self.scheme.levels, &self.offsets) {
            (Levels::Sign { .. }, _) => {
                (x.broadcast_div(&(scales * 2.)?)? + 0.5)?.to_dtype(DType::F32)
            }
            (Levels::Ternary, _) => self.scaled()? + 1.,
            (Levels::Int8, _) => self.scaled(),
            (Levels::ZeroPoint { .. }, Some(zeros)) => self.scaled()?.broadcast_add(zeros),
            (_, Some(biases)) => x.broadcast_sub(biases)?.broadcast_div(scales),
            (_, None) => unreachable!("these levels have offsets"),
        }
    }

    fn scaled(&self) -> Result<Tensor> {
        match &self.inverse_scales {
            Some(inverse_scales) => self.x.broadcast_mul(inverse_scales),
            None => self.x.broadcast_div(&self.scales),
        }
    }

    /// The codes as numbers, those of [`Levels::Int8`] signed.
    fn codes(&self) -> Result<Tensor> {
        let (min, max) = (self.scheme.min_code() as f64, self.scheme.max_code() as f64);
        let codes = match (self.scheme.levels, &self.offsets) {
            (Levels::Sign { .. }, _) => {
                let x = match &self.mean {
                    Some(mean) => self.x.broadcast_sub(mean)?,
                    None => self.x.clone(),
                };
                return x.gt(0f64)?.to_dtype(DType::F32);
            }
            (Levels::Ternary, _) => (self.rounded(&self.scaled()?)? + 1.)?,
            (Levels::Int8, _) => self.rounded(&self.scaled()?)?,
            (Levels::ZeroPoint { .. }, Some(zeros)) => {
                self.rounded(&self.scaled()?)?.broadcast_add(zeros)?
            }
            _ => self.rounded(&self.positions()?)?,
        };
        at_most(&at_least(&codes, min)?, max)
    }

    fn rounded(&self, v: &Tensor) -> Result<Tensor> {
        match self.scheme.rounding {
            Rounding::Nearest => round(v),
            Rounding::Stochastic { seed } => {
                let count = self.view.shape.elem_count();
                let uniform: Vec<f32> = (0..count).map(|i| philox::uniform(seed, i)).collect();
                let uniform = Tensor::from_vec(uniform, &self.view.shape, v.device())?;
                (v + self.view.of(&uniform)?)?.floor()
            }
        }
    }

    fn values(&self, codes: &Tensor) -> Result<Tensor> {
        let scales = &self.scales;
        match (self.scheme.levels, &self.offsets) {
            (Levels::Ternary, _) => (codes - 1.)?.broadcast_mul(scales),
            (Levels::Sign { .. }, _) => (codes - 0.5)?.broadcast_mul(&(scales * 2.)?),
            (Levels::ZeroPoint { .. }, Some(zeros)) => {
                codes.broadcast_sub(zeros)?.broadcast_mul(scales)
            }
            (Levels::Affine { .. }, Some(biases)) => {
                codes.broadcast_mul(scales)?.broadcast_add(biases)
            }
            _ => codes.broadcast_mul(scales),
        }
    }

    fn back(&self, t: &Tensor) -> Result<Tensor> {
        self.view.back(t)
    }
}

/// The mean of each row, from sums of 1024 elements: Candle's own sum adds one element after the other, which loses the small
/// elements of a long row.
fn means(rows: &Tensor) -> Result<Tensor> {
    const PART: usize = 1024;
    let (count, cols) = rows.dims2()?;
    let parts = cols.div_ceil(PART);
    let padded = rows.pad_with_zeros(1, 0, parts * PART - cols)?;
    let sums = padded.reshape((count, parts, PART))?.sum(2)?;
    sums.sum_keepdim(1)? / cols as f64
}

/// To the nearest integer, halves to even. Candle's own rounds halves away from 0; it serves for large numbers, which have
/// no halves.
fn round(v: &Tensor) -> Result<Tensor> {
    const LARGE: f64 = 12_582_912.0; // 1.5 · 2²³, beyond which f32 has no fractions
    let small = v.abs()?.lt(4_194_304f64)?;
    let rounded = ((v + LARGE)? - LARGE)?;
    small.where_cond(&rounded, &v.round()?)
}

/// Packs codes, given as numbers.
fn pack(codes: &Tensor, scheme: Scheme) -> Result<Tensor> {
    let dims = codes.dims();
    let (rank, cols) = (dims.len(), dims[dims.len() - 1]);
    let per_byte = scheme.per_byte();
    let bytes = scheme.row_bytes(cols);
    let codes = match scheme.levels {
        Levels::Int8 => (codes + codes.lt(0f64)?.to_dtype(DType::F32)? * 256.)?,
        _ => codes.clone(),
    };
    let codes = codes.pad_with_zeros(rank - 1, 0, bytes * per_byte - cols)?;
    let codes = codes.reshape([&dims[..rank - 1], &[bytes, per_byte]].concat())?;
    let digits: Vec<f32> = (0..per_byte as i32)
        .map(|i| match scheme.packing {
            Packing::Bits => f32::powi(2., i * scheme.bits() as i32),
            Packing::Base3 => f32::powi(3., 4 - i),
        })
        .collect();
    let digits = Tensor::new(digits, codes.device())?;
    let packed = codes.broadcast_mul(&digits)?.sum(D::Minus1)?;
    let packed = match scheme.packing {
        Packing::Bits => packed,
        // Rounded up.
        Packing::Base3 => ((packed * 256.)? / -243.)?.floor()?.neg()?,
    };
    packed.to_dtype(DType::U8)
}

/// Unpacks codes, as numbers.
fn unpack(q: &Quantized) -> Result<Tensor> {
    let scheme = q.scheme();
    let bytes = q.codes().to_dtype(DType::F32)?;
    let (number, base) = match scheme.packing {
        Packing::Bits => (bytes, f64::from(1 << scheme.bits())),
        Packing::Base3 => (((bytes * 243.)? / 256.)?.floor()?, 3.),
    };
    let digit = |i: usize| {
        let place = match scheme.packing {
            Packing::Bits => i,
            Packing::Base3 => 4 - i,
        };
        let above = (&number / base.powi(place as i32))?.floor()?;
        &above - ((&above / base)?.floor()? * base)?
    };
    let digits: Vec<Tensor> = (0..scheme.per_byte()).map(digit).collect::<Result<_>>()?;
    let codes = Tensor::stack(&digits, D::Minus1)?.flatten_from(q.shape().rank() - 1)?;
    let codes = codes.narrow(D::Minus1, 0, q.shape().dims()[q.shape().rank() - 1])?;
    match scheme.levels {
        Levels::Int8 => &codes - (codes.gt(127f64)?.to_dtype(DType::F32)? * 256.)?,
        _ => Ok(codes),
    }
}
