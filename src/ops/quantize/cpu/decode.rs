//! The values of codes.

use super::super::{Dequantize, Grid, Per, Scheme};
use super::make::values;
use super::unit::{ColumnUnits, Unit, Units};
use super::{Arg, BLOCK};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::cpu::{alloc, codes};
use candle_core::{CpuStorage, DType, Result};
use std::ops::Range;

/// The values of codes.
pub fn dequantize(
    op: &Dequantize,
    (codes, cl): Arg,
    (scales, sl): Arg,
    offsets: Option<Arg>,
) -> Result<CpuStorage> {
    let codes = &codes.as_slice::<u8>()?[cl.start_offset()..];
    let scales = &scales.as_slice::<f32>()?[sl.start_offset()..];
    let offsets = match offsets {
        Some((offsets, l)) => &offsets.as_slice::<f32>()?[l.start_offset()..],
        None => &[],
    };
    let decoder = Decoder {
        scheme: &op.scheme,
        codes,
        scales,
        offsets,
        cols: op.shape.dims()[op.shape.rank() - 1],
    };
    let count = op.shape.elem_count();
    match op.dtype {
        DType::F32 => Ok(f32::wrap(decoder.run(count))),
        DType::F16 => Ok(half::f16::wrap(decoder.run(count))),
        DType::BF16 => Ok(half::bf16::wrap(decoder.run(count))),
        dtype => Err(crate::check::unsupported_dtype("dequantize", dtype)),
    }
}

/// Packed rows and their units.
#[derive(Clone, Copy)]
pub struct Decoder<'a> {
    pub scheme: &'a Scheme,
    pub codes: &'a [u8],
    pub scales: &'a [f32],
    /// Empty where there are none.
    pub offsets: &'a [f32],
    pub cols: usize,
}

impl Decoder<'_> {
    fn run<T: Element>(&self, count: usize) -> Vec<T> {
        let rows = count / self.cols.max(1);
        let blocks = self.cols.div_ceil(BLOCK);
        let columns = match self.scheme.per {
            Per::Column => {
                let units: Vec<Unit> = (0..self.cols).map(|col| self.unit(col)).collect();
                Some(ColumnUnits::new(&units))
            }
            _ => None,
        };
        // SAFETY: every block is written.
        unsafe {
            alloc::build(count, |to: *mut T| {
                let to = Shared::new(to);
                let cost = 2 * self.cols.min(BLOCK);
                parallel::ranges(rows * blocks, cost, 1, |range| {
                    for n in range {
                        let (row, start) = (n / blocks, n % blocks * BLOCK);
                        let cols = start..self.cols.min(start + BLOCK);
                        let to = to.get().add(row * self.cols + start);
                        let columns = columns.as_ref();
                        dispatch(Decode {
                            decoder: self,
                            row,
                            cols,
                            to,
                            columns,
                        });
                    }
                });
            })
        }
    }

    /// Some columns of a row, whose units are not those of columns; the first is the first of a byte.
    ///
    /// # Safety
    /// They exist, and `to` has room for them.
    pub unsafe fn decode<T: Element>(&self, row: usize, cols: Range<usize>, to: *mut T) {
        dispatch(Decode {
            decoder: self,
            row,
            cols,
            to,
            columns: None,
        })
    }

    /// One element of a weight whose codes are bits and whose units are not those of columns.
    pub fn value(&self, row: usize, col: usize) -> f32 {
        let Decoder { scheme, cols, .. } = *self;
        let (per_byte, bits) = (scheme.per_byte(), scheme.bits() as usize);
        let byte = self.codes[row * scheme.row_bytes(cols) + col / per_byte];
        let code = (byte >> (bits * (col % per_byte))) & (u8::MAX >> (8 - bits));
        let code = match scheme.grid {
            Grid::Int8 => f32::from(code as i8),
            _ => f32::from(code),
        };
        let unit = self.unit(match scheme.per {
            Per::Tensor | Per::Column => 0,
            Per::Row => row,
            Per::Group(group) => row * (cols / group) + col / group,
        });
        (code - unit.zero) * unit.scale + unit.bias
    }

    /// As [`Units::at`] has it, for a unit that is shared by all columns or a group.
    fn unit(&self, index: usize) -> Unit {
        let offset = self.offsets.get(index).copied().unwrap_or(0.0);
        let scale = self.scales[index];
        let (zero, bias, scale) = match self.scheme.grid {
            Grid::Ternary => (1.0, 0.0, scale),
            Grid::Sign { .. } => (0.5, 0.0, 2.0 * scale),
            Grid::Int8 => (0.0, 0.0, scale),
            Grid::ZeroPoint { .. } => (offset, 0.0, scale),
            Grid::Affine { .. } => (0.0, offset, scale),
        };
        Unit {
            factor: 0.0,
            zero,
            bias,
            scale,
        }
    }
}

