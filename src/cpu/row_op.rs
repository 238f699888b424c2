//! Ops that write a row only after they have measured it. Rows are shared out over threads; where there
//! are few and long ones, blocks of them are.

use super::alloc;
use super::parallel::{self, Shared};
use super::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Methods must be `inline(always)`. `cols` is a range of columns of `row`.
pub trait RowOp: Copy + Send + Sync {
    type Stat: Copy + Send + Sync;
    /// As in [`parallel`].
    const COST: usize;
    /// Whether `whole` uses its scratch.
    const SCRATCH: bool = false;

    /// # Safety
    /// The columns exist.
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> Self::Stat;
    fn join(a: Self::Stat, b: Self::Stat) -> Self::Stat;
    /// # Safety
    /// The columns exist, and no other thread writes them.
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: Self::Stat);

    /// Both at once, for a whole row.
    ///
    /// # Safety
    /// As for `apply`; `scratch` has room for a row and a vector if `SCRATCH` is set.
    #[inline(always)]
    unsafe fn whole<S: Simd>(&self, s: S, row: usize, cols: usize, _scratch: *mut f32) {
        let stat = self.measure(s, row, 0..cols);
        self.apply(s, row, 0..cols, stat);
    }
}

/// Fewer rows than this, of at least `LONG` columns, are cut into blocks that threads can share. The
/// choice depends on the shape alone, and so do the bits of the result.
const FEW: usize = 8;
const LONG: usize = 64 * 1024;
const BLOCK: usize = 16 * 1024;

/// # Safety
/// The op can read and write `rows` rows of `cols` columns.
pub unsafe fn run<R: RowOp>(op: R, rows: usize, cols: usize) {
    if rows >= FEW || cols < LONG {
        return parallel::ranges(rows, cols * R::COST, 1, |rows| {
            dispatch(WholeRows { op, rows, cols })
        });
    }
    let blocks = cols.div_ceil(BLOCK);
    let at = |unit: usize| {
        let start = unit % blocks * BLOCK;
        (unit / blocks, start..cols.min(start + BLOCK))
    };
    let stats = alloc::build(rows * blocks, |stats: *mut R::Stat| {
        let stats = Shared::new(stats);
        parallel::ranges(rows * blocks, BLOCK * R::COST, 1, |units| {
            for unit in units {
                let (row, cols) = at(unit);
                *stats.get().add(unit) = dispatch(Measure { op, row, cols });
            }
        });
    });
    let of_row = |stats: &[R::Stat]| stats[1..].iter().fold(stats[0], |a, &b| R::join(a, b));
    let stats: Vec<_> = stats.chunks_exact(blocks).map(of_row).collect();
    parallel::ranges(rows * blocks, BLOCK * R::COST, 1, |units| {
        for unit in units {
            let (row, cols) = at(unit);
            let stat = stats[row];
            dispatch(Apply {
                op,
                row,
                cols,
                stat,
            });
        }
    });
}

struct WholeRows<R> {
    op: R,
    rows: Range<usize>,
    cols: usize,
}

impl<R: RowOp> Kernel for WholeRows<R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const ON_STACK: usize = 2048;
        let mut stack = MaybeUninit::<[f32; ON_STACK]>::uninit();
        let mut heap = Vec::<f32>::new();
        let mut scratch = stack.as_mut_ptr().cast();
        if R::SCRATCH && self.cols + MAX_LANES > ON_STACK {
            heap.reserve_exact(self.cols + MAX_LANES);
            scratch = heap.as_mut_ptr();
        }
        for row in self.rows {
            // SAFETY: the op's rows are valid; threads have rows of their own.
            unsafe { self.op.whole(s, row, self.cols, scratch) }
        }
    }
}

struct Measure<R> {
    op: R,
    row: usize,
    cols: Range<usize>,
}

impl<R: RowOp> Kernel for Measure<R> {
    type Output = R::Stat;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> R::Stat {
        // SAFETY: the columns lie in the row.
        unsafe { self.op.measure(s, self.row, self.cols) }
    }
}

struct Apply<R: RowOp> {
    op: R,
    row: usize,
    cols: Range<usize>,
    stat: R::Stat,
}

impl<R: RowOp> Kernel for Apply<R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the columns lie in the row; threads have columns of their own.
        unsafe { self.op.apply(s, self.row, self.cols, self.stat) }
    }
}
