//! Rows of matrices as the products read them, widened to f32.
//!
//! ```text
//! strips:  rows in groups of MR or N; of each group, for each column, its rows side by side   (a transposition)
//! panels:  columns in groups of N; of each group, its rows one behind the other
//! ```
//!
//! Rows and columns beyond the end are zeros.

use super::pairs;
use super::tile::cols_of_tile;
use crate::cpu::element::Element;
use crate::cpu::simd::{prefetch_to_l2, Simd, MAX_LANES};

/// Rows that are packed, of numbers that are f32 once they are loaded.
pub trait Source {
    /// The numbers of a row from `col` on, a multiple of the lanes; those beyond the `left` ones are 0.
    ///
    /// # Safety
    /// There is such a row, and it has `left` > 0 numbers from `col` on.
    unsafe fn load<S: Simd>(&self, s: S, row: usize, col: usize, left: usize) -> S::F;

    /// Fetches numbers of an existing row that will soon be loaded to the L2 cache, if that helps.
    #[inline(always)]
    fn fetch(&self, _row: usize, _col: usize) {}
}

/// Rows of elements, by a function that gives a row's address.
pub struct Elements<F>(pub F);

impl<T: Element, F: Fn(usize) -> *const T> Source for Elements<F> {
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: usize, col: usize, left: usize) -> S::F {
        // SAFETY: `left` elements of an existing row follow.
        unsafe { T::load_upto(s, (self.0)(row).add(col), left) }
    }

    #[inline(always)]
    fn fetch(&self, row: usize, col: usize) {
        prefetch_to_l2((self.0)(row).wrapping_add(col));
    }
}

/// Rows of pairs of bf16, each of two neighbouring rows of a matrix, by a function that gives a row's address: row i of the pairs
/// is made of the rows 2i and 2i + 1.
pub struct Paired<F>(pub F);

impl<T: Element, F: Fn(usize) -> *const T> Source for Paired<F> {
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: usize, col: usize, left: usize) -> S::F {
        // SAFETY: `left` elements of two existing rows follow.
        let (first, second) = unsafe {
            (
                T::load_upto(s, (self.0)(2 * row).add(col), left),
                T::load_upto(s, (self.0)(2 * row + 1).add(col), left),
            )
        };
        // A widened bf16 has its bits in the upper half.
        let low = s.and(s.sar::<16>(s.bits(first)), s.isplat(0xffff));
        s.float(s.or(low, s.bits(second)))
    }
}

/// Packs rows into strips of `width` rows: element (row, col) goes to `(row / width · cols + col) · width + row % width`.
///
/// # Safety
/// `source` has `rows` rows of `cols` numbers; `out` is valid for writes of `rows`, rounded up to a multiple of `width`, times
/// `cols`.
#[inline(always)]
pub unsafe fn strips<S: Simd>(
    s: S,
    rows: usize,
    cols: usize,
    width: usize,
    source: &impl Source,
    out: *mut f32,
) {
    for first in (0..rows).step_by(width) {
        for i0 in (0..width).step_by(S::LANES) {
            let height = S::LANES.min(width - i0);
            let here = rows.saturating_sub(first + i0).min(height);
            // SAFETY: the source has `here` rows from row first + i0 on. The strip has `width` elements for each column, and this
            // part of it is its elements i0 to i0 + height ≤ width.
            unsafe {
                let out = out.add(first * cols + i0);
                let mut col = 0;
                if here == S::LANES {
                    while col + S::LANES <= cols {
                        let part = (first + i0, S::LANES, S::LANES);
                        square(s, rows, part, (col, S::LANES), source, out, width);
                        col += S::LANES;
                    }
                }
                while col < cols {
                    let part = (first + i0, here, height);
                    square(s, rows, part, (col, cols - col), source, out, width);
                    col += S::LANES;
                }
            }
        }
    }
}

