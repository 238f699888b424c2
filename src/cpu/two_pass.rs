//! The engine for ops that read a row twice: once to measure it, once to write it. Softmax, the norms and the reductions
//! run on it.
//!
//! Many rows are shared out over the threads, and each row is measured and written while it is in the cache. Few long
//! rows are cut into blocks of columns instead: the threads measure all blocks, the statistics of a row's blocks are
//! joined, and the threads write all blocks. The shape alone decides between the two and orders all additions, so that
//! the same input gives the same bits on every run and with any number of threads.

use super::alloc;
use super::parallel::{self, Shared};
use super::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::mem::MaybeUninit;
use std::ops::Range;

/// An op on rows of equal length that has to know a statistic of a whole row before it can write any of the row.
///
/// A value of this type holds the rows themselves, of any layout, its outputs and whatever else it reads. It is *made for*
/// n rows of m columns if its inputs have the elements of these rows, its outputs room for what it writes of them, and
/// nothing else touches that room while it runs. Methods that take a [`Simd`] must be `inline(always)`, see [`Kernel`].
pub trait TwoPassRow: Copy + Send + Sync {
    /// What has to be known of a row before it can be written.
    type Stat: Copy + Send + Sync;

    /// From this number of rows on, rows are not cut into blocks: whole rows are work for as many threads.
    const WHOLE_FROM: usize = 8;
    /// Columns of a block: 64 KB of f32, so that a row of `LONG` gives work to four threads. An op whose output must be
    /// cut at other columns sets it.
    const BLOCK: usize = 16 * 1024;
    /// Whether `apply` may be given a part of a row. Ops that write one value for each row set it to false.
    const APPLIES_PARTS: bool = true;
    /// Whether the op has a `process_row` of its own.
    const OWN_LOOP: bool = false;
    /// Whether `process_row` uses its scratch.
    const NEEDS_SCRATCH: bool = false;

    /// What measuring or writing this many columns costs, in the units of [`parallel`].
    fn cost(cols: usize) -> usize;

    /// Rows that add to the same memory in `apply`: this many neighbours, counted from row 0, stay on one thread, which
    /// takes them in order. Either 1 or at least `WHOLE_FROM`, so that rows which are cut into blocks all belong together.
    fn rows_together(&self) -> usize {
        1
    }

    /// The statistic of some columns of a row.
    ///
    /// Law: `measure(a..c)` is `join(measure(a..b), measure(b..c))` up to rounding, for all a < b < c.
    ///
    /// # Safety
    /// The op was made for `row` and for `cols`, and no other thread is given these columns of the row at the same time.
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> Self::Stat;

    /// The statistic of two neighbouring ranges of columns, `a` being that of the first.
    ///
    /// Law: `join` is associative up to rounding.
    fn join(&self, a: Self::Stat, b: Self::Stat) -> Self::Stat;

    /// Writes some columns of a row, given the statistic of the whole row.
    ///
    /// Law: if `APPLIES_PARTS`, applying a row part by part writes what applying all of it at once would.
    ///
    /// # Safety
    /// As for `measure`; all columns of the row have been measured, and the threads that are given rows of one
    /// `rows_together` at the same time are given different columns.
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: Self::Stat);

    /// Measures and writes a whole row, or writes a block of a row as `apply` would. The engine calls it instead of `apply` if
    /// `OWN_LOOP`, for ops that can keep something between the two passes; `measure` is called for blocks all the same.
    ///
    /// Law: writes what `measure` and `apply` would, up to rounding.
    ///
    /// # Safety
    /// As for `apply`, of the part's row and columns; if `NEEDS_SCRATCH` and the part is a whole row, its scratch is valid for
    /// `cols.end` elements and a vector more.
    #[inline(always)]
    unsafe fn process_row<S: Simd>(&self, s: S, part: RowPart<Self::Stat>) {
        let RowPart { row, cols, .. } = part;
        // SAFETY: the caller answers for the columns, which are measured before they are written.
        unsafe {
            let stat = match part.stat {
                Some(stat) => stat,
                None => self.measure(s, row, cols.clone()),
            };
            self.apply(s, row, cols, stat);
        }
    }
}

/// What [`TwoPassRow::process_row`] is given: a whole row, or a block of one whose row has been measured.
pub struct RowPart<Stat> {
    pub row: usize,
    pub cols: Range<usize>,
    /// The statistic of the row, if this is a block.
    pub stat: Option<Stat>,
    pub scratch: *mut f32,
}

/// Rows shorter than this are never cut: below 256 KB of f32 a row is still in the L2 cache for its second pass.
const LONG: usize = 64 * 1024;

