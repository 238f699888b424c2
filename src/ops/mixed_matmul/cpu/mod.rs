//! Few rows are multiplied with W's codes as integers ([`gemv`]); for many rows, and for gradients, W is decoded to f32 tile by
//! tile ([`decoded`]). Rows that are rounded to 8 bits are multiplied as bytes ([`int8`]).

mod code_values;
mod decoded;
mod fixed_point;
mod gemv;
#[cfg(all(test, target_os = "linux"))]
mod guarded_weight;
mod int8;

use super::{Activations, Quantized, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::{Matrix, Stored};
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::Arg;
use crate::ops::linear::cpu as linear;
use crate::ops::packed::{Call, WeightArgs};
use crate::ops::quantize::cpu::{quantize, Decoder};
use crate::quant::Scheme;
use candle_core::{CpuStorage, Result};
use decoded::Side;
use gemv::Gemv;
use int8::Int8Product;

/// Rows of x that the GEMV takes at most. It unpacks W's codes again for every row or two, where the decoded form decodes W
/// once for all rows.
const MAX_GEMV_ROWS: usize = 64;

/// Rows of x from which on products of bytes are worth that all codes are unpacked first; fewer are rounded and then multiplied
/// exactly. Measured on Zen 5, 4096 × 4096.
fn min_int8_rows(scheme: &Scheme) -> usize {
    match scheme.bits() {
        8 => 4,
        _ => 5,
    }
}

/// Up to this scale of x's integers, sums of products of bytes stay finite in f32 before their parts cancel each other.
const LARGEST_INT8_SCALE: f32 = 1e26;

/// `x·Wᵀ + bias`
pub fn forward(call: &Call<CpuStorage>, activations: Activations) -> Result<CpuStorage> {
    let (outputs, _) = call.w.shape().dims2()?;
    multiply(call, Side::Rows(outputs), activations.scheme(call.w))
}

/// `x·W`
pub fn transposed(w: &Quantized, weight: WeightArgs<CpuStorage>, x: Arg) -> Result<CpuStorage> {
    let bias = None;
    multiply(&Call { w, weight, x, bias }, Side::Cols, None)
}

/// The product of x as it is, or rounded by a scheme of 8 bits.
fn multiply(call: &Call<CpuStorage>, side: Side, rounding: Option<Scheme>) -> Result<CpuStorage> {
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
        let (x, rows) = match rounding {
            None => {
                let stored = Stored::new(x, xl);
                (stored.matrix().widened(1.0), stored.matrix().rows)
            }
            Some(scheme) => {
                let (integers, scales, _) = quantize(scheme, call.x)?;
                let rows = integers.len() / cols;
                // A NaN is no larger scale: its row is NaN either way.
                let finite = !scales.iter().any(|&scale| scale > LARGEST_INT8_SCALE);
                let suits = finite && rows >= min_int8_rows(w.scheme());
                if let (true, Some(product)) = (suits, Int8Product::new(&decoder, outputs)) {
                    return Ok(T::wrap(product.multiply(&integers, &scales, bias)));
                }
                let bytes = (&integers[..], &scales[..]);
                if let (true, Some(product)) = (
                    rows <= MAX_GEMV_ROWS,
                    Gemv::of_bytes(&decoder, bytes, outputs),
                ) {
                    return Ok(T::wrap(product.multiply(bias)));
                }
                (values(&integers, &scales), rows)
            }
        };
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

/// The numbers that signed bytes stand for, as many of which share each of the scales.
fn values(integers: &[u8], scales: &[f32]) -> Vec<f32> {
    let groups = integers.chunks_exact(integers.len() / scales.len());
    let groups = groups.zip(scales);
    groups
        .flat_map(|(group, &scale)| group.iter().map(move |&q| f32::from(q as i8) * scale))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{mixed_matmul, mixed_matmul_with, reference, reference_with, Activations};
    use crate::cpu::byte_simd::with_every_isa;
    use crate::ops::quantize::{quantize, Levels, ScaleScope, Scheme};
    use candle_core::{Device, Result, Tensor};

    fn wave(rows: usize, cols: usize) -> Result<Tensor> {
        let value = |i: usize| (i as f32 * 0.7).sin() * 1.5 + (i % 11) as f32 / 8.0 - 0.4;
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        Tensor::from_vec(values, (rows, cols), &Device::Cpu)
    }

    /// Rows and outputs of whole register blocks and tiles, and more and fewer; columns that end within a vector.
    #[test]
    fn every_instruction_set_multiplies_bytes() -> Result<()> {
        for (grid, per, cols) in [
            (Levels::Ternary, ScaleScope::Row, 515),
            (Levels::Sign { centred: true }, ScaleScope::Group(32), 96),
            (Levels::Int8, ScaleScope::Tensor, 77),
            (Levels::Int8, ScaleScope::Group(4), 80),
            (Levels::ZeroPoint { bits: 8 }, ScaleScope::Group(32), 1056),
            (Levels::Affine { bits: 2 }, ScaleScope::Group(512), 1024),
            (Levels::Affine { bits: 4 }, ScaleScope::Group(64), 1088),
            // Groups that the codes of a byte cut.
            (Levels::Affine { bits: 4 }, ScaleScope::Group(12), 36),
        ] {
            for (rows, outputs) in [(1, 5), (2, 33), (3, 64), (5, 7), (13, 40)] {
                let w = quantize(&wave(outputs, cols)?, Scheme::new(grid, per))?;
                let (x, bias) = (wave(rows, cols)?, wave(1, outputs)?.squeeze(0)?);
                let want = reference_with(&x, &w, Some(&bias), Activations::Int8)?;
                let want = want.to_vec2::<f32>()?.concat();
                with_every_isa(|isa| {
                    let got = mixed_matmul_with(&x, &w, Some(&bias), Activations::Int8);
                    let got = got.and_then(|y| y.to_vec2::<f32>()).unwrap().concat();
                    for (got, want) in got.iter().zip(&want) {
                        let close = (got - want).abs() < 1e-3 + 1e-5 * want.abs();
                        assert!(
                            close,
                            "{got} {want} {isa:?} {grid:?} {per:?} {rows}x{cols}x{outputs}"
                        );
                    }
                });
            }
        }
        Ok(())
    }

    /// A NaN reaches its own row alone; so does an infinity, whose scale the bytes are not multiplied with.
    #[test]
    fn specials_stay_in_their_row_of_bytes() -> Result<()> {
        let (rows, outputs, cols, group) = (6, 37, 128, 32);
        for grid in [
            Levels::Sign { centred: true },
            Levels::Ternary,
            Levels::Int8,
            Levels::Affine { bits: 4 },
        ] {
            let scheme = Scheme::new(grid, ScaleScope::Group(group));
            let w = quantize(&wave(outputs, cols)?, scheme)?;
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let plain = wave(rows, cols)?;
                let mut x = plain.to_vec2::<f32>()?;
                // Row 1, group 1.
                x[1][group + 5] = special;
                let x = Tensor::new(x, &Device::Cpu)?;
                let want = reference_with(&plain, &w, None, Activations::Int8)?;
                let want = want.to_vec2::<f32>()?;
                with_every_isa(|isa| {
                    let got = mixed_matmul_with(&x, &w, None, Activations::Int8);
                    let got = got.and_then(|y| y.to_vec2::<f32>()).unwrap();
                    for (row, (got, want)) in got.iter().zip(&want).enumerate() {
                        for (got, want) in got.iter().zip(want) {
                            let right = match row {
                                1 => !got.is_finite(),
                                _ => (got - want).abs() < 1e-3 + 1e-5 * want.abs(),
                            };
                            assert!(right, "{got} {want} {isa:?} {grid:?} {special} {row}");
                        }
                    }
                });
            }
        }
        Ok(())
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
