//! The values of codes.

use super::{aligned_codes, span, Arg, Sizes};
use crate::check;
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::ops::quantize::{Dequantize, Grid, Packing, Scheme};
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    cols: u32,
    bytes: u32,
    row_units: u32,
    unit_cols: u32,
    bits: u32,
    flip: u32,
    offsets: u32,
    aligned: u32,
    aligned_codes: u32,
    zero: f32,
    scale: f32,
}

/// The values of codes.
pub fn dequantize(
    op: &Dequantize,
    (codes, cl): Arg,
    (scales, sl): Arg,
    offsets: Option<Arg>,
) -> Result<MetalStorage> {
    let name = "dequantize";
    let scheme = &op.scheme;
    let (device, count) = (codes.device(), op.shape.elem_count());
    let float = [Some((scales, sl)), offsets].into_iter().flatten();
    for (t, dtype) in float
        .map(|(t, _)| (t, DType::F32))
        .chain([(codes, DType::U8)])
    {
        if t.dtype() != dtype {
            let message = format!("{:?} given, {dtype:?} accepted", t.dtype());
            return Err(check::error(name, message));
        }
    }
    let out = alloc(device, count, op.dtype)?;
    if count > 0 {
        let sizes = Sizes::new(name, scheme, &op.shape)?;
        let (codes, scales) = (
            Operand::contiguous(codes, cl)?,
            Operand::contiguous(scales, sl)?,
        );
        let offsets = offsets
            .map(|(t, l)| Operand::contiguous(t, l))
            .transpose()?;
        let packing = match scheme.packing {
            Packing::Bits => "bits",
            Packing::Base3 => "base3",
        };
        let kernel = format!("{name}_fwd_{packing}_{}", dtype_name(op.dtype, name)?);
        Launch::new(device, &sources::DEQUANTIZE, &kernel)?
            .input(&codes)
            .input(&scales)
            .input(offsets.as_ref().unwrap_or(&scales))
            .output(&out)
            .params(&params(scheme, sizes, &codes))
            .run(grid::elementwise_rows(
                sizes.rows,
                sizes.cols,
                span(scheme.packing),
            ))?;
    }
    Ok(finish(out, device, count, op.dtype))
}

fn params(scheme: &Scheme, sizes: Sizes, codes: &Operand) -> Params {
    let bytes = scheme.row_bytes(sizes.cols);
    let (zero, scale, flip, offsets) = match scheme.grid {
        Grid::Ternary => (1.0, 1.0, 0, 0),
        Grid::Sign { .. } => (0.5, 2.0, 0, 0),
        // With the highest bit inverted, two's complement is 128 too much.
        Grid::Int8 => (128.0, 1.0, 128, 0),
        Grid::ZeroPoint { .. } => (0.0, 1.0, 0, 1),
        Grid::Affine { .. } => (0.0, 1.0, 0, 2),
    };
    let rows_aligned = sizes.rows == 1 || sizes.cols.is_multiple_of(4);
    Params {
        cols: sizes.cols as u32,
        bytes: bytes as u32,
        row_units: sizes.row_units as u32,
        unit_cols: sizes.unit_cols as u32,
        bits: scheme.bits(),
        flip,
        offsets,
        aligned: u32::from(rows_aligned && scheme.packing == Packing::Bits),
        aligned_codes: aligned_codes(scheme, codes.offset(), bytes),
        zero,
        scale,
    }
}

#[cfg(test)]
mod tests {
    use super::Params;
    use std::mem::{offset_of, size_of};

    #[test]
    fn params_mirror_the_kernel() {
        assert_eq!(size_of::<Params>(), 44);
        assert_eq!(offset_of!(Params, bytes), 4);
        assert_eq!(offset_of!(Params, row_units), 8);
        assert_eq!(offset_of!(Params, unit_cols), 12);
        assert_eq!(offset_of!(Params, bits), 16);
        assert_eq!(offset_of!(Params, flip), 20);
        assert_eq!(offset_of!(Params, offsets), 24);
        assert_eq!(offset_of!(Params, aligned), 28);
        assert_eq!(offset_of!(Params, aligned_codes), 32);
        assert_eq!(offset_of!(Params, zero), 36);
        assert_eq!(offset_of!(Params, scale), 40);
    }
}
