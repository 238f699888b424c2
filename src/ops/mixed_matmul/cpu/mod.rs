//! Few rows take a product straight from the codes; for many, and for gradients, rows or columns of W are decoded by the
//! thread that multiplies them.

mod gemv;
mod sorted;
mod values;

use super::{Parts, Quantized, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::{product, tile_len, Matrix, Narrow, Stored};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::dispatch;
use crate::cpu::{alloc, gather, scratch, with_float};
use crate::ops::linear::cpu as linear;
use crate::ops::quantize::cpu::Decoder;
use candle_core::{CpuStorage, Layout, Result};
use gemv::Gemv;

type Arg<'a> = (&'a CpuStorage, &'a Layout);

/// Rows that a product takes straight from the codes.
const FEW: usize = 64;
/// Rows of W that are decoded at a time at most, and columns.
const ROWS: usize = 64;
const COLS: usize = 512;

fn decoder<'a>(
    w: &'a Quantized,
    (codes, scales, offsets): Parts<'a, CpuStorage>,
) -> Result<Decoder<'a>> {
    let (outputs, cols) = w.shape().dims2()?;
    let offsets = match offsets {
        Some((offsets, l)) => &offsets.as_slice::<f32>()?[l.start_offset()..],
        None => &[],
    };
    let bytes = outputs * w.scheme().row_bytes(cols);
    Ok(Decoder {
        scheme: w.scheme(),
        codes: &codes.0.as_slice::<u8>()?[codes.1.start_offset()..][..bytes],
        scales: &scales.0.as_slice::<f32>()?[scales.1.start_offset()..],
        offsets,
        cols,
    })
}

pub fn forward(
    w: &Quantized,
    parts: Parts<CpuStorage>,
    (x, xl): Arg,
    bias: Option<Arg>,
) -> Result<CpuStorage> {
    let decoder = decoder(w, parts)?;
    let (outputs, cols) = w.shape().dims2()?;
    if w.shape().elem_count() == 0 || xl.shape().elem_count() == 0 {
        return linear::without_products(NAME, (x, xl), outputs, bias);
    }
    with_float!(NAME, x, |x: &[T]| {
        let bias = match bias {
            Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
            None => None,
        };
        let bias = bias.as_deref();
        let stored = Stored::new(x, xl);
        let x = stored.matrix();
        let (wide, rows) = (x.widened(1.0), x.rows);
        // SAFETY: every output of every row is written.
        let out = unsafe {
            alloc::build(rows * outputs, |out: *mut T| {
                let out = Shared::new(out);
                let gemv = (rows <= FEW)
                    .then(|| Gemv::new(&decoder, &wide, rows, outputs))
                    .flatten();
                let Some(gemv) = gemv else {
                    let x = Matrix::contiguous(&wide, rows, cols);
                    return by_rows(&decoder, x, outputs, bias, out);
                };
                scratch::with([rows * outputs], |[sums]| {
                    gemv.run(Shared::new(sums));
                    dispatch(Narrow {
                        sums,
                        rows,
                        width: outputs,
                        addend: bias.map(|bias| (bias.as_ptr(), 0)),
                        out: out.get(),
                        stride: outputs,
                    });
                });
            })
        };
        Ok(T::wrap(out))
    })
}

/// # Safety
/// `out` has room for the result.
unsafe fn by_rows<T: Element>(
    decoder: &Decoder,
    x: Matrix<f32>,
    outputs: usize,
    bias: Option<&[T]>,
    out: Shared<T>,
) {
    let cols = decoder.cols;
    let cost = (x.rows * cols / 8).max(1) + 4 * cols;
    let len = tile_len(outputs, cost).min(ROWS);
    parallel::ranges(outputs, cost, len, |range| {
        for start in range.clone().step_by(len) {
            let tile = start..range.end.min(start + len);
            let width = tile.len();
            scratch::with([width * cols, x.rows * width], |[w, sums]| {
                for (i, output) in tile.clone().enumerate() {
                    decoder.decode(output, 0..cols, w.add(i * cols));
                }
                let w = std::slice::from_raw_parts(w, width * cols);
                let w = Matrix::contiguous(w, width, cols);
                product(sums, width, false, (x, w), 1.0);
                dispatch(Narrow {
                    sums,
                    rows: x.rows,
                    width,
                    addend: bias.map(|bias| (bias[start..].as_ptr(), 0)),
                    out: out.get().add(start),
                    stride: outputs,
                });
            });
        }
    });
}

/// `x·W`
pub fn transposed(w: &Quantized, parts: Parts<CpuStorage>, (x, xl): Arg) -> Result<CpuStorage> {
    let decoder = decoder(w, parts)?;
    let (outputs, cols) = w.shape().dims2()?;
    if w.shape().elem_count() == 0 || xl.shape().elem_count() == 0 {
        return linear::without_products(NAME, (x, xl), cols, None);
    }
    with_float!(NAME, x, |x: &[T]| {
        let stored = Stored::new(x, xl);
        let x = stored.matrix();
        let (wide, rows) = (x.widened(1.0), x.rows);
        let x = Matrix::contiguous(&wide, rows, outputs);
        // SAFETY: every column of every row is written.
        let out = unsafe {
            alloc::build(rows * cols, |out: *mut T| {
                let out = Shared::new(out);
                let cost = (rows * outputs / 8).max(1) + 4 * outputs;
                let len = tile_len(cols, cost).min(COLS);
                // The first of a byte, of every packing.
                let len = len.next_multiple_of(40);
                parallel::ranges(cols, cost, len, |range| {
                    for start in range.clone().step_by(len) {
                        let tile = start..range.end.min(start + len);
                        let width = tile.len();
                        scratch::with([outputs * width, rows * width], |[w, sums]| {
                            for output in 0..outputs {
                                decoder.decode(output, tile.clone(), w.add(output * width));
                            }
                            let w = std::slice::from_raw_parts(w, outputs * width);
                            let w = Matrix::contiguous(w, outputs, width).t();
                            product(sums, width, false, (x, w), 1.0);
                            dispatch(Narrow::<T, T> {
                                sums,
                                rows,
                                width,
                                addend: None,
                                out: out.get().add(start),
                                stride: cols,
                            });
                        });
                    }
                });
            })
        };
        Ok(T::wrap(out))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{mixed_matmul, reference};
    use crate::cpu::dot::with_every_isa;
    use crate::ops::quantize::{quantize, Grid, Per, Scheme};
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
            Grid::Ternary,
            Grid::Sign { centred: true },
            Grid::Int8,
            Grid::ZeroPoint { bits: 8 },
            Grid::Affine { bits: 2 },
            Grid::Affine { bits: 4 },
        ] {
            for per in [Per::Row, Per::Group(16), Per::Group(32), Per::Group(64)] {
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