struct Decode<'a, T> {
    decoder: &'a Decoder<'a>,
    row: usize,
    cols: Range<usize>,
    to: *mut T,
    columns: Option<&'a ColumnUnits>,
}

impl<T: Element> Kernel for Decode<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Decoder { scheme, cols, .. } = *self.decoder;
        let per_byte = scheme.per_byte();
        let start = self.row * scheme.row_bytes(cols) + self.cols.start / per_byte;
        let bytes = &self.decoder.codes[start..start + scheme.row_bytes(self.cols.len())];
        let mut room = Vec::new();
        let codes = match per_byte {
            1 => bytes,
            _ => {
                room.resize(self.cols.len(), 0);
                codes::unpack(scheme, bytes, &mut room);
                &room
            }
        };
        if let Some(columns) = self.columns {
            return self.part(s, codes, 0, columns.of(self.cols.clone()));
        }
        match scheme.per {
            Per::Tensor | Per::Column => self.part(s, codes, 0, self.decoder.unit(0)),
            Per::Row => self.part(s, codes, 0, self.decoder.unit(self.row)),
            Per::Group(group) => {
                let mut col = self.cols.start;
                while col < self.cols.end {
                    let end = (col / group + 1) * group;
                    let end = end.min(self.cols.end);
                    let unit = self.decoder.unit(self.row * (cols / group) + col / group);
                    let first = col - self.cols.start;
                    self.part(s, &codes[first..first + end - col], first, unit);
                    col = end;
                }
            }
        }
    }
}

impl<T: Element> Decode<'_, T> {
    /// Codes of columns from `first` on, as this part counts them.
    #[inline(always)]
    fn part<S: Simd, U: Units>(&self, s: S, codes: &[u8], first: usize, units: U) {
        match self.decoder.scheme.grid {
            Grid::Int8 => self.values::<S, U, true>(s, codes, first, units),
            _ => self.values::<S, U, false>(s, codes, first, units),
        }
    }

    #[inline(always)]
    fn values<S: Simd, U: Units, const SIGNED: bool>(
        &self,
        s: S,
        codes: &[u8],
        first: usize,
        units: U,
    ) {
        let (from, count) = (codes.as_ptr(), codes.len());
        let whole = count / S::LANES * S::LANES;
        // SAFETY: there are as many codes, and room for as many values.
        unsafe {
            let to = self.to.add(first);
            for i in (0..whole).step_by(S::LANES) {
                let codes = number::<S, SIGNED>(s, from.add(i));
                let unit = units.at(s, first + i, S::LANES);
                T::store(s, to.add(i), values(s, codes, unit));
            }
            if whole < count {
                let left = count - whole;
                let mut few = [0; MAX_LANES];
                std::ptr::copy_nonoverlapping(from.add(whole), few.as_mut_ptr(), left);
                let codes = number::<S, SIGNED>(s, few.as_ptr());
                let unit = units.at(s, first + whole, left);
                T::store_partial(s, to.add(whole), left, values(s, codes, unit));
            }
        }
    }
}

/// Bytes as numbers.
///
/// # Safety
/// There are as many as lanes.
#[inline(always)]
unsafe fn number<S: Simd, const SIGNED: bool>(s: S, from: *const u8) -> S::F {
    let bytes = s.load_u8(from);
    s.to_float(match SIGNED {
        true => s.sar::<24>(s.shl::<24>(bytes)),
        false => bytes,
    })
}
