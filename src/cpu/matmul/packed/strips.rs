//! Rows of B, packed for all threads to read.
//!
//! ```text
//! for each step along k:  │ 32 rows │ 32 rows │ … │ 16 or 32 rows │      (of AVX-512: two vectors, or one at the end)
//! ```

use super::operand::{pack_strips, steps};
use crate::cpu::element::Element;
use crate::cpu::matmul::matrix::Matrix;
use crate::cpu::matmul::micro::{cols_of_tile, pack, COLS};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::marker::PhantomData;
use std::ops::Range;

/// The room that `rows` rows of `k` elements take at most.
pub fn len(rows: usize, k: usize) -> usize {
    rows.next_multiple_of(MAX_LANES) * k
}

/// Packed rows of elements of T.
pub struct Strips<T> {
    first: Shared<f32>,
    rows: Range<usize>,
    /// The elements of a row.
    k: usize,
    _elements: PhantomData<T>,
}

impl<T: Element> Strips<T> {
    /// Room for these rows of B, which are to be packed.
    ///
    /// # Safety
    /// B has these rows, and its rows or columns are dense. `to` has room for [`len`] numbers that nothing else touches as long
    /// as the strips are used.
    pub unsafe fn new(b: Matrix<T>, rows: Range<usize>, to: *mut f32) -> Self {
        Strips {
            first: Shared::new(to),
            rows,
            k: b.cols,
            _elements: PhantomData,
        }
    }

    /// Packs these rows of B, in parallel.
    ///
    /// # Safety
    /// As for [`Strips::new`].
    pub unsafe fn pack(b: Matrix<T>, rows: Range<usize>, to: *mut f32) -> Self {
        let count = rows.len();
        // SAFETY: the same contract.
        let strips = unsafe { Self::new(b, rows, to) };
        // Whole strips for each thread, of every instruction set, and of columns that are dense some cache lines of each. A
        // transposed element is four cheap ones.
        let least = match b.has_dense_rows() {
            true => COLS,
            false => 4 * COLS,
        };
        parallel::ranges(count, 4 * b.cols, least, |part| {
            // SAFETY: B has these rows, and the parts don't overlap.
            dispatch(unsafe { Pack::new(&strips, b, part) })
        });
        strips
    }

    /// The rows of B that are packed.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    pub fn slots<S: Simd>(&self) -> usize {
        pack::columns::<S, T>(self.k)
    }

    /// The first row of each strip, counted from the first packed one, and the width that the strip is padded to.
    #[inline(always)]
    pub fn each<S: Simd>(&self) -> impl Iterator<Item = (usize, usize)> {
        let (count, most) = (self.rows.len(), cols_of_tile::<S>());
        let width = move |first| most.min(count - first).next_multiple_of(S::LANES);
        (0..count)
            .step_by(most)
            .map(move |first| (first, width(first)))
    }

    /// Where the strip from this row on begins, of the packed ones and of this step.
    ///
    /// # Safety
    /// There is such a strip.
    #[inline(always)]
    pub unsafe fn at<S: Simd>(&self, slots: &Range<usize>, row: usize) -> *mut f32 {
        let padded = self.rows.len().next_multiple_of(S::LANES);
        // SAFETY: a slot of all strips takes `padded` numbers, for which there is room.
        unsafe {
            self.first
                .get()
                .add(slots.start * padded + row * slots.len())
        }
    }
}

/// Packs a part of the rows: whole strips.
pub struct Pack<'a, T> {
    strips: &'a Strips<T>,
    b: Matrix<'a, T>,
    part: Range<usize>,
}

impl<'a, T: Element> Pack<'a, T> {
    /// A part of the rows that the strips have room for, counted from the first of them.
    ///
    /// # Safety
    /// The strips were made for this B. The part begins at a multiple of COLS and ends at one or at the end; nothing else touches its
    /// strips.
    pub unsafe fn new(strips: &'a Strips<T>, b: Matrix<'a, T>, part: Range<usize>) -> Self {
        Pack { strips, b, part }
    }
}

impl<T: Element> Kernel for Pack<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pack { strips, b, part } = self;
        let (from, width) = (strips.rows.start, cols_of_tile::<S>());
        for slots in steps(strips.slots::<S>()) {
            // The last strip may have a width of its own.
            let last = strips.rows.len() / width * width;
            let whole = part.start..part.end.min(last);
            let rest = part.start.max(last)..part.end;
            let narrow = rest.len().next_multiple_of(S::LANES);
            for (rows, width) in [(whole, width), (rest, narrow)] {
                if !rows.is_empty() {
                    // SAFETY: B has these rows, and its rows or columns are dense; the strips have room for their width at each
                    // slot, and no other part has them.
                    unsafe {
                        let to = strips.at::<S>(&slots, rows.start);
                        let rows = from + rows.start..from + rows.end;
                        pack_strips(s, b, (rows, width), slots.clone(), to)
                    }
                }
            }
        }
    }
}
