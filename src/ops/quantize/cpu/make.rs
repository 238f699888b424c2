//! What is made of numbers and their codes.

use super::super::Scheme;
use crate::cpu::codes;
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{Simd, MAX_LANES};

/// What is made of x and its codes.
pub(super) trait Make<T>: Copy + Send + Sync {
    /// Bytes of room that each column takes until all have been put.
    fn room(&self) -> usize {
        0
    }

    /// Writes columns from `at` on, LANES of them or `left` if that is less.
    ///
    /// # Safety
    /// They exist, and no other thread writes them.
    unsafe fn put<S: Simd>(&self, s: S, at: At, left: usize, lanes: Lanes<S>);

    /// After columns of a row have been put, by the same thread; `at` is the first.
    ///
    /// # Safety
    /// As for `put`.
    unsafe fn finish(&self, _at: At, _count: usize) {}
}

/// A place in a row.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) row: usize,
    pub(super) col: usize,
    /// Its byte of the room, if there is any.
    pub(super) room: *mut u8,
}

impl At {
    /// So many columns further.
    #[inline(always)]
    pub(super) fn right(self, by: usize) -> Self {
        At {
            col: self.col + by,
            room: self.room.wrapping_add(by),
            ..self
        }
    }
}

/// The codes of some columns as numbers, and what they come from.
pub(super) struct Lanes<S: Simd> {
    pub(super) codes: S::F,
    /// x in steps from the first code, before it was rounded.
    pub(super) positions: S::F,
    /// As [`Units::at`] has them.
    pub(super) unit: [S::F; 4],
}

/// Codes, packed a row (or a block of it) at a time.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    pub(super) scheme: &'a Scheme,
    pub(super) to: Shared<u8>,
    pub(super) row_bytes: usize,
    /// Whether bytes hold several.
    pub(super) packed: bool,
}

impl<T: Element> Make<T> for Codes<'_> {
    fn room(&self) -> usize {
        self.packed.into()
    }

    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, at: At, left: usize, lanes: Lanes<S>) {
        // The integer is in the lowest bits of what is beyond all fractions.
        let bits = s.bits(s.add(lanes.codes, s.splat(LARGE)));
        let to = match self.packed {
            true => at.room,
            false => self.to.get().add(at.row * self.row_bytes + at.col),
        };
        if left >= S::LANES {
            return s.store_u8(to, bits);
        }
        let mut few = [0; MAX_LANES];
        s.store_u8(few.as_mut_ptr(), bits);
        std::ptr::copy_nonoverlapping(few.as_ptr(), to, left);
    }

    unsafe fn finish(&self, at: At, count: usize) {
        if !self.packed {
            return;
        }
        let codes = std::slice::from_raw_parts(at.room, count);
        let start = at.col / self.scheme.per_byte();
        let bytes = self.scheme.row_bytes(count);
        let to = self.to.get().add(at.row * self.row_bytes + start);
        codes::pack(
            self.scheme,
            codes,
            std::slice::from_raw_parts_mut(to, bytes),
        );
    }
}

/// 1.5 · 2²³: f32 has no fractions there.
pub(super) const LARGE: f32 = 12_582_912.0;

/// The values of the codes.
#[derive(Clone, Copy)]
pub(super) struct Values<T> {
    pub(super) to: Shared<T>,
    pub(super) cols: usize,
}

impl<T: Element> Make<T> for Values<T> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, at: At, left: usize, lanes: Lanes<S>) {
        let values = values(s, lanes.codes, lanes.unit);
        store(
            s,
            self.to.get().add(at.row * self.cols + at.col),
            left,
            values,
        );
    }
}

/// `(code − zero) · scale + bias`
#[inline(always)]
pub(super) fn values<S: Simd>(s: S, codes: S::F, [_, zero, bias, scale]: [S::F; 4]) -> S::F {
    s.add(s.mul(s.sub(codes, zero), scale), bias)
}

#[inline(always)]
pub(super) unsafe fn store<S: Simd, T: Element>(s: S, to: *mut T, left: usize, x: S::F) {
    match left >= S::LANES {
        true => T::store(s, to, x),
        false => T::store_partial(s, to, left, x),
    }
}

/// The gradients of what the codes reach.
#[derive(Clone, Copy)]
pub(super) struct Clipped<'a, T> {
    pub(super) g: &'a RowView<'a, T>,
    pub(super) to: Shared<T>,
    pub(super) cols: usize,
    pub(super) first: f32,
    pub(super) last: f32,
}

// SAFETY: the view is only read.
unsafe impl<T> Send for Clipped<'_, T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Clipped<'_, T> {}

impl<T: Element> Make<T> for Clipped<'_, T> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, s: S, at: At, left: usize, lanes: Lanes<S>) {
        let g = T::load_upto(s, self.g.row(at.row).add(at.col), left);
        let zero = s.splat(0.0);
        let v = lanes.positions;
        let g = s.select(s.lt(v, s.splat(self.first - 0.5)), zero, g);
        let g = s.select(s.lt(s.splat(self.last + 0.5), v), zero, g);
        // Where there is no position there is no gradient either.
        let g = s.select(s.eq(v, v), g, zero);
        store(s, self.to.get().add(at.row * self.cols + at.col), left, g);
    }
}
