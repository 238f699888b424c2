//! Few rows are multiplied with W's codes as integers ([`gemv`]); for many rows, and for gradients, W is decoded to f32 tile by
//! tile ([`decoded`]).

mod code_values;
mod decoded;
mod fixed_point;
mod gemv;

use super::{Quantized, WeightArgs, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::{Matrix, Stored};
use crate::cpu::{gather, with_float};
use crate::ops::linear::cpu as linear;
use crate::ops::quantize::cpu::Decoder;
use candle_core::{CpuStorage, Result};
use decoded::Side;
use gemv::Gemv;

type Arg<'a> = crate::op::Arg<'a, CpuStorage>;

/// Rows of x that the GEMV takes at most.
const MAX_GEMV_ROWS: usize = 64;

fn decoder<'a>(w: &'a Quantized, parts: WeightArgs<'a, CpuStorage>) -> Result<Decoder<'a>> {
    // A view without elements may begin past the end.
    fn elements<'a, T>(data: &'a [T], l: &candle_core::Layout) -> &'a [T] {
        &data[l.start_offset().min(data.len())..][..l.shape().elem_count()]
    }
    let f32s = |(storage, l): Arg<'a>| -> Result<&'a [f32]> {
        Ok(elements(storage.as_slice::<f32>()?, l))
    };
    let (codes, l) = parts.codes;
    Ok(Decoder {
        scheme: w.scheme(),
        codes: elements(codes.as_slice::<u8>()?, l),
        scales: f32s(parts.scales)?,
        offsets: parts.offsets.map_or(Ok(&[][..]), f32s)?,
        cols: w.shape().dims2()?.1,
    })
}

pub fn forward(
    w: &Quantized,
    parts: WeightArgs<CpuStorage>,
    (x, xl): Arg,
    bias: Option<Arg>,
) -> Result<CpuStorage> {
    let decoder = decoder(w, parts)?;
    let (outputs, cols) = w.shape().dims2()?;
    if w.shape().elem_count() == 0 || xl.shape().elem_count() == 0 {
        return linear::bias_only(NAME, (x, xl), outputs, bias);
    }
    with_float!(NAME, x, |x: &[T]| {
        let bias = match bias {
            Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
            None => None,
        };
        let bias = bias.as_deref();
        let stored = Stored::new(x, xl);
        let (x, rows) = (stored.matrix().widened(1.0), stored.matrix().rows);
        let gemv = match rows <= MAX_GEMV_ROWS {
            true => Gemv::new(&decoder, &x, outputs),
            false => None,
        };
        Ok(T::wrap(match gemv {
            Some(gemv) => gemv.multiply(bias),
            None => {
                let x = Matrix::contiguous(&x, rows, cols);
                decoded::multiply(&decoder, Side::Rows(outputs), x, bias)
            }
        }))
    })
}

/// `x·W`
pub fn transposed(
    w: &Quantized,
    parts: WeightArgs<CpuStorage>,
    (x, xl): Arg,
) -> Result<CpuStorage> {
    let decoder = decoder(w, parts)?;
    let (outputs, cols) = w.shape().dims2()?;
    if w.shape().elem_count() == 0 || xl.shape().elem_count() == 0 {
        return linear::bias_only(NAME, (x, xl), cols, None);
    }
    with_float!(NAME, x, |x: &[T]| {
        let stored = Stored::new(x, xl);
        let (x, rows) = (stored.matrix().widened(1.0), stored.matrix().rows);
        let x = Matrix::contiguous(&x, rows, outputs);
        Ok(T::wrap(decoded::multiply::<T>(
            &decoder,
            Side::Cols,
            x,
            None,
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{mixed_matmul, reference};
    use crate::cpu::byte_simd::with_every_isa;
    use crate::ops::quantize::{quantize, Levels, ScaleScope, Scheme};
    use candle_core::{Device, Result, Tensor};

    fn wave(rows: usize, cols: usize) -> Result<Tensor> {
        let value = |i: usize| (i as f32 * 0.7).sin() * 1.5 + (i % 11) as f32 / 8.0 - 0.4;
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        Tensor::from_vec(values, (rows, cols), &Device::Cpu)
    }

    #[test]
    fn every_instruction_set_multiplies() -> Result<()> {
        let cols = 64 * 5;
        let (x, w) = (wave(3, cols)?, wave(7, cols)?);
        for grid in [
            Levels::Ternary,
            Levels::Sign { centred: true },
            Levels::Int8,
            Levels::ZeroPoint { bits: 8 },
            Levels::Affine { bits: 2 },
            Levels::Affine { bits: 4 },
        ] {
            for per in [
                ScaleScope::Row,
                ScaleScope::Group(16),
                ScaleScope::Group(32),
                ScaleScope::Group(64),
            ] {
                let w = quantize(&w, Scheme::new(grid, per))?;
                let want = reference(&x, &w, None)?.to_vec2::<f32>()?.concat();
                with_every_isa(|isa| {
                    let got = mixed_matmul(&x, &w, None).and_then(|y| y.to_vec2::<f32>());
                    let got = got.unwrap().concat();
                    for (got, want) in got.iter().zip(&want) {
                        assert!((got - want).abs() < 1e-3, "{isa:?} {grid:?} {per:?}");
                    }
                });
            }
        }
        Ok(())
    }
}