/// Measures and writes `rows` rows of `cols` columns.
///
/// # Safety
/// The op was made for these rows and columns.
#[inline]
pub unsafe fn run<R: TwoPassRow>(op: R, rows: usize, cols: usize) {
    if rows >= R::WHOLE_FROM || cols < LONG {
        if !parallel::is_shared(rows, R::cost(cols)) {
            // SAFETY: the op was made for these rows.
            return unsafe { run_here(op, 0..rows, cols) };
        }
        return parallel::ranges(rows, R::cost(cols), op.rows_together(), |rows| {
            // SAFETY: the op was made for these rows, and no other range has them.
            unsafe { run_here(op, rows, cols) }
        });
    }
    // SAFETY: the op was made for these rows, which are all measured before they are written.
    unsafe {
        let stats = measure_rows(op, rows, cols);
        apply_rows(op, cols, &stats);
    }
}

/// Measures and writes some rows of `cols` columns on this thread.
///
/// # Safety
/// As for [`run`]; no other thread is given these rows.
#[inline]
pub unsafe fn run_here<R: TwoPassRow>(op: R, rows: Range<usize>, cols: usize) {
    let blocks = Blocks {
        rows: rows.end,
        cols,
        len: cols,
        per_row: 1,
    };
    let units = rows;
    let pass = Pass::Both;
    dispatch(Blockwise {
        op: &op,
        blocks,
        units,
        pass,
    })
}

/// The statistic of each of `rows` rows of `cols` columns.
///
/// # Safety
/// As for [`run`].
pub unsafe fn measure_rows<R: TwoPassRow>(op: R, rows: usize, cols: usize) -> Vec<R::Stat> {
    let blocks = Blocks::new::<R>(rows, cols);
    let measure = |stats: *mut R::Stat| {
        let stats = Shared::new(stats);
        parallel::ranges(blocks.count(), R::cost(cols.min(blocks.len)), 1, |units| {
            let pass = Pass::Measure(stats);
            dispatch(Blockwise {
                op: &op,
                blocks,
                units,
                pass,
            })
        });
    };
    // SAFETY: the ranges cover all blocks, and `Blockwise` writes the statistic of each of its own.
    let stats = unsafe { alloc::build(rows * blocks.per_row, measure) };
    let of_row = |stats: &[R::Stat]| join_all(&op, stats);
    stats.chunks_exact(blocks.per_row).map(of_row).collect()
}

/// Writes all rows of `cols` columns, `stats` having the statistic that each is written with.
///
/// # Safety
/// As for [`run`]; all rows have been measured.
pub unsafe fn apply_rows<R: TwoPassRow>(op: R, cols: usize, stats: &[R::Stat]) {
    let rows = stats.len();
    let mut blocks = Blocks::new::<R>(rows, cols);
    if !R::APPLIES_PARTS {
        blocks.len = cols.max(1);
        blocks.per_row = 1;
    }
    let cost = R::cost(cols.min(blocks.len));
    // Blocks of the same columns follow one another, row by row.
    let together = op.rows_together().min(rows);
    debug_assert!(
        together == 0 || rows.is_multiple_of(together),
        "rows that belong together lie in two blocks of columns"
    );
    parallel::ranges(blocks.count(), cost, together, |units| {
        let pass = Pass::Apply(stats);
        dispatch(Blockwise {
            op: &op,
            blocks,
            units,
            pass,
        })
    });
}

/// The statistic of several neighbouring ranges of columns, one at least. They are joined as a balanced tree: a sum of
/// many equal parts loses fewer digits than if they were added one after the other.
pub fn join_all<R: TwoPassRow>(op: &R, stats: &[R::Stat]) -> R::Stat {
    match stats {
        [one] => *one,
        _ => {
            let (a, b) = stats.split_at(stats.len() / 2);
            op.join(join_all(op, a), join_all(op, b))
        }
    }
}

/// Rows cut into blocks of `len` columns, `per_row` for each.
#[derive(Clone, Copy)]
struct Blocks {
    rows: usize,
    cols: usize,
    len: usize,
    per_row: usize,
}

impl Blocks {
    /// A row without columns has one empty block.
    fn new<R: TwoPassRow>(rows: usize, cols: usize) -> Self {
        let (len, per_row) = match cols < LONG {
            true => (cols.max(1), 1),
            false => (R::BLOCK, cols.div_ceil(R::BLOCK)),
        };
        Blocks {
            rows,
            cols,
            len,
            per_row,
        }
    }

    fn count(self) -> usize {
        self.rows * self.per_row
    }

    /// The row of a block, and which of the row's blocks it is.
    #[inline(always)]
    fn place(self, unit: usize) -> (usize, usize) {
        match self.per_row {
            1 => (unit, 0),
            _ => (unit % self.rows, unit / self.rows),
        }
    }

