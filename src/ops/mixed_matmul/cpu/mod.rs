//! Few rows are multiplied with W's codes as integers ([`gemv`]); for many rows, and for gradients, W is decoded to f32 tile by
//! tile ([`decoded`]).

mod code_values;
mod decoded;
mod fixed_point;
mod gemv;

use super::{Quantized, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::{Matrix, Stored};
use crate::cpu::{gather, with_float};
use crate::ops::linear::cpu as linear;
use crate::ops::packed::{Call, WeightArgs};
use crate::ops::quantize::cpu::Decoder;
use candle_core::{CpuStorage, Result};
use decoded::Side;
use gemv::Gemv;

type Arg<'a> = crate::op::Arg<'a, CpuStorage>;

/// Rows of x that the GEMV takes at most. It unpacks W's codes again for every row or two, where the decoded form decodes W
/// once for all rows.
const MAX_GEMV_ROWS: usize = 64;

/// `x·Wᵀ + bias`
pub fn forward(call: &Call<CpuStorage>) -> Result<CpuStorage> {
    let (outputs, _) = call.w.shape().dims2()?;
    multiply(call, Side::Rows(outputs))
}

/// `x·W`
pub fn transposed(w: &Quantized, weight: WeightArgs<CpuStorage>, x: Arg) -> Result<CpuStorage> {
    let bias = None;
    multiply(&Call { w, weight, x, bias }, Side::Cols)
}

fn multiply(call: &Call<CpuStorage>, side: Side) -> Result<CpuStorage> {
    let (w, (x, xl), bias) = (call.w, call.x, call.bias);
    let (outputs, cols) = w.shape().dims2()?;
    let &WeightArgs {
        codes,
        scales,
        offsets,
    } = &call.weight;
    let decoder = Decoder::new(w.scheme(), cols, codes, scales, offsets)?;
    let (terms, width) = match side {
        Side::Rows(_) => (cols, outputs),
        Side::Cols => (outputs, cols),
    };
    if w.shape().elem_count() == 0 || xl.shape().elem_count() == 0 {
        return linear::bias_only(NAME, (x, xl), width, bias);
    }
    with_float!(NAME, x, |x: &[T]| {
        let bias = match bias {
            Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
            None => None,
        };
        let bias = bias.as_deref();
        let stored = Stored::new(x, xl);
        let (x, rows) = (stored.matrix().widened(1.0), stored.matrix().rows);
        let gemv = match side {
            Side::Rows(outputs) if rows <= MAX_GEMV_ROWS => Gemv::new(&decoder, &x, outputs),
            _ => None,
        };
        Ok(T::wrap(match gemv {
            Some(gemv) => gemv.multiply(bias),
            None => {
                let x = Matrix::contiguous(&x, rows, terms);
                decoded::multiply(&decoder, side, x, bias)
            }
        }))
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
