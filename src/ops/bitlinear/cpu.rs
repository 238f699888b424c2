//! Codes are multiplied as they lie, a vector of bytes at a time. The first codes of neighbouring bytes make one vector, the
//! second ones another: x's integers are sorted like that once, so that W needs no sorting.

use super::{Grid, Per, Quantized, ACTIVATIONS, NAME};
use crate::cpu::codes::CodeRows;
use crate::cpu::dot::{dispatch, width, Bytes, Kernel};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::prefetch;
use crate::cpu::{alloc, gather, with_float};
use crate::ops::linear::cpu as linear;
use crate::ops::quantize::cpu::quantize;
use candle_core::{CpuStorage, Layout, Result};
use std::marker::PhantomData;
use std::ops::Range;

type Arg<'a> = (&'a CpuStorage, &'a Layout);

/// Rows and outputs that are multiplied before others are read: their bytes stay in the first caches.
const ROWS: usize = 64;
const OUTPUTS: usize = 16;

pub fn forward(w: &Quantized, weight: (Arg, Arg), x: Arg, bias: Option<Arg>) -> Result<CpuStorage> {
    let ((codes, cl), (scales, sl)) = weight;
    let (outputs, cols) = w.shape().dims2()?;
    if w.shape().elem_count() == 0 || x.1.shape().elem_count() == 0 {
        return linear::without_products(NAME, x, outputs, bias);
    }
    let (integers, x_scales, _) = quantize(ACTIVATIONS, x.0, x.1)?;
    let rows = x_scales.len();
    let per_byte = w.scheme().per_byte();
    let row_bytes = w.scheme().row_bytes(cols);
    let sorted = Sorted::new(&integers, rows, cols, per_byte);
    let codes = &codes.as_slice::<u8>()?[cl.start_offset()..][..outputs * row_bytes];
    let scales = &scales.as_slice::<f32>()?[sl.start_offset()..];
    let each = match w.scheme().per {
        Per::Tensor => 0,
        _ => 1,
    };
    with_float!(NAME, x.0, T => {
        let bias = match bias {
            Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
            None => None,
        };
        // SAFETY: every output of every row is written.
        let out = unsafe {
            alloc::build(rows * outputs, |out: *mut T| {
                let product = Product {
                    codes: CodeRows::new(codes, row_bytes, width()),
                    scales,
                    scale_stride: each,
                    factor: if matches!(w.scheme().grid, Grid::Ternary) { 1 } else { 2 },
                    x: &sorted,
                    x_scales: &x_scales,
                    bias: bias.as_deref(),
                    outputs,
                    out: Shared::new(out),
                };
                product.run(per_byte, rows, cols);
            })
        };
        Ok(T::wrap(out))
    })
}

/// x's integers, those that meet the first codes of bytes first, then those of the second and so on; with zeros up to a
/// multiple of vectors.
struct Sorted {
    bytes: Vec<u8>,
    /// Of the integers that meet the same codes.
    plane: usize,
    /// Of a row.
    stride: usize,
    sums: Vec<i32>,
}

impl Sorted {
    fn new(integers: &[u8], rows: usize, cols: usize, per_byte: usize) -> Self {
        let plane = cols.div_ceil(per_byte).next_multiple_of(width());
        let stride = plane * per_byte;
        let mut bytes = vec![0; rows * stride];
        let mut sums = vec![0; rows];
        let (to, totals) = (
            Shared::new(bytes.as_mut_ptr()),
            Shared::new(sums.as_mut_ptr()),
        );
        parallel::ranges(rows, 4 * cols, 1, |range| {
            for row in range {
                let from = &integers[row * cols..(row + 1) * cols];
                // SAFETY: rows are apart, and this one is this thread's.
                let (to, sum) = unsafe {
                    let to = to.get().add(row * stride);
                    (
                        std::slice::from_raw_parts_mut(to, stride),
                        &mut *totals.get().add(row),
                    )
                };
                *sum = from.iter().map(|&q| i32::from(q as i8)).sum();
                match per_byte {
                    4 => sort::<4>(from, to, plane),
                    _ => sort::<8>(from, to, plane),
                }
            }
        });
        Sorted {
            bytes,
            plane,
            stride,
            sums,
        }
    }
}

fn sort<const PER_BYTE: usize>(from: &[u8], to: &mut [u8], plane: usize) {
    let whole = from.chunks_exact(PER_BYTE);
    let rest = whole.remainder();
    let last = whole.len();
    for (i, to) in to.chunks_exact_mut(plane).enumerate() {
        for (to, from) in to.iter_mut().zip(whole.clone()) {
            *to = from[i];
        }
        if let Some(&q) = rest.get(i) {
            to[last] = q;
        }
    }
}