    #[inline(always)]
    fn columns(self, block: usize) -> Range<usize> {
        let start = block * self.len;
        start..self.cols.min(start + self.len)
    }
}

/// What is done with a block.
#[derive(Clone, Copy)]
enum Pass<'a, Stat> {
    /// The block is a whole row, which is measured and written.
    Both,
    /// The statistic of each block of each row goes here.
    Measure(Shared<Stat>),
    /// Blocks are written with the statistics of their rows.
    Apply(&'a [Stat]),
}

/// Some blocks. The three passes are one kernel, so that `measure` and `apply` are compiled once for each op, element type and
/// instruction set: as three kernels they took a sixth more of the code of all kernels.
struct Blockwise<'a, R: TwoPassRow> {
    op: &'a R,
    blocks: Blocks,
    units: Range<usize>,
    pass: Pass<'a, R::Stat>,
}

impl<R: TwoPassRow> Kernel for Blockwise<'_, R> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        /// 8 KB, a quarter of an L1 cache.
        const ON_STACK: usize = 2048;
        let mut stack = MaybeUninit::<[f32; ON_STACK]>::uninit();
        let mut heap = Vec::<f32>::new();
        let mut scratch = stack.as_mut_ptr().cast();
        if R::NEEDS_SCRATCH
            && matches!(self.pass, Pass::Both)
            && self.blocks.cols + MAX_LANES > ON_STACK
        {
            heap.reserve_exact(self.blocks.cols + MAX_LANES);
            scratch = heap.as_mut_ptr();
        }
        for unit in self.units {
            let (row, block) = self.blocks.place(unit);
            let cols = self.blocks.columns(block);
            let given = match self.pass {
                Pass::Apply(stats) => Some(stats[row]),
                _ => None,
            };
            let measures = matches!(self.pass, Pass::Measure(_));
            // SAFETY: `run_here`, `measure_rows` and `apply_rows`, which alone make this struct, are given an op that was made
            // for all rows and columns. Each block is one thread's, and blocks of the same columns in rows that belong
            // together are the same thread's. `apply_rows` is called when all rows have been measured. The scratch, if it is
            // needed, has a row's elements and a vector; `stats` has an element for each block of each row.
            unsafe {
                if R::OWN_LOOP && !measures {
                    let part = RowPart {
                        row,
                        cols,
                        stat: given,
                        scratch,
                    };
                    self.op.process_row(s, part);
                    continue;
                }
                let stat = match given {
                    Some(stat) => stat,
                    None => self.op.measure(s, row, cols.clone()),
                };
                match self.pass {
                    Pass::Measure(stats) => {
                        let at = row * self.blocks.per_row + block;
                        stats.get().add(at).write(stat);
                    }
                    _ => self.op.apply(s, row, cols, stat),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// y = x − the row's sum, in integers, so that every way to it gives the same.
    #[derive(Clone, Copy)]
    struct Centre<'a> {
        x: &'a [f32],
        y: Shared<f32>,
        cols: usize,
    }

    impl TwoPassRow for Centre<'_> {
        type Stat = f32;
        fn cost(cols: usize) -> usize {
            cols
        }
        unsafe fn measure<S: Simd>(&self, _: S, row: usize, cols: Range<usize>) -> f32 {
            self.x[row * self.cols..][cols].iter().sum()
        }
        fn join(&self, a: f32, b: f32) -> f32 {
            a + b
        }
        unsafe fn apply<S: Simd>(&self, _: S, row: usize, cols: Range<usize>, stat: f32) {
            for i in cols {
                let at = row * self.cols + i;
                // SAFETY: x has element `at`, and y is as long.
                unsafe { *self.y.get().add(at) = self.x[at] - stat };
            }
        }
    }

    #[test]
    fn rows_are_written_once_however_they_are_cut() {
        let sizes = [(0, 5), (3, 0), (2, 7), (40, 3), (9, LONG), (3, LONG - 1)];
        for (rows, cols) in sizes.into_iter().chain([(1, LONG), (3, 2 * LONG + 5)]) {
            let x: Vec<f32> = (0..rows * cols).map(|i| (i % 5) as f32).collect();
            // SAFETY: every element of y is written.
            let y = unsafe {
                alloc::build(rows * cols, |y| {
                    let y = Shared::new(y);
                    run(Centre { x: &x, y, cols }, rows, cols)
                })
            };
            for (x, y) in x.chunks(cols.max(1)).zip(y.chunks(cols.max(1))) {
                let sum: f32 = x.iter().sum();
                assert!(x.iter().zip(y).all(|(x, y)| x - sum == *y), "{rows}×{cols}");
            }
        }
    }
}
