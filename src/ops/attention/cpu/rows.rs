//! The rows of q, k and v, of gradients, and of quantised keys and values, as kernels read them.

use super::scores::first;
use crate::cpu::element::Element;
use crate::cpu::gather;
use crate::cpu::matmul::micro::pack::{self, Source};
use crate::cpu::simd::{prefetch, Simd, MAX_LANES};
use crate::op::Arg;
use crate::ops::attention::geometry::{Axes, Strides};
use crate::quant::{KvCodes, Levels};
use candle_core::{CpuStorage, Layout, Result};
use std::borrow::Cow;

/// A tensor whose rows, of the last dim, are dense.
pub struct Rows<'a, T: Clone> {
    data: Cow<'a, [T]>,
    strides: Strides,
}

impl<'a, T: Clone> Rows<'a, T> {
    /// The elements where they are if rows are dense, and by `copy`, which makes them contiguous, otherwise.
    fn of(
        axes: Axes,
        data: &'a [T],
        layout: &Layout,
        copy: impl FnOnce(&'a [T], &Layout) -> Cow<'a, [T]>,
    ) -> Self {
        let last = layout.dims().len() - 1;
        let dense = layout.dims()[last] == 1 || layout.stride()[last] == 1;
        let (data, strides) = match dense {
            true => (Cow::Borrowed(data), Strides::new(axes, layout)),
            false => (
                copy(data, layout),
                Strides::new(axes, &Layout::contiguous(layout.shape())),
            ),
        };
        Rows { data, strides }
    }

    /// A row. It exists, and so the pointer is valid, if the tensor has such a batch row, head and place in the sequence.
    #[inline(always)]
    pub fn row(&self, batch: usize, head: usize, seq: usize) -> *const T {
        let Strides {
            start,
            batch: b,
            head: h,
            seq: s,
        } = self.strides;
        let at = start + batch * b + head * h + seq * s;
        self.data.as_ptr().wrapping_add(at)
    }
}

impl<'a, T: Element> Rows<'a, T> {
    pub fn new(axes: Axes, (storage, layout): Arg<'a, CpuStorage>) -> Result<Self> {
        let data = storage.as_slice::<T>()?;
        Ok(Rows::of(axes, data, layout, gather::contiguous))
    }
}

/// Rows of keys, or of values, which are numbers of f32 once they are loaded.
pub trait KvRows: Sync {
    type Row: Copy;

    /// A row. It exists if there is such a batch row, head and place in the sequence.
    fn row(&self, batch: usize, head: usize, seq: usize) -> Self::Row;

    /// The numbers from `col` on, a multiple of the lanes; those beyond the `left` ones are 0.
    ///
    /// # Safety
    /// The row exists, and has `left` > 0 numbers from `col` on.
    unsafe fn load<S: Simd>(&self, s: S, row: Self::Row, col: usize, left: usize) -> S::F;

    /// Asks for a row of n numbers, which need not exist.
    fn prefetch(&self, row: Self::Row, n: usize);

    /// Packs `len` rows of `dim` numbers as strips, as [`pack::col_strips`] does.
    ///
    /// # Safety
    /// The rows of the block exist, and `out` has room for them.
    unsafe fn pack_keys<S: Simd>(
        block: Block<'_, Self>,
        s: S,
        len: usize,
        dim: usize,
        out: *mut f32,
    );
}

/// Rows of a head one behind the other, from `first` on.
pub struct Block<'a, R: ?Sized> {
    pub rows: &'a R,
    pub batch: usize,
    pub head: usize,
    pub first: usize,
}

impl<R: KvRows + ?Sized> Source for Block<'_, R> {
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: usize, col: usize, left: usize) -> S::F {
        let row = self.rows.row(self.batch, self.head, self.first + row);
        // SAFETY: the contract is the same.
        unsafe { self.rows.load(s, row, col, left) }
    }
}

#[inline(always)]
fn prefetch_bytes<T>(from: *const T, bytes: usize) {
    for i in (0..bytes).step_by(64) {
        prefetch(from.cast::<u8>().wrapping_add(i));
    }
}

impl<T: Element> KvRows for Rows<'_, T> {
    type Row = *const T;

    #[inline(always)]
    fn row(&self, batch: usize, head: usize, seq: usize) -> *const T {
        Rows::row(self, batch, head, seq)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: *const T, col: usize, left: usize) -> S::F {
        // SAFETY: `left` elements of the row follow.
        unsafe { T::load_upto(s, row.add(col), left) }
    }
    #[inline(always)]
    fn prefetch(&self, row: *const T, n: usize) {
        prefetch_bytes(row, n * size_of::<T>());
    }
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(block: Block<Self>, s: S, len: usize, dim: usize, out: *mut f32) {
        let Block {
            rows,
            batch,
            head,
            first,
        } = block;
        // SAFETY: the contract is the same.
        unsafe { pack::col_strips(s, len, dim, |i| rows.row(batch, head, first + i), out) }
    }
}

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
    pub fn new(axes: Axes, kv: &KvCodes, args: &[Arg<'a, CpuStorage>]) -> Result<Self> {
        let bytes = |data: &'a [u8], layout: &Layout| super::call::bytes(data, layout).into();
        let (codes, layout) = args[0];
        let group = kv.group();
        Ok(CodeRows {
            codes: Rows::of(axes, codes.as_slice::<u8>()?, layout, bytes),
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
    unsafe fn codes<S: Simd>(&self, s: S, p: *const u8) -> S::F {
        // SAFETY: by the contract.
        s.to_float(unsafe {
            match BITS {
                4 => s.load_u4(p),
                _ if self.signed => s.load_i8(p),
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
        for i in 0..left.min(S::LANES) {
            // SAFETY: i < left. The arrays have whole vectors.
            (scales[i], bases[i]) = unsafe { self.scale(row, col + i) };
        }
        // SAFETY: the arrays have whole vectors.
        unsafe { (s.load_f32(scales.as_ptr()), s.load_f32(bases.as_ptr())) }
    }
}

impl<const BITS: usize> KvRows for CodeRows<'_, BITS> {
    type Row = CodeRow;

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
                true => self.codes(s, p),
                false => {
                    let mut few = [0u8; MAX_LANES];
                    std::ptr::copy_nonoverlapping(p, few.as_mut_ptr(), (left * BITS).div_ceil(8));
                    self.codes(s, few.as_ptr())
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
    fn prefetch(&self, row: CodeRow, n: usize) {
        prefetch_bytes(row.codes, n * BITS / 8);
        prefetch(row.scales);
        if let Some(offsets) = row.offsets {
            prefetch(offsets);
        }
    }
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(block: Block<Self>, s: S, len: usize, dim: usize, out: *mut f32) {
        // SAFETY: the contract is the same.
        unsafe { pack::col_strips_of(s, len, dim, &block, out) }
    }
}
