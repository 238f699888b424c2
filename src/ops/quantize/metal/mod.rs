//! Launches of kernels/quantize.metal and kernels/dequantize.metal.

mod dequantize;
mod work;

pub use dequantize::dequantize;

use super::{Packing, Per, Scheme, NAME};
use crate::check;
use crate::metal::{alloc, finish, Operand};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalStorage, Result, Shape};
use work::{Make, Units, Work};

type Arg<'a> = (&'a MetalStorage, &'a Layout);

/// Rows, columns and units: indices are 32-bit, and so is an index and the step of a loop.
const MOST: usize = i32::MAX as usize;

/// Columns that a thread takes at a time: whole bytes of every packing.
fn span(packing: Packing) -> usize {
    match packing {
        Packing::Bits => 8,
        Packing::Base3 => 5,
    }
}

/// A tensor as rows, and the units that they are cut into.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    cols: usize,
    units: usize,
    /// Elements of a unit.
    len: usize,
    /// Units that each row has for itself.
    row_units: usize,
    /// Neighbours in a row that share a unit.
    unit_cols: usize,
}

impl Sizes {
    fn new(op: &str, scheme: &Scheme, shape: &Shape) -> Result<Self> {
        let count = shape.elem_count();
        let cols = shape.dims().last().copied().unwrap_or(1);
        let rows = count.checked_div(cols).unwrap_or(0);
        let units = scheme.scales_shape(shape).elem_count();
        let (row_units, unit_cols) = match scheme.per {
            Per::Tensor => (0, cols),
            Per::Row => (1, cols),
            Per::Column => (0, 1),
            Per::Group(group) => (cols / group, group),
        };
        if rows.max(cols).max(units) > MOST {
            let message = format!(
                "{rows} rows of {cols} elements with {units} scales given, up to 2^31 - 1 of each accepted"
            );
            return Err(check::error(op, message));
        }
        Ok(Sizes {
            rows,
            cols,
            units,
            len: count.checked_div(units).unwrap_or(0),
            row_units,
            unit_cols,
        })
    }

    fn count(&self) -> usize {
        self.rows * self.cols
    }
}

/// Whether the bytes of a span may be taken at once, in rows of so many.
fn aligned_codes(scheme: &Scheme, offset: usize, row_bytes: usize) -> u32 {
    let bytes = scheme.bits() as usize;
    u32::from(offset.is_multiple_of(bytes) && row_bytes.is_multiple_of(bytes))
}

/// Codes, scales and offsets.
pub fn quantize(
    scheme: Scheme,
    x: &MetalStorage,
    l: &Layout,
) -> Result<(MetalStorage, MetalStorage, Option<MetalStorage>)> {
    let device = x.device();
    let sizes = Sizes::new(NAME, &scheme, l.shape())?;
    let bytes = scheme.codes_shape(l.shape()).elem_count();
    let codes = alloc(device, bytes, DType::U8)?;
    let wrap = |buffer| finish(buffer, device, sizes.units, DType::F32);
    let (scales, offsets) = if sizes.count() > 0 {
        let units = Units::alloc(&scheme, device, sizes.units)?;
        Work::new(NAME, scheme, (x, l), sizes)?.run(Make::Codes(&units), &codes)?;
        (wrap(units.scales), units.offsets.map(wrap))
    } else {
        let all =
            |value| device.storage_from_cpu_storage(&CpuStorage::F32(vec![value; sizes.units]));
        let offsets = scheme.has_offsets().then(|| all(0.0)).transpose()?;
        (all(scheme.eps)?, offsets)
    };
    Ok((finish(codes, device, bytes, DType::U8), scales, offsets))
}

/// The values of the codes of x.
pub fn fake(scheme: Scheme, x: &MetalStorage, l: &Layout) -> Result<MetalStorage> {
    let op = "fake_quantize";
    let sizes = Sizes::new(op, &scheme, l.shape())?;
    let out = alloc(x.device(), sizes.count(), x.dtype())?;
    if sizes.count() > 0 {
        Work::new(op, scheme, (x, l), sizes)?.run(Make::Values, &out)?;
    }
    Ok(finish(out, x.device(), sizes.count(), x.dtype()))
}

/// g where the codes of x reach.
pub fn clip(scheme: Scheme, (x, xl): Arg, (g, gl): Arg) -> Result<MetalStorage> {
    let op = "fake_quantize";
    let sizes = Sizes::new(op, &scheme, xl.shape())?;
    let out = alloc(x.device(), sizes.count(), x.dtype())?;
    if sizes.count() > 0 {
        let g = Operand::contiguous(g, gl)?;
        Work::new(op, scheme, (x, xl), sizes)?.run(Make::Clipped(&g), &out)?;
    }
    Ok(finish(out, x.device(), sizes.count(), x.dtype()))
}
