//! Which tiles of scores are computed.

use super::call::Query;
use crate::cpu::matmul::micro::{cols_of_tile, rows_of_tile};
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

/// Whether the tile that begins with key `col` has a key of the span.
#[inline(always)]
pub fn touches<S: Simd>(span: &Span, col: usize) -> bool {
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