/// Transposes a square of the source: column c of it becomes `height` numbers at `out[c · width]`, the first `here` of them those of
/// the source's rows from `row` on, the others zeros. The columns are those from `col` on, up to `left` or a vector's lanes.
///
/// # Safety
/// `source` has `rows` rows, `here` ≤ LANES of them from `row` on, and `left` > 0 columns from `col` on; `out` is valid for writes of the
/// `height` numbers of each column.
#[inline(always)]
unsafe fn square<S: Simd>(
    s: S,
    rows: usize,
    (row, here, height): (usize, usize, usize),
    (col, left): (usize, usize),
    source: &impl Source,
    out: *mut f32,
    width: usize,
) {
    let mut square = [s.splat(0.0); MAX_LANES];
    for (i, line) in square.iter_mut().enumerate().take(S::LANES) {
        if row + i + S::LANES < rows {
            source.fetch(row + i + S::LANES, col);
        }
        if i < here {
            // SAFETY: `left` numbers of an existing row follow.
            *line = unsafe { source.load(s, row + i, col, left) };
        }
    }
    let square = s.transpose(square);
    for (c, column) in square.into_iter().enumerate().take(S::LANES.min(left)) {
        // SAFETY: the caller has room for `height` numbers of each column.
        unsafe { f32::store_upto(s, out.add((col + c) * width), height, column) };
    }
}

/// The columns of a packed row of `dim` elements of T: half as many where they are pairs.
#[inline(always)]
pub fn columns<S: Simd, T: Element>(dim: usize) -> usize {
    match pairs::suits::<S, T>(dim) {
        true => dim / 2,
        false => dim,
    }
}

/// Strips of `width` rows, as pairs where [`pairs::suits`]: of [`rows_of_tile`](super::rows_of_tile) rows of what a product repeats in all lanes, of
/// [`cols_of_tile`] rows of what it loads as vectors, transposed.
///
/// # Safety
/// As for [`strips`], of rows that `row(i)` points to.
#[inline(always)]
pub unsafe fn strips_of<S: Simd, T: Element>(
    s: S,
    rows: usize,
    cols: usize,
    width: usize,
    row: impl Fn(usize) -> *const T,
    out: *mut f32,
) {
    // SAFETY: the same contract. A pair of bf16 has the size of an f32, and rows are read without alignment.
    unsafe {
        match pairs::suits::<S, T>(cols) {
            true => strips(
                s,
                rows,
                cols / 2,
                width,
                &Elements(|i| row(i).cast::<f32>()),
                out,
            ),
            false => strips(s, rows, cols, width, &Elements(row), out),
        }
    }
}

/// Strips of [`cols_of_tile`] rows of any source, never as pairs.
///
/// # Safety
/// As for [`strips`].
#[inline(always)]
pub unsafe fn col_strips_of<S: Simd>(
    s: S,
    rows: usize,
    cols: usize,
    source: &impl Source,
    out: *mut f32,
) {
    // SAFETY: the same contract.
    unsafe { strips(s, rows, cols, cols_of_tile::<S>(), source, out) }
}

/// [`panels_of`] rows of elements.
///
/// # Safety
/// As for it; `row(i)` for i < `rows` is valid for reads of `cols` elements.
#[inline(always)]
pub unsafe fn panels<S: Simd, T: Element>(
    s: S,
    rows: (usize, usize),
    cols: usize,
    row: impl Fn(usize) -> *const T,
    out: *mut f32,
) {
    // SAFETY: the same contract.
    unsafe { panels_of(s, rows, cols, &Elements(row), out) }
}

/// Panels of [`cols_of_tile`] columns. Each panel has `padded` rows: first the source's `rows` rows, then rows of zeros.
///
/// # Safety
/// `source` has `rows` ≤ `padded` rows of `cols` numbers; `out` is valid for writes of `padded` times `cols` rounded up to a
/// multiple of the panel's width.
#[inline(always)]
pub unsafe fn panels_of<S: Simd>(
    s: S,
    rows: (usize, usize),
    cols: usize,
    source: &impl Source,
    out: *mut f32,
) {
    // SAFETY: the same contract.
    unsafe { panels_by(s, cols_of_tile::<S>(), rows, cols, source, out) }
}

/// [`panels_of`] `width` columns, a multiple of the lanes.
///
/// # Safety
/// As for it.
#[inline(always)]
pub unsafe fn panels_by<S: Simd>(
    s: S,
    width: usize,
    (rows, padded): (usize, usize),
    cols: usize,
    source: &impl Source,
    out: *mut f32,
) {
    for i in 0..padded {
        for (panel, col) in (0..cols).step_by(width).enumerate() {
            for at in (0..width).step_by(S::LANES) {
                let left = cols.saturating_sub(col + at);
                // SAFETY: `left` elements of an existing row follow; the panel has `width` elements for each row.
                unsafe {
                    let x = match i < rows && left > 0 {
                        true => source.load(s, i, col + at, left),
                        false => s.splat(0.0),
                    };
                    s.store_f32(out.add((panel * padded + i) * width + at), x);
                }
            }
        }
    }
}
