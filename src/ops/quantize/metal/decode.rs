//! Launches of kernels/dequantize.metal.

use super::{aligned_codes, span, Arg, Sizes};
use crate::metal::{alloc, dtype_name, finish, grid, sources, Launch, Operand};
use crate::ops::quantize::Dequantize;
use crate::quant::{Levels, Packing, Scheme};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    cols: u32,
    bytes: u32,
    row_scales: u32,
    scale_cols: u32,
    bits: u32,
    flip: u32,
    offsets: u32,
    aligned: u32,
    aligned_codes: u32,
    zero: f32,
    scale: f32,
}

/// The values of codes; the arguments are codes, scales and, if the scheme has them, offsets.
pub fn dequantize(op: &Dequantize, args: &[Arg]) -> Result<MetalStorage> {
    let name = "dequantize";
    let scheme = &op.scheme;
    let (device, count) = (args[0].0.device(), op.shape.elem_count());
    let out = alloc(device, count, op.dtype)?;
    if count > 0 {
        let sizes = Sizes::new(name, scheme, &op.shape)?;
        let args = args.iter().map(|&(t, l)| Operand::contiguous(t, l));
        let args: Vec<Operand> = args.collect::<Result<_>>()?;
        let (codes, scales) = (&args[0], &args[1]);
        let packing = match scheme.packing {
            Packing::Bits => "bits",
            Packing::Base3 => "base3",
        };
        let kernel = format!("{name}_fwd_{packing}_{}", dtype_name(op.dtype, name)?);
        Launch::new(device, &sources::DEQUANTIZE, &kernel)?
            .input(codes)
            .input(scales)
            // Scales without offsets have their binding filled and not read.
            .input(args.get(2).unwrap_or(scales))
            .output(&out)
            .params(&params(scheme, sizes, codes))
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
    let (zero, scale, flip, offsets) = match scheme.levels {
        Levels::Ternary => (1.0, 1.0, 0, 0),
        Levels::Sign { .. } => (0.5, 2.0, 0, 0),
        // Two's complement with the highest bit inverted is the number plus 128.
        Levels::Int8 => (128.0, 1.0, 128, 0),
        Levels::ZeroPoint { .. } => (0.0, 1.0, 0, 1),
        Levels::Affine { .. } => (0.0, 1.0, 0, 2),
    };
    let rows_aligned = sizes.rows == 1 || sizes.cols.is_multiple_of(4);
    Params {
        cols: sizes.cols as u32,
        bytes: bytes as u32,
        row_scales: sizes.row_scales as u32,
        scale_cols: sizes.scale_cols as u32,
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
crate::metal::mirror::assert_mirrors! {
    Params => "dequantize" DequantizeParams {
        cols, bytes, row_scales, scale_cols, bits, flip, offsets, aligned, aligned_codes, zero,
        scale
    }
}
