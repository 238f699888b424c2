//! The rows of quantised keys and values, as kernels read them.

use super::call::bytes;
use super::rows::{Block, Fetch, KvRows, Rows, LINE};
use super::scores::first;
use crate::cpu::matmul::micro::pack;
use crate::cpu::simd::{prefetch, Simd, MAX_LANES};
use crate::op::on_cpu::Arg;
use crate::ops::attention::geometry::Axes;
use crate::quant::{KvCodes, Levels};
use candle_core::{Layout, Result};

/// Codes of `BITS`, 4 or 8, with scales for groups: a number is `code · scale + base`.
pub struct CodeRows<'a, const BITS: usize> {
    codes: Rows<'a, u8>,
    scales: Rows<'a, f32>,
    offsets: Option<Rows<'a, f32>>,
    signed: bool,
    /// Whether offsets are zero points, and so `base` is −offset · scale.
    zeros: bool,
    /// How many numbers share a scale; as a power of two if it is one.
    group: usize,
    shift: Option<u32>,
}

/// A row of codes, of their scales and of their offsets.
#[derive(Clone, Copy)]
pub struct CodeRow {
    codes: *const u8,
    scales: *const f32,
    offsets: Option<*const f32>,
}

impl<'a, const BITS: usize> CodeRows<'a, BITS> {
    /// The arguments are the codes, the scales and perhaps the offsets of `kv`, which has been checked and has codes of `BITS`.
    pub fn new(axes: Axes, kv: &KvCodes, args: &[Arg<'a>]) -> Result<Self> {
        let copy = |data: &'a [u8], layout: &Layout| bytes(data, layout).into();
        let (codes, layout) = args[0];
        let group = kv.group();
        Ok(CodeRows {
            codes: Rows::of(axes, codes.as_slice::<u8>()?, layout, copy),
            scales: Rows::new(axes, args[1])?,
            offsets: args.get(2).map(|&arg| Rows::new(axes, arg)).transpose()?,
            signed: kv.scheme.levels == Levels::Int8,
            zeros: matches!(kv.scheme.levels, Levels::ZeroPoint { .. }),
            group,
            shift: group.is_power_of_two().then(|| group.trailing_zeros()),
        })
    }

    /// The codes from `p` on.
    ///
    /// # Safety
    /// `p` is valid for reads of a vector of codes.
    #[inline(always)]
    unsafe fn codes<S: Simd>(s: S, p: *const u8, signed: bool) -> S::F {
        // SAFETY: by the contract.
        s.to_float(unsafe {
            match BITS {
                4 => s.load_u4(p),
                _ if signed => s.load_i8(p),
                _ => s.load_u8(p),
            }
        })
    }

    /// The scale and the base of a column.
    ///
    /// # Safety
    /// The row exists and has such a column.
    #[inline(always)]
    unsafe fn scale(&self, row: CodeRow, col: usize) -> (f32, f32) {
        let group = match self.shift {
            Some(shift) => col >> shift,
            None => col / self.group,
        };
        // SAFETY: the column has a group, and each group a scale and, where there are offsets, one of these.
        unsafe {
            let scale = *row.scales.add(group);
            let base = match row.offsets {
                None => 0.0,
                Some(offsets) if self.zeros => -*offsets.add(group) * scale,
                Some(offsets) => *offsets.add(group),
            };
            (scale, base)
        }
    }

    /// The scales and bases of neighbouring columns of several groups.
    ///
    /// # Safety
    /// The row exists and has `left` columns from `col` on.
    #[inline(always)]
    unsafe fn scales<S: Simd>(&self, s: S, row: CodeRow, col: usize, left: usize) -> (S::F, S::F) {
        let (mut scales, mut bases) = ([0f32; MAX_LANES], [0f32; MAX_LANES]);
        // SAFETY: the contract is the same. The arrays have whole vectors.
        unsafe {
            self.gather_scales(row, col, left.min(S::LANES), &mut scales, &mut bases);
            (s.load_f32(scales.as_ptr()), s.load_f32(bases.as_ptr()))
        }
    }

    /// The first `n` of [`CodeRows::scales`]. A function of its own, without vectors: every load of codes would have a copy of it.
    ///
    /// # Safety
    /// The row exists and has `n` columns from `col` on.
    #[inline(never)]
    unsafe fn gather_scales(
        &self,
        row: CodeRow,
        col: usize,
        n: usize,
        scales: &mut [f32; MAX_LANES],
        bases: &mut [f32; MAX_LANES],
    ) {
        for (i, (scale, base)) in scales.iter_mut().zip(bases).enumerate().take(n) {
            // SAFETY: i < n.
            (*scale, *base) = unsafe { self.scale(row, col + i) };
        }
    }
}

/// A vector of codes with `n` bytes, and zeros behind them. A function of its own for the same reason.
///
/// # Safety
/// `p` is valid for reads of `n` bytes.
#[inline(never)]
unsafe fn few_codes(p: *const u8, n: usize, few: &mut [u8; MAX_LANES]) {
    for (i, to) in few.iter_mut().enumerate().take(n) {
        // SAFETY: i < n.
        *to = unsafe { *p.add(i) };
    }
}

impl<const BITS: usize> KvRows for CodeRows<'_, BITS> {
    type Row = CodeRow;
    type Direct = DirectCodes<BITS>;

