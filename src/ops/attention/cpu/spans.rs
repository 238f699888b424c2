//! Which tiles of scores are computed.

use super::call::Query;
use super::SCORE_ROW;
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::{cols_of_tile, pack, rows_of_tile, Tile};
use crate::cpu::simd::Simd;
use std::ops::Range;

/// From the first to the last key of a block that some query of a panel sees. A panel has the rows of a tile.
pub type Span = Range<usize>;

/// What each panel of queries sees of the `len` keys from `first` on.
#[inline(always)]
pub fn spans<S: Simd>(queries: &[Query], first: usize, len: usize) -> Vec<Span> {
    let span = |panel: &[Query]| {
        let seen = panel.iter().filter(|query| query.start < query.end);
        let start = seen.clone().map(|query| query.start).min().unwrap_or(0);
        let end = seen.map(|query| query.end).max().unwrap_or(0);
        let start = start.saturating_sub(first).min(len);
        let end = end.saturating_sub(first).min(len);
        match start < end {
            true => start..end,
            false => 0..0,
        }
    };
    queries.chunks(rows_of_tile::<S>()).map(span).collect()
}

/// `C = A·Bᵀ` for the tiles of scores that have a key of their panel's span: A has a row of `dim` elements of T for each query of
/// the panels, B one for each of `len` keys, both packed as strips, and C a row of [`SCORE_ROW`] scores for each query.
///
/// # Safety
/// A has a strip and C the rows of a tile for each span; B has a strip for the columns of each tile of the `len` keys.
#[inline(always)]
pub unsafe fn multiply<S: Simd, T: Element>(
    s: S,
    (spans, len): (&[Span], usize),
    dim: usize,
    (a, b): (*const f32, *const f32),
    c: *mut f32,
) {
    let (rows, cols) = (rows_of_tile::<S>(), cols_of_tile::<S>());
    let packed = pack::columns::<S, T>(dim);
    for col in (0..len).step_by(cols) {
        for (panel, span) in spans.iter().enumerate() {
            if !touches::<S>(span, col) {
                continue;
            }
            // SAFETY: `panel` counts a span, and `col` is the first column of a tile of the keys.
            unsafe {
                Tile {
                    k: 0,
                    a: a.add(panel * rows * packed),
                    a_step: 0,
                    b: b.add(col * packed),
                    c: c.add(panel * rows * SCORE_ROW + col),
                    c_row: SCORE_ROW,
                    add: false,
                }
                .of_strips::<S, T>(s, dim)
            }
        }
    }
}

/// Whether the tile that begins with key `col` has a key of the span.
#[inline(always)]
fn touches<S: Simd>(span: &Span, col: usize) -> bool {
    col < span.end && col + cols_of_tile::<S>() > span.start
}

/// What a query sees of a span, counted from the block's first key.
#[inline(always)]
pub fn seen(query: &Query, first: usize, span: &Span) -> Range<usize> {
    let clamp = |key: usize| key.saturating_sub(first).clamp(span.start, span.end);
    let start = clamp(query.start);
    start..clamp(query.end).max(start)
}

/// Zeros of a row.
///
/// # Safety
/// The range of `row` is valid for writes.
#[inline(always)]
pub unsafe fn zero(row: *mut f32, range: Range<usize>) {
    for i in range {
        // SAFETY: by the contract.
        unsafe { *row.add(i) = 0.0 };
    }
}
