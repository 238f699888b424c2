//! `sum = x + residual`, rounded to the dtype, and its norm: a few rows of the sum are written and normalised while they
//! are in the L1 cache.

use super::{rows_and_cols, slices, NormRows, RowNorm};
use crate::cpu::element::Element;
use crate::cpu::elementwise::{map_run, Map};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, with_float};
use crate::op::on_cpu::Args;
use candle_core::{CpuStorage, Result};
use std::ops::Range;

/// Elements of the rows that are added before they are normalised: 16 KB of f32, half of an L1 cache.
const BLOCK: usize = 4096;
/// What an element costs, in the units of [`parallel`]: an addition and a norm.
const COST: usize = 4;

/// The sum, and its norm: of x, residual and the vectors.
pub fn add(norm: RowNorm, args: Args) -> Result<[CpuStorage; 2]> {
    let ((x, xl), (r, rl)) = (args[0], args[1]);
    let [rows, cols] = rows_and_cols(xl);
    let block = (BLOCK / cols.max(1)).max(1);
    with_float!(norm.name(), x, |x: &[T]| {
        let (x, r) = (&RowView::new(x, xl), &RowView::new(r.as_slice::<T>()?, rl));
        let vectors = &slices::<T>(&args[2..])?;
        let mut sum = Vec::new();
        // SAFETY: x and r have the rows; every row of the sum and of its norm is written, by one thread and in this order.
        let normed = unsafe {
            alloc::build(rows * cols, |y| {
                sum = alloc::build(rows * cols, |sum| {
                    let (sum, y) = (Shared::new(sum), Shared::new(y));
                    let sums = &RowView::from_raw(sum.get(), cols);
                    let norms = NormRows::new(norm, sums, y, vectors, cols);
                    parallel::ranges(rows, cols * COST, block, |range| {
                        for start in range.clone().step_by(block) {
                            let rows = start..range.end.min(start + block);
                            dispatch(AddRows {
                                x,
                                r,
                                sum,
                                rows: rows.clone(),
                                cols,
                            });
                            norms.run_here(rows);
                        }
                    });
                });
            })
        };
        Ok([T::wrap(sum), T::wrap(normed)])
    })
}

/// Rows that x and r have, and that `sum` has room for.
struct AddRows<'a, T> {
    x: &'a RowView<'a, T>,
    r: &'a RowView<'a, T>,
    sum: Shared<T>,
    rows: Range<usize>,
    cols: usize,
}

impl<T: Element> Kernel for AddRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows {
            // SAFETY: `add` asks for rows that x, r and the sum have, of `cols` elements, and gives each to one thread.
            unsafe {
                let sum = self.sum.get().add(row * self.cols);
                let terms = [self.x.row(row), self.r.row(row)];
                map_run(s, Add, terms, [sum], self.cols);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Add;

impl Map<2, 1> for Add {
    const COST: usize = 1;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, [x, r]: [S::F; 2]) -> [S::F; 1] {
        [s.add(x, r)]
    }
}
