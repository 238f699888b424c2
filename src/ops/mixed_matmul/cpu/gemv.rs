//! Few rows: W's codes are read once, and multiplied as integers.
//!
//! For that x is cut into bytes, see [`Sorted`]. As in `bitlinear` they lie so that W's codes can be multiplied as they are.

use super::sorted::{Shape, Sorted, PLANES};
use super::values::Values;
use crate::cpu::codes::CodeRows;
use crate::cpu::dot::{dispatch, four_bits, one_bit, two_bits, width, Bytes, Kernel, MAX_LANES};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::prefetch;
use crate::ops::quantize::cpu::Decoder;
use crate::ops::quantize::{Grid, Packing, Per};
use std::ops::Range;

/// Rows of W that a row of x meets at a time.
const OUTPUTS: usize = 4;

/// A product of rows of f32, or nothing where the codes are no matter for it.
pub struct Gemv<'a> {
    decoder: &'a Decoder<'a>,
    codes: CodeRows<'a>,
    outputs: usize,
    shape: Shape,
    /// Whether each vector has groups of its own, and how many.
    shared: bool,
    parts: usize,
    /// Otherwise, vectors of a group.
    blocks: usize,
    spreads: Vec<Lanes>,
    values: Values,
    x: Sorted,
}

/// Of which of as many groups as lanes each lane of a vector takes the scale.
#[repr(align(64))]
struct Lanes([i32; MAX_LANES]);

impl<'a> Gemv<'a> {
    pub fn new(decoder: &'a Decoder<'a>, x: &[f32], rows: usize, outputs: usize) -> Option<Self> {
        let cols = decoder.cols;
        let scheme = decoder.scheme;
        let (width, lanes) = (width(), width() / 4);
        let block = width * scheme.per_byte();
        let group = match scheme.per {
            Per::Group(group) => group,
            _ => cols,
        };
        let groups = cols.checked_div(group)?;
        // Vectors hold some groups, each as whole lanes, or groups hold some vectors.
        let shared = groups > 1 && block.is_multiple_of(group) && block / group <= lanes;
        let whole = groups == 1 || group.is_multiple_of(block);
        if scheme.packing != Packing::Bits || !(shared || whole) {
            return None;
        }
        let parts = if shared { block / group } else { 1 };
        let values = Values::of(scheme);
        let shape = Shape::new(
            [rows, cols],
            [scheme.per_byte(), width],
            [block / parts, group],
            values.middle as i32,
        );
        let spread = |vector: usize| {
            Lanes(std::array::from_fn(|lane| {
                (vector * parts + lane % lanes * parts / lanes) as i32
            }))
        };
        Some(Gemv {
            decoder,
            codes: CodeRows::new(decoder.codes, scheme.row_bytes(cols), width),
            outputs,
            shape,
            shared,
            parts,
            spreads: (0..lanes / parts).map(spread).collect(),
            blocks: group.div_ceil(block),
            values,
            x: Sorted::new(x, shape)?,
        })
    }

    /// # Safety
    /// `out` has room for every output of every row.
    pub unsafe fn run(&self, out: Shared<f32>) {
        let cols = self.decoder.cols;
        let cost = (cols / 4 + 16) * self.shape.rows;
        parallel::ranges(self.outputs, cost, OUTPUTS, |outputs| {
            let share = Share {
                gemv: self,
                out,
                outputs,
            };
            match self.decoder.scheme.bits() {
                1 => share.of_bits::<1>(),
                2 => share.of_bits::<2>(),
                4 => share.of_bits::<4>(),
                _ => share.of_bits::<8>(),
            }
        });
    }

    /// Of an output.
    #[inline(always)]
    fn units(&self, output: usize) -> Units<'_> {
        let Decoder {
            scheme,
            scales,
            offsets,
            ..
        } = *self.decoder;
        let groups = self.shape.groups;
        let first = match scheme.per {
            Per::Tensor => 0,
            _ => output * groups,
        };
        Units {
            scales: &scales[first..first + groups],
            offsets: match offsets {
                [] => &[],
                _ => &offsets[first..first + groups],
            },
        }
    }

    /// What the outliers of a row of x give. Rare, and no part of the loops around it.
    #[inline(never)]
    fn outliers(&self, row: usize, output: usize) -> f32 {
        let outliers = self.x.outliers[row].iter();
        outliers
            .map(|&(col, x)| x * self.decoder.value(output, col))
            .sum()
    }
}

/// The scales of an output's groups, and their offsets if there are any.
#[derive(Clone, Copy)]
struct Units<'a> {
    scales: &'a [f32],
    offsets: &'a [f32],
}

/// Some outputs of all rows, by one thread.
struct Share<'a> {
    gemv: &'a Gemv<'a>,
    out: Shared<f32>,
    outputs: Range<usize>,
}

impl Share<'_> {
    fn of_bits<const BITS: usize>(self) {
        match self.gemv.shared {
            false => dispatch(Bits::<BITS, false>(self)),
            true => dispatch(Bits::<BITS, true>(self)),
        }
    }
}

/// Of codes of so many bits, and whether vectors have groups of their own.
struct Bits<'a, const BITS: usize, const PARTS: bool>(Share<'a>);

