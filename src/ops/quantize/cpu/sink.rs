//! Sinks: what the encoder's codes become. Packed bytes for `quantize`, values for `fake_quantize`, and the gradient of the
//! clipped form.

use super::rounding::{Encoded, ROUNDER};
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{Simd, MAX_LANES};
use crate::quant::{self, Scheme};
use std::ops::Range;

/// Columns whose codes are staged, one to a byte, before they are packed: whole bytes of every packing (a multiple of 8 and
/// of 5), whole vectors, and little of an L1 cache.
pub(super) const STAGED: usize = 640;

/// Where a vector of columns lies.
#[derive(Clone, Copy)]
pub(super) struct RowCursor {
    pub(super) row: usize,
    pub(super) col: usize,
    /// Byte `col % STAGED` of the staging memory, where the first column's code goes.
    pub(super) staged: *mut u8,
}

/// Takes encoded elements, a vector at a time.
pub(super) trait Sink<T>: Copy + Send + Sync {
    /// Takes `count` columns, or LANES if `count` is more.
    ///
    /// # Safety
    /// The sink was made for these columns; no other thread writes them; `at.staged` is valid for writes of a byte for each.
    unsafe fn put<S: Simd>(&self, s: S, at: RowCursor, count: usize, encoded: Encoded<S>);

    /// Writes `cols` of a row, up to STAGED columns that have all been put since the last flush.
    ///
    /// # Safety
    /// As for `put`; `cols` begins with a multiple of STAGED, and `staged` is the staging memory that it was put with.
    unsafe fn flush(&self, _row: usize, _cols: Range<usize>, _staged: *const u8) {}
}

/// Packed codes.
#[derive(Clone, Copy)]
pub(super) struct PackedCodes<'a> {
    scheme: &'a Scheme,
    to: Shared<u8>,
    row_bytes: usize,
    /// Codes of a whole byte are written without staging.
    staged: bool,
}

impl<'a> PackedCodes<'a> {
    /// # Safety
    /// `to` is valid for writes of `scheme.row_bytes(cols)` bytes for each row that is put.
    pub(super) unsafe fn new(scheme: &'a Scheme, to: *mut u8, cols: usize) -> Self {
        PackedCodes {
            scheme,
            to: Shared::new(to),
            row_bytes: scheme.row_bytes(cols),
            staged: scheme.per_byte() > 1,
        }
    }

    /// Where a byte of a row goes.
    #[inline(always)]
    fn byte(&self, row: usize, byte: usize) -> *mut u8 {
        self.to.get().wrapping_add(row * self.row_bytes + byte)
    }
}

impl<T: Element> Sink<T> for PackedCodes<'_> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, at: RowCursor, count: usize, encoded: Encoded<S>) {
        // The sum's lowest byte is the code, see ROUNDER.
        let bits = s.bits(s.add(encoded.codes, s.splat(ROUNDER)));
        let to = match self.staged {
            true => at.staged,
            false => self.byte(at.row, at.col),
        };
        // SAFETY: the caller gives this thread `count` columns from `at.col` on. Without staging a column is a byte of the
        // output, which `new` was promised room for; with staging `at.staged` has a byte for each. `few` has room for LANES.
        unsafe {
            if count >= S::LANES {
                return s.store_u8(to, bits);
            }
            let mut few = [0; MAX_LANES];
            s.store_u8(few.as_mut_ptr(), bits);
            std::ptr::copy_nonoverlapping(few.as_ptr(), to, count);
        }
    }

    unsafe fn flush(&self, row: usize, cols: Range<usize>, staged: *const u8) {
        if !self.staged {
            return;
        }
        let bytes = self.scheme.row_bytes(cols.len());
        let to = self.byte(row, cols.start / self.scheme.per_byte());
        // SAFETY: all `cols.len()` staged codes have been put. `cols.start` is a multiple of STAGED and so of the codes of a
        // byte, so the bytes are those of these columns alone, and they end with the row at the latest.
        let (codes, to) = unsafe {
            (
                std::slice::from_raw_parts(staged, cols.len()),
                std::slice::from_raw_parts_mut(to, bytes),
            )
        };
        quant::pack(self.scheme, codes, to);
    }
}

/// The values that the codes stand for.
#[derive(Clone, Copy)]
pub(super) struct Values<T> {
    to: Shared<T>,
    cols: usize,
}

impl<T> Values<T> {
    /// # Safety
    /// `to` is valid for writes of `cols` elements for each row that is put.
    pub(super) unsafe fn new(to: *mut T, cols: usize) -> Self {
        Values {
            to: Shared::new(to),
            cols,
        }
    }
}

impl<T: Element> Values<T> {
    /// Writes `values` to `count` columns, or LANES if `count` is more.
    ///
    /// # Safety
    /// As for [`Sink::put`].
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, at: RowCursor, count: usize, values: S::F) {
        // SAFETY: `new` was promised `cols` elements for each row that is put, and the caller gives this thread the
        // columns from `at.col` on.
        unsafe {
            let to = self.to.get().add(at.row * self.cols + at.col);
            T::store_upto(s, to, count, values);
        }
    }
}

impl<T: Element> Sink<T> for Values<T> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, at: RowCursor, count: usize, encoded: Encoded<S>) {
        let values = encoded.params.value(s, encoded.codes);
        // SAFETY: the caller keeps the contract of `put`, which is that of `store`.
        unsafe { self.store(s, at, count, values) }
    }
}

/// The gradient g where x is at most half a step beyond the outermost codes, 0 elsewhere.
#[derive(Clone, Copy)]
pub(super) struct ClippedGrad<'a, T> {
    g: &'a RowView<'a, T>,
    to: Values<T>,
    lowest: f32,
    highest: f32,
}

impl<'a, T> ClippedGrad<'a, T> {
    /// # Safety
    /// `to` is valid for writes of `cols` elements for each row that is put, and g has these rows.
    pub(super) unsafe fn new(
        scheme: &Scheme,
        g: &'a RowView<'a, T>,
        to: *mut T,
        cols: usize,
    ) -> Self {
        ClippedGrad {
            g,
            // SAFETY: the caller promises the same of `to`.
            to: unsafe { Values::new(to, cols) },
            lowest: scheme.min_code() as f32 - 0.5,
            highest: scheme.max_code() as f32 + 0.5,
        }
    }
}

impl<T: Element> Sink<T> for ClippedGrad<'_, T> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, at: RowCursor, count: usize, encoded: Encoded<S>) {
        // SAFETY: `new` was promised that g has the rows that are put, and the columns of a row are `count` from `at.col` on.
        let g = unsafe { T::load_upto(s, self.g.row(at.row).add(at.col), count) };
        let zero = s.splat(0.0);
        let v = encoded.positions;
        let g = s.select(s.lt(v, s.splat(self.lowest)), zero, g);
        let g = s.select(s.lt(s.splat(self.highest), v), zero, g);
        // No gradient where the position is NaN.
        let g = s.select(s.eq(v, v), g, zero);
        // SAFETY: the caller keeps the contract of `put`, which is that of `store`.
        unsafe { self.to.store(s, at, count, g) };
    }
}
