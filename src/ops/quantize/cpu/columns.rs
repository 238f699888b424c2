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
    let stats = measure(scheme.levels, encoder.x(), rows, cols);
    let params = |&stats: &Stats| ScaleParams::new(scheme, stats, rows);
    let params: Vec<ScaleParams> = stats.iter().map(params).collect();
    let columns = &ColumnParams::new(&params);
    parallel::ranges(rows, COST * cols, 1, |rows| {
        dispatch(EncodeRows {
            encoder,
            rows,
            columns,
        })
    });
    params
}

struct EncodeRows<'a, T, K> {
    encoder: &'a Encoder<'a, T, K>,
    rows: Range<usize>,
    columns: &'a ColumnParams,
}

impl<T: Element, K: Sink<T>> Kernel for EncodeRows<'_, T, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (_, cols) = self.encoder.size();
        let mut staging = Staging::new();
        for row in self.rows {
            // SAFETY: the rows are some of the encoder's `rows`, and each is given to one thread; `run` made parameters for
            // each of its `cols` columns; the whole row goes through one staging memory.
            unsafe {
                self.encoder
                    .encode(s, row, 0..cols, self.columns, &mut staging);
                self.encoder.flush(row, cols, &staging);
            }
        }
    }
}

/// The statistics of each column. Threads share the columns, and each reads its columns row by row.
fn measure<T: Element>(levels: Levels, x: &RowView<T>, rows: usize, cols: usize) -> Vec<Stats> {
    let mut stats = [vec![0.0; cols], vec![0.0; cols]];
    let to = stats.each_mut().map(|stat| Shared::new(stat.as_mut_ptr()));
    parallel::ranges(cols, COST * rows, MAX_LANES, |cols| {
        dispatch(MeasureColumns {
            levels,
            x,
            rows,
            cols,
            to,
        })
    });
    let [a, b] = stats;
    a.into_iter().zip(b).map(|(a, b)| Stats([a, b])).collect()
}

struct MeasureColumns<'a, T> {
    levels: Levels,
    x: &'a RowView<'a, T>,
    rows: usize,
    cols: Range<usize>,
    /// The two statistics of every column.
    to: [Shared<f32>; 2],
}

impl<T: Element> Kernel for MeasureColumns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Only folds over a row's end are padded by `first`.
        let first = 0.0;
        // SAFETY: `measure` gives each thread columns of its own, of those that x's rows and `to` have.
        unsafe {
            match self.levels {
                Levels::Ternary | Levels::Sign { .. } => self.fold(s, Sums),
                Levels::Int8 => self.fold(s, AbsMax { first }),
                Levels::ZeroPoint { .. } | Levels::Affine { .. } => self.fold(s, MinMax { first }),
            }
        }
    }
}

impl<T: Element> MeasureColumns<'_, T> {
    /// # Safety
    /// x has these rows and columns, `to` has the columns, and no other thread writes them.
    #[inline(always)]
    unsafe fn fold<S: Simd, F: Fold<1, N>, const N: usize>(&self, s: S, fold: F) {
        /// Rows whose sum is computed by itself: one f32 sum over all rows would lose the small elements.
        const PART: usize = 512;
        let width = self.cols.len();
        let to = |n: usize| self.to[n].get().add(self.cols.start);
        for n in 0..N {
            std::slice::from_raw_parts_mut(to(n), width).fill(F::START);
        }
        // N statistics of the `width` columns.
        let mut part = vec![F::START; N * width];
        for rows in (0..self.rows).step_by(PART) {
            part.fill(F::START);
            for row in rows..self.rows.min(rows + PART) {
                let x = self.x.row(row).add(self.cols.start);
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
            for n in 0..N {
                for i in (0..width).step_by(S::LANES) {
                    let left = width - i;
                    let all = f32::load_upto(s, to(n).add(i), left);
                    let part = f32::load_upto(s, part.as_ptr().add(n * width + i), left);
                    f32::store_upto(s, to(n).add(i), left, F::join(s, all, part));
                }
            }
        }
    }
}