impl<const BITS: usize, const PARTS: bool> Kernel for Bits<'_, BITS, PARTS> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        let outputs = self.0.outputs.clone();
        let whole = outputs.start + outputs.len() / OUTPUTS * OUTPUTS;
        for output in (outputs.start..whole).step_by(OUTPUTS) {
            self.rows::<B, OUTPUTS>(b, output);
        }
        for output in whole..outputs.end {
            self.rows::<B, 1>(b, output);
        }
    }
}

impl<const BITS: usize, const PARTS: bool> Bits<'_, BITS, PARTS> {
    /// All rows of x times O rows of W.
    #[inline(always)]
    fn rows<B: Bytes, const O: usize>(&self, b: B, output: usize) {
        let rows = self.0.gemv.shape.rows;
        let pairs = rows / 2 * 2;
        for row in (0..pairs).step_by(2) {
            match O {
                1 => self.block::<B, 2, 1>(b, row, output),
                _ => {
                    self.block::<B, 2, 2>(b, row, output);
                    self.block::<B, 2, 2>(b, row, output + 2);
                }
            }
        }
        if pairs < rows {
            self.block::<B, 1, O>(b, pairs, output);
        }
    }

    /// R rows of x times O rows of W.
    #[inline(always)]
    fn block<B: Bytes, const R: usize, const O: usize>(&self, b: B, row: usize, output: usize) {
        let Share { gemv, out, .. } = &self.0;
        let codes = std::array::from_fn(|o| gemv.codes.row(output + o));
        let units = std::array::from_fn(|o| gemv.units(output + o));
        let mut totals = [[b.splat(0.0); O]; R];
        match PARTS {
            true => self.parts(b, row, codes, &units, &mut totals),
            false => self.whole(b, row, codes, &units, &mut totals),
        }
        for (r, totals) in totals.into_iter().enumerate() {
            for (o, total) in totals.into_iter().enumerate() {
                let mut y = b.reduce_add(total);
                if !gemv.x.outliers[row + r].is_empty() {
                    y += gemv.outliers(row + r, output + o);
                }
                // SAFETY: there is room for it, and it is this thread's.
                unsafe { *out.get().add((row + r) * gemv.outputs + output + o) = y };
            }
        }
    }

    /// Adds what x gives with the middle codes of as many groups as lanes.
    #[inline(always)]
    fn middles<B: Bytes, const R: usize, const O: usize>(
        &self,
        b: B,
        row: usize,
        first: usize,
        units: &[Units; O],
        totals: &mut [[B::F; O]; R],
    ) {
        let Gemv {
            shape, values, x, ..
        } = self.0.gemv;
        let (groups, left) = (shape.groups, shape.groups - first);
        for (o, Units { scales, offsets }) in units.iter().enumerate() {
            // SAFETY: there are so many left of each, and of each of x's rows.
            unsafe {
                let (scale, offset) = (
                    scales.as_ptr().add(first),
                    offsets.as_ptr().wrapping_add(first),
                );
                // Those of the next outputs are a line of the cache.
                prefetch(scale.wrapping_add(OUTPUTS * groups));
                prefetch(offset.wrapping_add(OUTPUTS * groups));
                let scales = b.load_upto(scale, left);
                let mut middles = b.mul(b.splat(values.a), scales);
                if !offsets.is_empty() {
                    let offsets = b.load_upto(offset, left);
                    let slope = b.fma(b.splat(values.b), offsets, b.splat(values.a));
                    middles = b.fma(slope, scales, b.mul(b.splat(values.c), offsets));
                }
                for (r, totals) in totals.iter_mut().enumerate() {
                    let at = (row + r) * groups + first;
                    let sums = b.load_upto(x.sums.as_ptr().add(at), left);
                    let lows = b.load_upto(x.lows.as_ptr().add(at), left);
                    totals[o] = b.fma(sums, middles, b.fma(lows, scales, totals[o]));
                }
            }
        }
    }

    /// Adds the products, where a group is all of a row or several vectors.
    #[inline(always)]
    fn whole<B: Bytes, const R: usize, const O: usize>(
        &self,
        b: B,
        row: usize,
        codes: [*const u8; O],
        units: &[Units; O],
        totals: &mut [[B::F; O]; R],
    ) {
        let Gemv {
            shape,
            blocks,
            values,
            ref x,
            ..
        } = *self.0.gemv;
        for first in (0..shape.groups).step_by(B::WIDTH / 4) {
            self.middles(b, row, first, units, totals);
        }
        for group in 0..shape.groups {
            let mut sums = [[b.splat(0.0); O]; R];
            for vector in group * blocks..shape.vectors.min((group + 1) * blocks) {
                let mut scales = [[b.splat(0.0); O]; R];
                for (r, scales) in scales.iter_mut().enumerate() {
                    *scales = [b.splat(x.scales[(row + r) * shape.units + vector]); O];
                }
                self.add(b, row, vector, codes, scales, &mut sums);
            }
            for (o, units) in units.iter().enumerate() {
                let scale = b.splat(units.scales[group] * values.factor);
                for r in 0..R {
                    totals[r][o] = b.fma(sums[r][o], scale, totals[r][o]);
                }
            }
        }
    }

    /// Adds the products, where a vector is one group or several.
    #[inline(always)]
    fn parts<B: Bytes, const R: usize, const O: usize>(
        &self,
        b: B,
        row: usize,
        codes: [*const u8; O],
        units: &[Units; O],
        totals: &mut [[B::F; O]; R],
    ) {
        let Gemv {
            shape,
            parts,
            values,
            ref spreads,
            ref x,
            ..
        } = *self.0.gemv;
        let (groups, lanes) = (shape.groups, B::WIDTH / 4);
        for first in (0..groups).step_by(lanes) {
            let left = groups - first;
            self.middles(b, row, first, units, totals);
            let mut products = [[b.splat(0.0); O]; R];
            for (o, units) in units.iter().enumerate() {
                // SAFETY: there are so many left, and of each of x's rows.
                unsafe {
                    let scales = b.load_upto(units.scales.as_ptr().add(first), left);
                    let scales = b.mul(scales, b.splat(values.factor));
                    for (r, products) in products.iter_mut().enumerate() {
                        let at = (row + r) * groups + first;
                        products[o] = b.mul(scales, b.load_upto(x.scales.as_ptr().add(at), left));
                    }
                }
            }
            let vectors = &spreads[..left.min(lanes).div_ceil(parts)];
            for (vector, spread) in (first / parts..).zip(vectors) {
                let mut scales = products;
                for scales in &mut scales {
                    for scale in scales {
                        // SAFETY: there is one for each lane.
                        *scale = unsafe { b.permute(*scale, spread.0.as_ptr()) };
                    }
                }
                self.add(b, row, vector, codes, scales, totals);
            }
        }
    }

    /// Adds the products of a vector of codes and of what meets it of x, by `scales`.
    #[inline(always)]
    fn add<B: Bytes, const R: usize, const O: usize>(
        &self,
        b: B,
        row: usize,
        vector: usize,
        codes: [*const u8; O],
        scales: [[B::F; O]; R],
        sums: &mut [[B::F; O]; R],
    ) {
        let Gemv {
            decoder, shape, x, ..
        } = self.0.gemv;
        let signed = BITS == 8 && decoder.scheme.grid == Grid::Int8;
        // Rows are too short for the CPU to find out by itself where the next ones are.
        let ahead = OUTPUTS * self.0.gemv.codes.row_bytes();
        // SAFETY: rows of W can be read up to the end of their last vector, and x has R rows.
        unsafe {
            let bytes = x.bytes().add(row * shape.stride + vector * shape.record);
            for o in 0..O {
                let at = codes[o].add(vector * B::WIDTH);
                let mut v = b.load(at);
                prefetch(at.wrapping_add(ahead));
                if signed {
                    v = b.raise(v);
                }
                for r in 0..R {
                    let products = products::<B, BITS>(b, v, bytes.add(r * shape.stride));
                    sums[r][o] = b.fma(products, scales[r][o], sums[r][o]);
                }
            }
        }
    }
}