struct Product<'a, T> {
    codes: CodeRows<'a>,
    scales: &'a [f32],
    /// 0 where one serves all outputs.
    scale_stride: usize,
    /// Of the codes: a weight is that times a code, minus 1.
    factor: i32,
    x: &'a Sorted,
    x_scales: &'a [f32],
    bias: Option<&'a [T]>,
    outputs: usize,
    out: Shared<T>,
}

impl<T: Element> Product<'_, T> {
    fn run(&self, per_byte: usize, rows: usize, cols: usize) {
        let share = |rows: Range<usize>, outputs: Range<usize>| match per_byte {
            4 => dispatch(Share::<T, TwoBits, 2>::new(self, rows, outputs)),
            _ => dispatch(Share::<T, OneBit, 4>::new(self, rows, outputs)),
        };
        // A multiplication and addition is a twelfth of a cheap element.
        let cost = |rows: usize| rows * (cols / 12 + 8);
        if rows <= ROWS {
            return parallel::ranges(self.outputs, cost(rows), OUTPUTS, |outputs| {
                share(0..rows, outputs)
            });
        }
        let blocks = rows.div_ceil(ROWS);
        let tiles = self.outputs.div_ceil(OUTPUTS);
        parallel::ranges(blocks * tiles, OUTPUTS * cost(ROWS), 1, |range| {
            for n in range {
                let (row, output) = (n % blocks * ROWS, n / blocks * OUTPUTS);
                share(
                    row..rows.min(row + ROWS),
                    output..self.outputs.min(output + OUTPUTS),
                );
            }
        });
    }
}

/// How bytes are taken apart: into codes as they are, and those between them, which are left where they lie and so are
/// larger. That spares shifts, and two sums need not wait for each other.
trait Codes<const N: usize>: Copy + Send + Sync {
    /// Whether there are registers for the codes of two outputs.
    const PAIRS: bool;

    fn split<B: Bytes>(b: B, v: B::V) -> [[B::V; N]; 2];
    fn join<B: Bytes>(b: B, sums: [B::Sum; 2]) -> B::Sum;
}

#[derive(Clone, Copy)]
struct OneBit;

impl Codes<4> for OneBit {
    const PAIRS: bool = false;

    #[inline(always)]
    fn split<B: Bytes>(b: B, v: B::V) -> [[B::V; 4]; 2] {
        [
            [
                b.codes::<1, 0>(v),
                b.codes::<1, 2>(v),
                b.codes::<1, 4>(v),
                b.codes::<1, 6>(v),
            ],
            [
                b.codes::<2, 0>(v),
                b.codes::<2, 2>(v),
                b.codes::<2, 4>(v),
                b.codes::<2, 6>(v),
            ],
        ]
    }
    #[inline(always)]
    fn join<B: Bytes>(b: B, [sum, double]: [B::Sum; 2]) -> B::Sum {
        b.add_part::<1>(sum, double)
    }
}

#[derive(Clone, Copy)]
struct TwoBits;

impl Codes<2> for TwoBits {
    const PAIRS: bool = true;

    #[inline(always)]
    fn split<B: Bytes>(b: B, v: B::V) -> [[B::V; 2]; 2] {
        [
            [b.codes::<3, 0>(v), b.codes::<3, 4>(v)],
            [b.codes::<12, 0>(v), b.codes::<12, 4>(v)],
        ]
    }
    #[inline(always)]
    fn join<B: Bytes>(b: B, [sum, fourfold]: [B::Sum; 2]) -> B::Sum {
        b.add_part::<2>(sum, fourfold)
    }
}

/// Some outputs of some rows, by one thread.
struct Share<'a, T, C, const N: usize> {
    product: &'a Product<'a, T>,
    rows: Range<usize>,
    outputs: Range<usize>,
    codes: PhantomData<C>,
}

impl<'a, T, C, const N: usize> Share<'a, T, C, N> {
    fn new(product: &'a Product<'a, T>, rows: Range<usize>, outputs: Range<usize>) -> Self {
        Share {
            product,
            rows,
            outputs,
            codes: PhantomData,
        }
    }
}

