//! Row folds and column sums, cut into blocks whose sizes depend on the shape alone.

use super::{Over, Reduce, Reduction, NAME};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::rows::{self, Fold};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::cpu::{alloc, gather, with_float};
use candle_core::{CpuStorage, Layout, Result, Shape};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Longer rows are folded in blocks of this many columns, so that threads can share one row.
const BLOCK: usize = 64 * 1024;

/// Elements that are read and added in the time of one unit of [`parallel`]'s cost, and more: one core adds
/// as fast as the caches deliver, so that a second one helps with what comes from memory only.
const READS: usize = 32;

pub fn forward(op: Reduce, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
    let (rows, cols) = op.over.split(l.shape());
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        let out: Vec<T> = match op.reduction {
            Reduction::Sum => fold_rows(&x, rows, cols, rows::Sum, 1.0),
            Reduction::Mean => fold_rows(&x, rows, cols, rows::Sum, 1.0 / cols as f32),
            Reduction::Max => fold_rows(&x, rows, cols, rows::Max, 1.0),
        };
        Ok(T::wrap(out))
    })?;
    Ok((out, op.over.shape(l.shape())))
}

/// A fold that may look at the first element of the row besides.
trait RowFold: Fold<1, 1> + Send + Sync {
    /// Whether a NaN there is the result.
    const FIRST_NAN: bool = false;
}

impl RowFold for rows::Sum {}
impl RowFold for rows::Max {
    const FIRST_NAN: bool = true;
}

/// `scale ·` the fold of each row.
fn fold_rows<T: Element, F: RowFold>(
    x: &[T],
    rows: usize,
    cols: usize,
    fold: F,
    scale: f32,
) -> Vec<T> {
    if cols <= BLOCK {
        return fold_blocks(x, rows, cols, cols, fold, scale);
    }
    let partials: Vec<f32> = fold_blocks(x, rows, cols, BLOCK, fold, 1.0);
    let blocks = cols.div_ceil(BLOCK);
    fold_blocks(&partials, rows, blocks, blocks, fold, scale)
}

/// `scale ·` the fold of every `block` columns (fewer at the end) of each row.
fn fold_blocks<I: Element, O: Element, F: RowFold>(
    x: &[I],
    rows: usize,
    cols: usize,
    block: usize,
    fold: F,
    scale: f32,
) -> Vec<O> {
    debug_assert_eq!(x.len(), rows * cols);
    // A row without columns has one empty block.
    let per_row = cols.div_ceil(block.max(1)).max(1);
    // SAFETY: every unit writes its own output.
    unsafe {
        alloc::build(rows * per_row, |out: *mut O| {
            let out = Shared::new(out);
            parallel::ranges(rows * per_row, block.div_ceil(READS), 1, |units| {
                dispatch(FoldBlocks {
                    x,
                    out,
                    units,
                    cols,
                    block,
                    per_row,
                    fold,
                    scale,
                })
            });
        })
    }
}

struct FoldBlocks<'a, I, O, F> {
    x: &'a [I],
    out: Shared<O>,
    units: Range<usize>,
    cols: usize,
    block: usize,
    per_row: usize,
    fold: F,
    scale: f32,
}

impl<I: Element, O: Element, F: RowFold> Kernel for FoldBlocks<'_, I, O, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for unit in self.units {
            let (row, at) = match self.per_row {
                1 => (unit, 0),
                n => (unit / n, unit % n * self.block),
            };
            let len = self.block.min(self.cols - at);
            // SAFETY: the block lies inside x; `out` has an element for each unit.
            unsafe {
                let x = self.x.as_ptr().add(row * self.cols + at);
                let [v] = rows::fold(s, self.fold, [x], len);
                let first = at == 0 && len > 0;
                let nan = F::FIRST_NAN && first && (*x).partial_cmp(&*x).is_none();
                let v = if nan { f32::NAN } else { v * self.scale };
                *self.out.get().add(unit) = O::narrow(v);
            }
        }
    }
}

pub fn max_backward(
    over: Over,
    (x, xl): (&CpuStorage, &Layout),
    (y, yl): (&CpuStorage, &Layout),
    (g, gl): (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let (rows, cols) = over.split(xl.shape());
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, xl);
        let y = gather::contiguous(y.as_slice::<T>()?, yl);
        let g = gather::contiguous(g.as_slice::<T>()?, gl);
        let per_row = cols.div_ceil(BLOCK);
        // SAFETY: the units are disjoint and cover all of the output.
        let dx = unsafe {
            alloc::build(rows * cols, |out: *mut T| {
                let out = Shared::new(out);
                parallel::ranges(rows * per_row, cols.min(BLOCK), 1, |units| {
                    for unit in units {
                        let (row, at) = (unit / per_row, unit % per_row * BLOCK);
                        let start = row * cols + at;
                        dispatch(PickMax {
                            x: &x[start..start + BLOCK.min(cols - at)],
                            y: y[row].widen(),
                            g: g[row].widen(),
                            out: Shared::new(out.get().add(start)),
                        });
                    }
                });
            })
        };
        Ok(T::wrap(dx))
    })?;
    Ok((out, xl.shape().clone()))
}

/// g where x = y, else 0.
struct PickMax<'a, T> {
    x: &'a [T],
    y: f32,
    g: f32,
    out: Shared<T>,
}

