//! Launches of kernels/quantize.metal and kernels/dequantize.metal.

mod decode;
mod encode;

pub use decode::dequantize;

use super::{Packing, ScaleScope, Scheme, NAME};
use crate::check;
use crate::metal::{alloc, finish, Operand};
use crate::op::on_metal::Arg;
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalStorage, Result, Shape};
use encode::{Encoder, ScaleBuffers, Sink};

/// The most rows, columns and scales: kernels count them in 32 bits, and an index plus the step of a loop must not overflow.
const MOST: usize = i32::MAX as usize;

/// Columns that a thread takes at a time: a span, whole bytes of codes.
fn span(packing: Packing) -> usize {
    match packing {
        Packing::Bits => 8,
        Packing::Base3 => 5,
    }
}

/// A tensor as rows of columns, and how they share scales.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    cols: usize,
    /// The number of scales.
    scales: usize,
    /// Elements that share a scale.
    len: usize,
    /// Scales of each row: 0 if rows share theirs.
    row_scales: usize,
    /// Neighbours in a row that share a scale.
    scale_cols: usize,
}

impl Sizes {
    fn new(name: &str, scheme: &Scheme, shape: &Shape) -> Result<Self> {
        let count = shape.elem_count();
        let cols = shape.dims().last().copied().unwrap_or(1);
        let rows = count.checked_div(cols).unwrap_or(0);
        let scales = scheme.scales_shape(shape)?.elem_count();
        let (row_scales, scale_cols) = match scheme.scope {
            ScaleScope::Tensor => (0, cols),
            ScaleScope::Row => (1, cols),
            ScaleScope::Column => (0, 1),
            ScaleScope::Group(group) => (cols / group, group),
        };
        if rows.max(cols).max(scales) > MOST {
            let message = format!(
                "got {rows} rows of {cols} elements with {scales} scales, expected up to 2^31 - 1 of each"
            );
            return Err(check::error(name, message));
        }
        Ok(Sizes {
            rows,
            cols,
            scales,
            len: count.checked_div(scales).unwrap_or(0),
            row_scales,
            scale_cols,
        })
    }

    fn count(&self) -> usize {
        self.rows * self.cols
    }
}

/// Whether a kernel may access the bytes of a span at once, in rows of `row_bytes`.
fn aligned_codes(scheme: &Scheme, offset: usize, row_bytes: usize) -> u32 {
    let bytes = scheme.bits() as usize;
    u32::from(offset.is_multiple_of(bytes) && row_bytes.is_multiple_of(bytes))
}

/// The codes, scales and offsets of x.
pub fn quantize(
    scheme: Scheme,
    x: &MetalStorage,
    l: &Layout,
) -> Result<(MetalStorage, MetalStorage, Option<MetalStorage>)> {
    let device = x.device();
    let sizes = Sizes::new(NAME, &scheme, l.shape())?;
    let bytes = scheme.codes_shape(l.shape())?.elem_count();
    let codes = alloc(device, bytes, DType::U8)?;
    let wrap = |buffer| finish(buffer, device, sizes.scales, DType::F32);
    let (scales, offsets) = if sizes.count() > 0 {
        let scales = ScaleBuffers::alloc(&scheme, device, sizes.scales)?;
        Encoder::new(NAME, scheme, (x, l), sizes)?.run(Sink::Codes(&scales), &codes)?;
        (wrap(scales.scales), scales.offsets.map(wrap))
    } else {
        let all =
            |value| device.storage_from_cpu_storage(&CpuStorage::F32(vec![value; sizes.scales]));
        let offsets = scheme.has_offsets().then(|| all(0.0)).transpose()?;
        (all(scheme.eps)?, offsets)
    };
    Ok((finish(codes, device, bytes, DType::U8), scales, offsets))
}

/// The values of the codes of x.
pub fn fake_quantize(scheme: Scheme, (x, l): Arg) -> Result<MetalStorage> {
    let name = "fake_quantize";
    let sizes = Sizes::new(name, &scheme, l.shape())?;
    let out = alloc(x.device(), sizes.count(), x.dtype())?;
    if sizes.count() > 0 {
        Encoder::new(name, scheme, (x, l), sizes)?.run(Sink::Values, &out)?;
    }
    Ok(finish(out, x.device(), sizes.count(), x.dtype()))
}

/// g where x is at most half a step beyond the outermost codes, else 0.
pub fn clip_grad(scheme: Scheme, (x, xl): Arg, (g, gl): Arg) -> Result<MetalStorage> {
    let name = "fake_quantize";
    let sizes = Sizes::new(name, &scheme, xl.shape())?;
    let out = alloc(x.device(), sizes.count(), x.dtype())?;
    if sizes.count() > 0 {
        let g = Operand::contiguous(g, gl)?;
        Encoder::new(name, scheme, (x, xl), sizes)?.run(Sink::ClippedGrad(&g), &out)?;
    }
    Ok(finish(out, x.device(), sizes.count(), x.dtype()))
}