    #[inline(always)]
    fn direct(block: Block<Self>, dim: usize) -> Option<DirectCodes<BITS>> {
        let rows = block.rows;
        let first = rows.row(block.batch, block.head, block.first);
        let shift = rows.shift?;
        let offsets = match (BITS, first.offsets) {
            (4, Some(offsets)) if !rows.zeros => Some((offsets, rows.offsets.as_ref()?)),
            (8, None) if rows.signed => None,
            _ => return None,
        };
        if !rows.group.is_multiple_of(MAX_LANES) || !dim.is_multiple_of(MAX_LANES) {
            return None;
        }
        let (offsets, offset_stride) = match offsets {
            Some((offsets, rows)) => (offsets, rows.strides.seq),
            None => (first.scales, 0),
        };
        Some(DirectCodes {
            first: DirectRow {
                codes: first.codes,
                scales: first.scales,
                offsets,
            },
            strides: [
                rows.codes.strides.seq,
                rows.scales.strides.seq,
                offset_stride,
            ],
            shift,
        })
    }
    #[inline(always)]
    fn row(&self, batch: usize, head: usize, seq: usize) -> CodeRow {
        CodeRow {
            codes: self.codes.row(batch, head, seq),
            scales: self.scales.row(batch, head, seq),
            offsets: self.offsets.as_ref().map(|rows| rows.row(batch, head, seq)),
        }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: CodeRow, col: usize, left: usize) -> S::F {
        // SAFETY: the row has `left` codes from `col` on, which is the first of a byte.
        unsafe {
            let p = row.codes.add(col * BITS / 8);
            let codes = match left >= S::LANES {
                true => Self::codes(s, p, self.signed),
                false => {
                    let mut few = [0u8; MAX_LANES];
                    few_codes(p, (left * BITS).div_ceil(8), &mut few);
                    Self::codes(s, few.as_ptr(), self.signed)
                }
            };
            let (scale, base) = match self.group.is_multiple_of(S::LANES) {
                true => {
                    let (scale, base) = self.scale(row, col);
                    (s.splat(scale), s.splat(base))
                }
                false => self.scales(s, row, col, left),
            };
            first(s, left, s.fma(codes, scale, base), 0.0)
        }
    }
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(block: Block<Self>, s: S, len: usize, dim: usize, out: *mut f32) {
        // SAFETY: the contract is the same.
        unsafe { pack::col_strips_of(s, len, dim, &block, out) }
    }
}

/// Rows of the codes that a cache makes: of 8 bits with scales alone, or of 4 bits with scales and offsets. Groups are a power of
/// two, and rows and groups are whole vectors.
#[derive(Clone, Copy)]
pub struct DirectCodes<const BITS: usize> {
    first: DirectRow,
    /// The distances of the rows of codes, of scales and of offsets.
    strides: [usize; 3],
    /// How many numbers share a scale, as a power of two.
    shift: u32,
}

/// A row of [`DirectCodes`]. Without offsets, that pointer is never read.
#[derive(Clone, Copy)]
pub struct DirectRow {
    codes: *const u8,
    scales: *const f32,
    offsets: *const f32,
}

impl<const BITS: usize> Fetch for DirectCodes<BITS> {
    type Row = DirectRow;

    #[inline(always)]
    fn row(&self, i: usize) -> DirectRow {
        let [codes, scales, offsets] = self.strides;
        DirectRow {
            codes: self.first.codes.wrapping_add(i * codes),
            scales: self.first.scales.wrapping_add(i * scales),
            offsets: self.first.offsets.wrapping_add(i * offsets),
        }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: DirectRow, col: usize, _: usize) -> S::F {
        let group = col >> self.shift;
        // SAFETY: the row has whole vectors of codes, and a scale and, for 4 bits, an offset for each group.
        unsafe {
            let p = row.codes.add(col * BITS / 8);
            let scale = s.splat(*row.scales.add(group));
            match BITS {
                4 => {
                    let offset = s.splat(*row.offsets.add(group));
                    s.fma(s.to_float(s.load_u4(p)), scale, offset)
                }
                _ => s.mul(s.to_float(s.load_i8(p)), scale),
            }
        }
    }
    #[inline(always)]
    fn ask_for(&self, i: usize, col: usize) {
        if (col * BITS / 8).is_multiple_of(LINE) {
            let codes = self.first.codes.wrapping_add(i * self.strides[0]);
            prefetch(codes.wrapping_add(col * BITS / 8));
        }
    }
    #[inline(always)]
    fn row_bytes(&self, dim: usize) -> usize {
        dim * BITS / 8
    }
}
