//! The decoder: packed codes to values.

use super::params::{ColumnParams, RowParams, ScaleParams};
use crate::check;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::op::on_cpu::Arg;
use crate::ops::quantize::Dequantize;
use crate::quant::{self, Levels, ScaleScope, Scheme};
use candle_core::{CpuStorage, DType, Result, WithDType};
use std::ops::Range;

/// Columns that are unpacked and decoded at a time: whole bytes of every packing (a multiple of 40), and codes and f32
/// values for 200 KB, within an L2 cache.
const BLOCK: usize = 40 * 1024;
/// Cost of an element, in the units of [`parallel`].
const COST: usize = 2;

/// The values of codes; the arguments are codes, scales and, if the scheme has them, offsets.
pub fn dequantize(op: &Dequantize, args: &[Arg]) -> Result<CpuStorage> {
    let cols = op.shape.dims()[op.shape.rank() - 1];
    let decoder = Decoder::new(&op.scheme, cols, args[0], args[1], args.get(2).copied())?;
    let count = op.shape.elem_count();
    match op.dtype {
        DType::F32 => Ok(f32::wrap(decoder.run(count))),
        DType::F16 => Ok(half::f16::wrap(decoder.run(count))),
        DType::BF16 => Ok(half::bf16::wrap(decoder.run(count))),
        dtype => Err(check::unsupported_dtype("dequantize", dtype)),
    }
}

/// The elements of a contiguous argument.
pub fn elements<'a, T: WithDType>((storage, l): Arg<'a>) -> Result<&'a [T]> {
    // A view without elements may begin past the end.
    let data = storage.as_slice::<T>()?;
    Ok(&data[l.start_offset().min(data.len())..][..l.shape().elem_count()])
}

/// Rows of packed codes with their scales.
#[derive(Clone, Copy)]
pub struct Decoder<'a> {
    pub scheme: &'a Scheme,
    pub codes: &'a [u8],
    pub scales: &'a [f32],
    /// Empty if the scheme has none.
    pub offsets: &'a [f32],
    pub cols: usize,
}

impl<'a> Decoder<'a> {
    /// All arguments are contiguous.
    pub fn new(
        scheme: &'a Scheme,
        cols: usize,
        codes: Arg<'a>,
        scales: Arg<'a>,
        offsets: Option<Arg<'a>>,
    ) -> Result<Self> {
        Ok(Decoder {
            scheme,
            codes: elements(codes)?,
            scales: elements(scales)?,
            offsets: offsets.map_or(Ok(&[][..]), elements)?,
            cols,
        })
    }

    /// The values of the first `count` codes.
    fn run<T: Element>(&self, count: usize) -> Vec<T> {
        let rows = count / self.cols.max(1);
        let blocks = self.cols.div_ceil(BLOCK);
        let columns = match self.scheme.scope {
            ScaleScope::Column => {
                let params: Vec<_> = (0..self.cols).map(|col| self.params(col)).collect();
                Some(ColumnParams::new(&params))
            }
            _ => None,
        };
        // SAFETY: the blocks of all rows make up all `count` elements, `Decode` writes every element of its block, and the
        // ranges give each block to one thread. `columns` has parameters for all columns.
        unsafe {
            alloc::build(count, |to: *mut T| {
                let to = Shared::new(to);
                let cost = COST * self.cols.min(BLOCK);
                parallel::ranges(rows * blocks, cost, 1, |range| {
                    for n in range {
                        let (row, start) = (n / blocks, n % blocks * BLOCK);
                        let cols = start..self.cols.min(start + BLOCK);
                        let to = to.get().add(row * self.cols + start);
                        dispatch(Decode::new(self, row, cols, to, columns.as_ref()));
                    }
                });
            })
        }
    }

    /// Decodes columns of a row; the first is the first of a byte. The scales are not per column.
    ///
    /// # Safety
    /// `to` is valid for writes of an element for each column.
    pub unsafe fn decode<T: Element>(&self, row: usize, cols: Range<usize>, to: *mut T) {
        // SAFETY: the caller promises the same of `to`.
        dispatch(unsafe { Decode::new(self, row, cols, to, None) })
    }

    /// One value of a tensor in [`Packing::Bits`](quant::Packing) whose scales are not per column.
    pub fn value(&self, row: usize, col: usize) -> f32 {
        let Decoder { scheme, cols, .. } = *self;
        let (per_byte, bits) = (scheme.per_byte(), scheme.bits() as usize);
        let byte = self.codes[row * scheme.row_bytes(cols) + col / per_byte];
        let code = (byte >> (bits * (col % per_byte))) & (u8::MAX >> (8 - bits));
        let code = match scheme.levels {
            Levels::Int8 => f32::from(code as i8),
            _ => f32::from(code),
        };
        let params = self.params_at(row, col);
        (code - params.zero) * params.scale + params.bias
    }

