//! Per-column scales: the columns are measured over all rows, then the rows are encoded.

use super::encode::{Encoder, Staging};
use super::params::{ColumnParams, ScaleParams};
use super::sink::Sink;
use super::statistics::{AbsMax, MinMax, Stats, Sums};
use super::COST;
use crate::cpu::element::Element;
use crate::cpu::fold::Fold;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::quant::Levels;
use std::ops::Range;

/// Encodes all rows. Returns the parameters of each column.
pub(super) fn run<T: Element, K: Sink<T>>(encoder: &Encoder<T, K>) -> Vec<ScaleParams> {
    let (rows, cols) = encoder.size();
    let scheme = encoder.scheme();
    // SAFETY: an encoder's x has its rows and columns.
    let stats = unsafe { measure(scheme.levels, encoder.x(), rows, cols) };
    let params = |&stats: &Stats| ScaleParams::new(scheme, stats, rows);
    let params: Vec<ScaleParams> = stats.iter().map(params).collect();
    let columns = &ColumnParams::new(&params);
    parallel::ranges(rows, COST * cols, 1, |rows| {
        // SAFETY: the ranges are disjoint parts of the encoder's rows, and `columns` was made of one set of parameters for
        // each of its columns.
        dispatch(unsafe { EncodeRows::new(encoder, rows, columns) })
    });
    params
}

struct EncodeRows<'a, T, K> {
    encoder: &'a Encoder<'a, T, K>,
    rows: Range<usize>,
    columns: &'a ColumnParams,
}

impl<'a, T, K> EncodeRows<'a, T, K> {
    /// # Safety
    /// The encoder has these rows, no other thread encodes them, and `columns` has all of its columns.
    unsafe fn new(
        encoder: &'a Encoder<'a, T, K>,
        rows: Range<usize>,
        columns: &'a ColumnParams,
    ) -> Self {
        EncodeRows {
            encoder,
            rows,
            columns,
        }
    }
}

impl<T: Element, K: Sink<T>> Kernel for EncodeRows<'_, T, K> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (_, cols) = self.encoder.size();
        for row in self.rows {
            let mut staging = Staging::new(row);
            // SAFETY: `new` was promised that the row is one of the encoder's and this thread's alone, and that there are
            // parameters for its `cols` columns. The whole row goes through one staging memory.
            unsafe {
                self.encoder.encode(s, 0..cols, self.columns, &mut staging);
                self.encoder.flush(cols, &staging);
            }
        }
    }
}

/// The statistics of each column. Threads share the columns, and each reads its columns row by row.
///
/// # Safety
/// x has `rows` rows of `cols` columns.
unsafe fn measure<T: Element>(
    levels: Levels,
    x: &RowView<T>,
    rows: usize,
    cols: usize,
) -> Vec<Stats> {
    let mut stats = [vec![0.0; cols], vec![0.0; cols]];
    let to = stats.each_mut().map(|stat| Shared::new(stat.as_mut_ptr()));
    parallel::ranges(cols, COST * rows, MAX_LANES, |cols| {
        // SAFETY: the ranges are disjoint parts of `0..cols`, for which both vectors have a number each.
        let to = to.map(|to| unsafe {
            std::slice::from_raw_parts_mut(to.get().add(cols.start), cols.len())
        });
        dispatch(MeasureColumns {
            levels,
            x,
            rows,
            first: cols.start,
            to,
        })
    });
    let [a, b] = stats;
    a.into_iter().zip(b).map(|(a, b)| Stats([a, b])).collect()
}

/// Made by [`measure`] alone: x has `rows` rows, with the columns from `first` on that both slices are about.
struct MeasureColumns<'a, T> {
    levels: Levels,
    x: &'a RowView<'a, T>,
    rows: usize,
    first: usize,
    /// The two statistics of the columns from `first` on.
    to: [&'a mut [f32]; 2],
}

impl<T: Element> Kernel for MeasureColumns<'_, T> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // `first` fills vectors that are not full, which this loop has none of.
        let first = 0.0;
        match self.levels {
            Levels::Ternary | Levels::Sign { .. } => self.fold(s, Sums),
            Levels::Int8 => self.fold(s, AbsMax { first }),
            Levels::ZeroPoint { .. } | Levels::Affine { .. } => self.fold(s, MinMax { first }),
        }
    }
}

impl<T: Element> MeasureColumns<'_, T> {
    #[inline(always)]
    fn fold<S: Simd, F: Fold<1, N>, const N: usize>(self, s: S, fold: F) {
        /// Rows whose sum is computed by itself: one f32 sum over all rows would lose the small elements.
        const PART: usize = 512;
        let width = self.to[0].len();
        let mut to = self.to;
        for to in &mut to[..N] {
            to.fill(F::START);
        }
        // N statistics of the `width` columns.
        let mut part = vec![F::START; N * width];
        for rows in (0..self.rows).step_by(PART) {
            part.fill(F::START);
            // SAFETY: x has `width` columns from `first` on in each of `rows` rows. i < width, and nothing is read or written
            // beyond `left = width − i` elements of x, of `to[n]` or of statistic n in `part`.
            unsafe {
                for row in rows..self.rows.min(rows + PART) {
                    let x = self.x.row(row).add(self.first);
                    for i in (0..width).step_by(S::LANES) {
                        let left = width - i;
                        let mut acc = [s.splat(0.0); N];
                        for (n, acc) in acc.iter_mut().enumerate() {
                            *acc = f32::load_upto(s, part.as_ptr().add(n * width + i), left);
                        }
                        let acc = fold.step(s, acc, [T::load_upto(s, x.add(i), left)]);
                        for (n, acc) in acc.into_iter().enumerate() {
                            f32::store_upto(s, part.as_mut_ptr().add(n * width + i), left, acc);
                        }
                    }
                }
                for (n, to) in to[..N].iter_mut().enumerate() {
                    for i in (0..width).step_by(S::LANES) {
                        let left = width - i;
                        let all = f32::load_upto(s, to.as_ptr().add(i), left);
                        let part = f32::load_upto(s, part.as_ptr().add(n * width + i), left);
                        f32::store_upto(s, to.as_mut_ptr().add(i), left, F::join(s, all, part));
                    }
                }
            }
        }
    }
}