impl<T: Element, C: Codes<N>, const N: usize> Kernel for Share<'_, T, C, N> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        let Share { rows, outputs, .. } = &self;
        let mut row = rows.start;
        let pairs = match B::MANY_REGISTERS && C::PAIRS {
            true => outputs.start + outputs.len() / 2 * 2,
            false => outputs.start,
        };
        while row + 4 <= rows.end {
            self.outputs::<B, 4, 2>(b, row, outputs.start..pairs);
            self.outputs::<B, 4, 1>(b, row, pairs..outputs.end);
            row += 4;
        }
        while row < rows.end {
            let whole = outputs.start + outputs.len() / 4 * 4;
            self.outputs::<B, 1, 4>(b, row, outputs.start..whole);
            self.outputs::<B, 1, 1>(b, row, whole..outputs.end);
            row += 1;
        }
    }
}

impl<T: Element, C: Codes<N>, const N: usize> Share<'_, T, C, N> {
    #[inline(always)]
    fn outputs<B: Bytes, const R: usize, const O: usize>(
        &self,
        b: B,
        row: usize,
        outputs: Range<usize>,
    ) {
        for output in outputs.step_by(O) {
            self.block::<B, R, O>(b, row, output);
        }
    }

    /// R rows of x times O rows of W.
    #[inline(always)]
    fn block<B: Bytes, const R: usize, const O: usize>(&self, b: B, row: usize, output: usize) {
        let p = self.product;
        let Sorted { plane, stride, .. } = *p.x;
        let ws: [_; O] = std::array::from_fn(|i| p.codes.row(output + i));
        let x = p.x.bytes[row * stride..(row + R) * stride].as_ptr();
        // Rows are too short for the CPU to find out by itself where the next ones are.
        let ahead = O * p.codes.row_bytes();
        let mut sums = [[[b.zero(); 2]; O]; R];
        for at in (0..plane).step_by(B::WIDTH) {
            // SAFETY: every row of W can be read up to the end of its last vector, and x has R rows of 2 · N planes.
            unsafe {
                // Closures would not become part of the loop.
                let mut codes = [C::split(b, b.load(ws[0].add(at))); O];
                for o in 1..O {
                    codes[o] = C::split(b, b.load(ws[o].add(at)));
                }
                for w in ws {
                    prefetch(w.wrapping_add(at + ahead));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    for part in 0..2 {
                        let mut xs = codes[0][part];
                        for (i, xs) in xs.iter_mut().enumerate() {
                            *xs = b.load(x.add(r * stride + (2 * i + part) * plane + at));
                        }
                        for (sums, codes) in sums.iter_mut().zip(codes) {
                            sums[part] = b.dot(sums[part], codes[part], xs);
                        }
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (o, &sums) in sums.iter().enumerate() {
                let (row, output) = (row + r, output + o);
                let sum = p.factor * b.total(C::join(b, sums)) - p.x.sums[row];
                let scale = p.x_scales[row] * p.scales[output * p.scale_stride];
                let bias = p.bias.map_or(0.0, |bias| bias[output].widen());
                // SAFETY: there is room for it, and it is this thread's.
                unsafe {
                    let to = p.out.get().add(row * p.outputs + output);
                    *to = T::narrow(sum as f32 * scale + bias);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{bitlinear, reference};
    use crate::cpu::dot::with_every_isa;
    use crate::ops::quantize::{quantize, Grid, Per, Scheme};
    use candle_core::{Device, Result, Tensor};

    #[test]
    fn every_instruction_set_is_exact() -> Result<()> {
        let wave = |rows: usize, cols: usize| {
            let value = |i: usize| (i as f32 * 0.7).sin() + (i % 11) as f32 / 8.0 - 0.6;
            let values: Vec<f32> = (0..rows * cols).map(value).collect();
            Tensor::from_vec(values, (rows, cols), &Device::Cpu)
        };
        for cols in [1, 127, 300] {
            for grid in [Grid::Ternary, Grid::Sign { centred: true }] {
                // Past what a block has of either.
                let (x, w) = (wave(6, cols)?, wave(7, cols)?);
                let w = quantize(&w, Scheme::new(grid, Per::Row))?;
                let want = reference(&x, &w, None)?.to_vec2::<f32>()?.concat();
                with_every_isa(|isa| {
                    let got = bitlinear(&x, &w, None).and_then(|y| y.to_vec2::<f32>());
                    for (got, want) in got.unwrap().concat().iter().zip(&want) {
                        let most = 1e-5 * want.abs() + 1e-5;
                        assert!((got - want).abs() < most, "{got} {want} {isa:?} {grid:?}");
                    }
                });
            }
        }
        Ok(())
    }
}