impl<T: Element> Kernel for PickMax<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (y, g, zero) = (s.splat(self.y), s.splat(self.g), s.splat(0.0));
        let (x, out, n) = (self.x.as_ptr(), self.out.get(), self.x.len());
        let mut i = 0;
        // SAFETY: `x` and `out` have n elements.
        unsafe {
            while i + S::LANES <= n {
                let pick = s.eq(T::load(s, x.add(i)), y);
                T::store(s, out.add(i), s.select(pick, g, zero));
                i += S::LANES;
            }
            if i < n {
                let pick = s.eq(T::load_partial(s, x.add(i), n - i, 0.0), y);
                T::store_partial(s, out.add(i), n - i, s.select(pick, g, zero));
            }
        }
    }
}

/// The columns that one thread sums at a time: 4 KB of accumulators stay in the L1 cache, and the
/// rows are read in runs long enough for the prefetcher.
const TILE: usize = 1024;

pub fn sum_middle(x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
    let (outer, n, inner) = l.shape().dims3()?;
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        // Blocks of rows where columns alone give too few units to share out; at least 16 rows, so
        // that the partial sums stay a small part of what is read.
        let units = outer * inner.div_ceil(TILE);
        let blocks = if n * inner * outer < 256 * 1024 {
            1
        } else {
            32usize.div_ceil(units).min(n / 16).max(1)
        };
        let sums: Vec<T> = if blocks == 1 {
            sum_blocks(&x, [outer, n, inner], n)
        } else {
            let partials: Vec<f32> = sum_blocks(&x, [outer, n, inner], n.div_ceil(blocks));
            let blocks = n.div_ceil(n.div_ceil(blocks));
            sum_blocks(&partials, [outer, blocks, inner], blocks)
        };
        Ok(T::wrap(sums))
    })?;
    Ok((out, (outer, inner).into()))
}

/// `[outer, n, inner] → [outer, n / block rounded up, inner]`
fn sum_blocks<I: Element, O: Element>(
    x: &[I],
    [outer, n, inner]: [usize; 3],
    block: usize,
) -> Vec<O> {
    debug_assert_eq!(x.len(), outer * n * inner);
    let (blocks, tiles) = (n.div_ceil(block), inner.div_ceil(TILE));
    // SAFETY: the units are disjoint and cover all of the output.
    unsafe {
        alloc::build(outer * blocks * inner, |out: *mut O| {
            let out = Shared::new(out);
            let cost = (block * inner.min(TILE)).div_ceil(READS);
            parallel::ranges(outer * blocks * tiles, cost, 1, |units| {
                for unit in units {
                    let (at, tile) = (unit / tiles, unit % tiles * TILE);
                    let (outer, row) = (at / blocks, at % blocks * block);
                    dispatch(SumRows {
                        x: &x[(outer * n + row) * inner + tile..],
                        out: Shared::new(out.get().add(at * inner + tile)),
                        rows: block.min(n - row),
                        stride: inner,
                        cols: TILE.min(inner - tile),
                    });
                }
            });
        })
    }
}

struct SumRows<'a, I, O> {
    x: &'a [I],
    out: Shared<O>,
    rows: usize,
    stride: usize,
    cols: usize,
}

impl<I: Element, O: Element> Kernel for SumRows<'_, I, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sums = MaybeUninit::<[f32; TILE + MAX_LANES]>::uninit();
        let p = sums.as_mut_ptr().cast::<f32>();
        let full = self.cols / S::LANES * S::LANES;
        let left = self.cols - full;
        // SAFETY: whole vectors end at `full`, the partial one at `cols`; `sums` has room for a
        // vector more than `cols`, and is zeroed as far as it is read.
        unsafe {
            let mut c = 0;
            while c < self.cols {
                s.store_f32(p.add(c), s.splat(0.0));
                c += S::LANES;
            }
            let mut row = 0;
            while row < self.rows {
                // Four rows for each time that the sums are loaded and stored.
                let rows = (self.rows - row).min(4);
                let x = self.x.as_ptr().add(row * self.stride);
                let mut c = 0;
                while c < full {
                    let mut sum = I::load(s, x.add(c));
                    if rows == 4 {
                        sum = s.add(sum, I::load(s, x.add(c + self.stride)));
                        let b = I::load(s, x.add(c + 2 * self.stride));
                        sum = s.add(sum, s.add(b, I::load(s, x.add(c + 3 * self.stride))));
                    } else {
                        for r in 1..rows {
                            sum = s.add(sum, I::load(s, x.add(c + r * self.stride)));
                        }
                    }
                    s.store_f32(p.add(c), s.add(s.load_f32(p.add(c)), sum));
                    c += S::LANES;
                }
                if left > 0 {
                    let mut sum = s.load_f32(p.add(full));
                    for r in 0..rows {
                        let x = x.add(full + r * self.stride);
                        sum = s.add(sum, I::load_partial(s, x, left, 0.0));
                    }
                    s.store_f32(p.add(full), sum);
                }
                row += rows;
            }
            let mut c = 0;
            while c < full {
                O::store(s, self.out.get().add(c), s.load_f32(p.add(c)));
                c += S::LANES;
            }
            if left > 0 {
                O::store_partial(s, self.out.get().add(full), left, s.load_f32(p.add(full)));
            }
        }
    }
}