    /// The parameters of an element whose scale is not per column.
    fn params_at(&self, row: usize, col: usize) -> ScaleParams {
        self.params(match self.scheme.scope {
            ScaleScope::Tensor | ScaleScope::Column => 0,
            ScaleScope::Row => row,
            ScaleScope::Group(group) => row * (self.cols / group) + col / group,
        })
    }

    /// The parameters of the scale with this index.
    fn params(&self, index: usize) -> ScaleParams {
        let offset = self.offsets.get(index).copied().unwrap_or(0.0);
        ScaleParams::of_stored(self.scheme.levels, self.scales[index], offset)
    }
}

/// Decodes columns of one row.
struct Decode<'a, T> {
    decoder: &'a Decoder<'a>,
    row: usize,
    cols: Range<usize>,
    /// The first column's value.
    to: *mut T,
    columns: Option<&'a ColumnParams>,
}

impl<'a, T> Decode<'a, T> {
    /// # Safety
    /// `to` is valid for writes of an element for each of `cols`, and `columns` has parameters for them.
    unsafe fn new(
        decoder: &'a Decoder<'a>,
        row: usize,
        cols: Range<usize>,
        to: *mut T,
        columns: Option<&'a ColumnParams>,
    ) -> Self {
        Decode {
            decoder,
            row,
            cols,
            to,
            columns,
        }
    }
}

impl<T: Element> Kernel for Decode<'_, T> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Decoder { scheme, cols, .. } = *self.decoder;
        let per_byte = scheme.per_byte();
        let start = self.row * scheme.row_bytes(cols) + self.cols.start / per_byte;
        let bytes = &self.decoder.codes[start..start + scheme.row_bytes(self.cols.len())];
        let mut unpacked = Vec::new();
        let codes = match per_byte {
            1 => bytes,
            _ => {
                unpacked.resize(self.cols.len(), 0);
                quant::unpack(scheme, bytes, &mut unpacked);
                &unpacked
            }
        };
        if let Some(columns) = self.columns {
            return self.decode_run(s, codes, self.cols.start, columns);
        }
        let group = match scheme.scope {
            ScaleScope::Group(group) => group,
            _ => cols,
        };
        let mut col = self.cols.start;
        while col < self.cols.end {
            let end = self.cols.end.min((col / group + 1) * group);
            let codes = &codes[col - self.cols.start..end - self.cols.start];
            self.decode_run(s, codes, col, self.decoder.params_at(self.row, col));
            col = end;
        }
    }
}

impl<T: Element> Decode<'_, T> {
    /// Decodes the unpacked codes of columns from `first` on.
    #[inline(always)]
    fn decode_run<S: Simd, P: RowParams>(&self, s: S, codes: &[u8], first: usize, params: P) {
        match self.decoder.scheme.levels {
            Levels::Int8 => self.decode_as::<S, P, true>(s, codes, first, params),
            _ => self.decode_as::<S, P, false>(s, codes, first, params),
        }
    }

    #[inline(always)]
    fn decode_as<S: Simd, P: RowParams, const SIGNED: bool>(
        &self,
        s: S,
        codes: &[u8],
        first: usize,
        params: P,
    ) {
        let (from, count) = (codes.as_ptr(), codes.len());
        let whole = count / S::LANES * S::LANES;
        // SAFETY: `run` passes the codes of `count` columns from `first` on, all of `self.cols`, for which `new` was promised
        // room in `to` and parameters. `i + LANES ≤ whole ≤ count`, and `whole + left = count`.
        unsafe {
            let to = self.to.add(first - self.cols.start);
            for i in (0..whole).step_by(S::LANES) {
                let codes = to_float::<S, SIGNED>(s, from.add(i));
                let params = params.lanes(s, first + i, S::LANES);
                T::store(s, to.add(i), params.value(s, codes));
            }
            if whole < count {
                let left = count - whole;
                let mut few = [0; MAX_LANES];
                std::ptr::copy_nonoverlapping(from.add(whole), few.as_mut_ptr(), left);
                let codes = to_float::<S, SIGNED>(s, few.as_ptr());
                let params = params.lanes(s, first + whole, left);
                T::store_partial(s, to.add(whole), left, params.value(s, codes));
            }
        }
    }
}

/// Bytes as numbers, in two's complement if `SIGNED`.
///
/// # Safety
/// `from` is valid for reads of LANES bytes.
#[inline(always)]
unsafe fn to_float<S: Simd, const SIGNED: bool>(s: S, from: *const u8) -> S::F {
    // SAFETY: the caller promises LANES bytes.
    let bytes = unsafe { s.load_u8(from) };
    s.to_float(match SIGNED {
        true => s.sar::<24>(s.shl::<24>(bytes)),
        false => bytes,
    })
}
