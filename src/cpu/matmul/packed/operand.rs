//! The two sides of a product as the register blocks read them: B in packed strips, A where it lies or in a copy of a few rows.
//!
//! Either side is made of slots along k: numbers in f32, or pairs of bf16 where the CPU multiplies such.

use crate::cpu::element::Element;
use crate::cpu::matmul::matrix::Matrix;
use crate::cpu::matmul::micro::pack::{self, Elements, Paired, Source};
use crate::cpu::matmul::micro::pairs;
use crate::cpu::simd::{Simd, MAX_LANES};
use candle_core::DType;
use std::ops::Range;

/// Slots of a step along k: of six rows of A they are 9 KB of f32. On Zen 4, 256 and 512 are up to 4 % slower.
const STEP: usize = 384;

/// Room for a step of the copy of this many rows of A.
pub fn copy_len(rows: usize) -> usize {
    rows.next_multiple_of(MAX_LANES) * STEP
}

/// The parts of k, of which one is empty if k is 0. They depend on k alone, and with them the order of all additions.
pub fn steps(slots: usize) -> impl Iterator<Item = Range<usize>> {
    let count = slots.div_ceil(STEP).max(1);
    let len = slots.div_ceil(count).next_multiple_of(16);
    (0..count).map(move |i| (i * len).min(slots)..((i + 1) * len).min(slots))
}

/// Whether elements of T are multiplied as pairs.
#[inline(always)]
pub fn paired<S: Simd, T: Element>(m: &Matrix<T>) -> bool {
    pairs::suits::<S, T>(m.cols)
}

/// Calls `$body` with `$source` bound to the slots of a matrix, by its rows or by its columns.
macro_rules! with_source {
    ($S:ident, $m:expr, $by_row:literal, |$source:ident| $body:expr) => {{
        let m = $m;
        let (p, stride) = (m.as_ptr(), if $by_row { m.row } else { m.col });
        let row = |i: usize| p.wrapping_add(i * stride);
        match (paired::<$S, T>(&m), $by_row) {
            (false, _) => {
                let $source = &Elements(row);
                $body
            }
            (true, true) => {
                let $source = &Elements(|i| row(i).cast::<f32>());
                $body
            }
            (true, false) => {
                let $source = &Paired(row);
                $body
            }
        }
    }};
}

/// Slots from another one on.
struct From<'a, X>(&'a X, usize, usize);

impl<X: Source> Source for From<'_, X> {
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: usize, col: usize, left: usize) -> S::F {
        // SAFETY: the maker has such rows and columns from `self.1` and `self.2` on.
        unsafe { self.0.load(s, self.1 + row, self.2 + col, left) }
    }

    #[inline(always)]
    fn fetch(&self, row: usize, col: usize) {
        self.0.fetch(self.1 + row, self.2 + col);
    }
}

/// Packs these rows of B and these slots as strips of `width` rows: `width` numbers for each slot of a strip.
///
/// # Safety
/// B has these rows and slots, and its rows or its columns are dense. `width` is a multiple of the lanes, and `out` has room for
/// as many numbers of each slot of each strip.
#[inline(always)]
pub unsafe fn pack_strips<S: Simd, T: Element>(
    s: S,
    b: Matrix<T>,
    (rows, width): (Range<usize>, usize),
    slots: Range<usize>,
    out: *mut f32,
) {
    let (count, len) = (rows.len(), slots.len());
    // SAFETY: the matrix has the rows and slots that the sources are asked for.
    unsafe {
        match b.has_dense_rows() {
            true => with_source!(S, b, true, |source| {
                let source = From(source, rows.start, slots.start);
                pack::strips(s, count, len, width, &source, out)
            }),
            false => with_source!(S, b, false, |source| {
                let source = From(source, slots.start, rows.start);
                pack::panels_by(s, width, (len, len), count, &source, out)
            }),
        }
    }
}

/// A step of some rows of A, as the register blocks read them: in groups of `group` rows.
#[derive(Clone, Copy)]
pub struct Rows {
    pub first: *const f32,
    /// From one row of a group to the next.
    pub row: usize,
    /// From one slot to the next.
    pub step: usize,
    pub group: usize,
    /// From one group to the next.
    pub next: usize,
    /// Whether the next group is worth fetching.
    pub fetch: bool,
}

impl Rows {
    /// These slots of these rows, in groups of this many where they can be: where they lie if they are numbers or pairs there, else
    /// copied to `room`.
    ///
    /// # Safety
    /// A has these rows and these slots, at most STEP. Its rows or its columns are dense. `room` has room for [`copy_len`] numbers.
    #[inline(always)]
    pub unsafe fn new<S: Simd, T: Element>(
        s: S,
        a: Matrix<T>,
        (rows, group): (Range<usize>, usize),
        slots: Range<usize>,
        room: *mut f32,
    ) -> Self {
        let (count, len) = (rows.len(), slots.len());
        let pairs = paired::<S, T>(&a);
        if !a.has_dense_rows() {
            // SAFETY: the matrix has the rows and slots that the source is asked for, and each 16 rows of a step have room.
            with_source!(S, a, false, |source| unsafe {
                let source = From(source, slots.start, rows.start);
                pack::panels_by(s, MAX_LANES, (len, len), count, &source, room)
            });
            return Rows {
                first: room,
                row: 1,
                step: MAX_LANES,
                group: MAX_LANES,
                next: MAX_LANES * len,
                fetch: false,
            };
        }
        let in_place = match pairs {
            true => a.row.is_multiple_of(2),
            false => T::DTYPE == DType::F32,
        };
        let unit = size_of::<f32>() / size_of::<T>();
        let row = match in_place {
            true => a.row / unit,
            false => len.next_multiple_of(MAX_LANES),
        };
        let first = match in_place {
            true => a
                .as_ptr()
                .wrapping_add(rows.start * a.row + slots.start * unit)
                .cast(),
            false => room.cast_const(),
        };
        if !in_place {
            with_source!(S, a, true, |source| for i in 0..count {
                for at in (0..len).step_by(S::LANES) {
                    // SAFETY: the matrix has this row, and len − at slots of it. `room` has `row` ≤ STEP numbers for each row.
                    unsafe {
                        let x = source.load(s, rows.start + i, slots.start + at, len - at);
                        s.store_f32(room.add(i * row + at), x);
                    }
                }
            });
        }
        Rows {
            first,
            row,
            step: 1,
            group,
            next: group * row,
            fetch: in_place,
        }
    }
}