/// The products of a vector of codes and what meets it of a row of x, summed up to lanes.
///
/// # Safety
/// `x` is where [`Sorted`] has what meets the vector.
#[inline(always)]
unsafe fn products<B: Bytes, const BITS: usize>(b: B, v: B::V, x: *const u8) -> B::F {
    let middle = b.load_i32(x.cast());
    let x = x.add(B::WIDTH);
    match BITS {
        1 => of_few_bits::<B, 8>(b, one_bit(b, v), x, middle),
        2 => of_few_bits::<B, 4>(b, two_bits(b, v), x, middle),
        4 => of_few_bits::<B, 2>(b, four_bits(b, v), x, middle),
        _ => {
            // All three bytes are too many for an i32.
            let upper = b.dot_bytes(middle, v, b.load(x.add(2 * B::WIDTH)));
            let upper = b.dot_bytes(b.times_256(upper), v, b.load(x.add(B::WIDTH)));
            let lower = b.dot_bytes(b.zero(), v, b.load(x));
            b.fma(b.to_float(upper), b.splat(256.0), b.to_float(lower))
        }
    }
}

/// The same of codes whose largest is 30 / N at most. A lane adds up 4 · N products of 24 bits with those, which fits an i32.
#[inline(always)]
unsafe fn of_few_bits<B: Bytes, const N: usize>(
    b: B,
    codes: [B::V; N],
    x: *const u8,
    middle: B::Sum,
) -> B::F {
    let mut sum = middle;
    for p in (0..PLANES).rev() {
        let mut xs = codes;
        for (i, xs) in xs.iter_mut().enumerate() {
            *xs = b.load(x.add((i * PLANES + p) * B::WIDTH));
        }
        // Long chains had better not wait for each other.
        sum = match N > 4 && p + 1 < PLANES {
            true => b.add_part::<0>(sum, b.dot(b.zero(), codes, xs)),
            false => b.dot(sum, codes, xs),
        };
        if p > 0 {
            sum = b.times_256(sum);
        }
    }
    b.to_float(sum)
}
