//! Units, measured and coded.

use super::super::{Grid, Per, Rounding, Scheme};
use super::make::{At, Lanes, Make, LARGE};
use super::unit::{AbsMax, ColumnUnits, Ends, Stat, Sums, Unit, Units};
use super::{BLOCK, COST};
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::rows::Fold;
use crate::cpu::simd::{dispatch, prefetch, Kernel, Simd, MAX_LANES};
use crate::ops::dropout::philox;
use std::ops::Range;

/// Bytes of rows of which the next one is read ahead.
const AHEAD: usize = 16 << 10;

/// All that a thread needs to code some columns of a row.
pub(super) struct Coder<'a, T, M> {
    pub(super) scheme: &'a Scheme,
    pub(super) x: &'a RowView<'a, T>,
    pub(super) cols: usize,
    pub(super) make: M,
}

impl<T: Element, M: Make<T>> Coder<'_, T, M> {
    /// So many columns from `at` on.
    ///
    /// # Safety
    /// They exist, and no other thread writes what is made of them.
    #[inline(always)]
    unsafe fn code<S: Simd, U: Units>(&self, s: S, at: At, count: usize, units: U) {
        let Scheme { grid, rounding, .. } = *self.scheme;
        let scaled = !matches!(grid, Grid::Sign { .. } | Grid::Affine { .. });
        match rounding {
            Rounding::Nearest if scaled => {
                let way = Nearest {
                    low: self.scheme.min_code() as f32,
                    high: self.scheme.max_code() as f32,
                };
                self.code_by(s, at, count, units, way)
            }
            _ => self.code_by(s, at, count, units, Other(*self.scheme)),
        }
    }

    /// What doesn't change from vector to vector is copied here: writes might change it for all that the compiler knows.
    #[inline(always)]
    unsafe fn code_by<S: Simd, U: Units, W: Way>(
        &self,
        s: S,
        at: At,
        count: usize,
        units: U,
        way: W,
    ) {
        let (make, x) = (self.make, self.x.row(at.row).add(at.col));
        let first = at.row * self.cols + at.col;
        let whole = count / S::LANES * S::LANES;
        // What is measured next comes while this is coded, if the cache holds both.
        let ahead = match self.cols * size_of::<T>() <= AHEAD {
            true => self.cols,
            false => 0,
        };
        for i in (0..whole).step_by(S::LANES) {
            prefetch(x.wrapping_add(i + ahead));
            let unit = units.at(s, at.col + i, S::LANES);
            let lanes = way.lanes(s, T::load(s, x.add(i)), first + i, unit);
            make.put(s, at.right(i), S::LANES, lanes);
        }
        if whole < count {
            let left = count - whole;
            let unit = units.at(s, at.col + whole, left);
            let x = T::load_few(s, x.add(whole), left);
            let lanes = way.lanes(s, x, first + whole, unit);
            make.put(s, at.right(whole), left, lanes);
        }
    }

    /// Room for so many columns.
    #[inline(always)]
    fn room(&self, count: usize) -> Vec<u8> {
        Vec::with_capacity(self.make.room() * count)
    }
}

/// How codes follow from numbers.
trait Way: Copy {
    /// `index` is that of the first element in the whole tensor, `unit` as [`Units::at`] has it.
    fn lanes<S: Simd>(self, s: S, x: S::F, index: usize, unit: [S::F; 4]) -> Lanes<S>;
}

/// Multiples of the scale, rounded to the nearest.
#[derive(Clone, Copy)]
struct Nearest {
    low: f32,
    high: f32,
}

impl Way for Nearest {
    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, x: S::F, _: usize, unit: [S::F; 4]) -> Lanes<S> {
        let [factor, zero, ..] = unit;
        let v = s.mul(x, factor);
        let (low, high) = (
            s.sub(s.splat(self.low), zero),
            s.sub(s.splat(self.high), zero),
        );
        // The ends are integers, so it makes no difference that they come first.
        let inside = s.min(s.max(v, low), high);
        let rounded = s.sub(s.add(inside, s.splat(LARGE)), s.splat(LARGE));
        Lanes {
            codes: s.add(rounded, zero),
            positions: s.add(v, zero),
            unit,
        }
    }
}

/// By any scheme.
#[derive(Clone, Copy)]
struct Other(Scheme);

impl Way for Other {
    #[inline(always)]
    fn lanes<S: Simd>(self, s: S, x: S::F, index: usize, unit: [S::F; 4]) -> Lanes<S> {
        let [factor, zero, bias, scale] = unit;
        let Scheme { grid, rounding, .. } = self.0;
        if let Grid::Sign { .. } = grid {
            let (one, none) = (s.splat(1.0), s.splat(0.0));
            return Lanes {
                codes: s.select(s.lt(bias, x), one, none),
                positions: s.add(s.div(x, scale), zero),
                // What decides about signs is no part of the values.
                unit: [factor, zero, none, scale],
            };
        }
        let v = match grid {
            Grid::Affine { .. } => s.div(s.sub(x, bias), scale),
            _ => s.mul(x, factor),
        };
        let rounded = match rounding {
            Rounding::Nearest => round(s, v),
            Rounding::Stochastic { seed } => {
                let mut uniform = [0.0; MAX_LANES];
                for (i, u) in uniform[..S::LANES].iter_mut().enumerate() {
                    *u = philox::uniform(seed, index + i);
                }
                // SAFETY: there are as many as lanes.
                let v = s.add(v, unsafe { s.load_f32(uniform.as_ptr()) });
                let rounded = round(s, v);
                let above = s.select(s.lt(v, rounded), s.splat(1.0), s.splat(0.0));
                s.sub(rounded, above)
            }
        };
        let low = s.splat(self.0.min_code() as f32);
        let high = s.splat(self.0.max_code() as f32);
        Lanes {
            codes: s.min(s.max(s.add(rounded, zero), low), high),
            positions: s.add(v, zero),
            unit,
        }
    }
}

/// To the nearest integer, halves to even; a NaN becomes a large negative number.
#[inline(always)]
fn round<S: Simd>(s: S, v: S::F) -> S::F {
    const MOST: f32 = 4_194_304.0;
    let v = s.min(s.max(v, s.splat(-MOST)), s.splat(MOST));
    s.sub(s.add(v, s.splat(LARGE)), s.splat(LARGE))
}

/// Units that lie within rows: measured and coded one by one.
struct WithinRows<'a, T, M> {
    coder: &'a Coder<'a, T, M>,
    rows: Range<usize>,
    /// Columns of a unit.
    len: usize,
    to: Shared<Unit>,
}

impl<T: Element, M: Make<T>> Kernel for WithinRows<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Coder {
            scheme, x, cols, ..
        } = *self.coder;
        let mut room = self.coder.room(cols);
        for row in self.rows {
            let mut at = |col: usize| At {
                row,
                col,
                room: room.as_mut_ptr().wrapping_add(col),
            };
            for (n, col) in (0..cols).step_by(self.len).enumerate() {
                // SAFETY: the row has these columns, and room for their units; it is this thread's.
                unsafe {
                    let stat = Stat::of(s, scheme.grid, x.row(row).add(col), self.len);
                    let unit = Unit::new(scheme, stat, self.len);
                    *self.to.get().add(row * (cols / self.len) + n) = unit;
                    self.coder.code(s, at(col), self.len, unit);
                }
            }
            // SAFETY: all of the row has been put.
            unsafe { self.coder.make.finish(at(0), cols) };
        }
    }
}

/// The measure of some columns of a row.
struct Measure<'a, T> {
    grid: Grid,
    x: &'a RowView<'a, T>,
    row: usize,
    cols: Range<usize>,
}

impl<T: Element> Kernel for Measure<'_, T> {
    type Output = Stat;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Stat {
        // SAFETY: the row has these columns.
        unsafe {
            let x = self.x.row(self.row).add(self.cols.start);
            Stat::of(s, self.grid, x, self.cols.len())
        }
    }
}

/// Columns of a row whose units are known.
struct Known<'a, T, M, U> {
    coder: &'a Coder<'a, T, M>,
    row: usize,
    cols: Range<usize>,
    units: U,
}

impl<T: Element, M: Make<T>, U: Units> Kernel for Known<'_, T, M, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = self.cols.len();
        let mut room = self.coder.room(count);
        let at = At {
            row: self.row,
            col: self.cols.start,
            room: room.as_mut_ptr(),
        };
        // SAFETY: the row has these columns, which are this thread's.
        unsafe {
            self.coder.code(s, at, count, self.units);
            self.coder.make.finish(at, count);
        }
    }
}

impl<T: Element, M: Make<T>> Coder<'_, T, M> {
    /// All of a tensor; the units, of which there are none without elements.
    pub(super) fn run(&self, rows: usize) -> Vec<Unit> {
        let cols = self.cols;
        if rows * cols == 0 {
            return Vec::new();
        }
        match self.scheme.per {
            Per::Column => self.by_column(rows),
            Per::Tensor => self.by_block(rows, 1),
            // Few rows that are so long are worth sharing out.
            Per::Row if cols > BLOCK && rows < 2 * parallel::threads() => self.by_block(rows, rows),
            Per::Row => self.within_rows(rows, cols),
            Per::Group(group) => self.within_rows(rows, group),
        }
    }

    fn within_rows(&self, rows: usize, len: usize) -> Vec<Unit> {
        // SAFETY: every row writes its units.
        unsafe {
            alloc::build(rows * (self.cols / len), |units: *mut Unit| {
                let to = Shared::new(units);
                parallel::ranges(rows, COST * self.cols, 1, |rows| {
                    dispatch(WithinRows {
                        coder: self,
                        rows,
                        len,
                        to,
                    })
                });
            })
        }
    }

    /// One unit for all rows, or one for each.
    fn by_block(&self, rows: usize, count: usize) -> Vec<Unit> {
        let (scheme, cols) = (self.scheme, self.cols);
        let blocks = cols.div_ceil(BLOCK);
        let at = |n: usize| {
            let start = n % blocks * BLOCK;
            (n / blocks, start..cols.min(start + BLOCK))
        };
        let cost = COST * cols.min(BLOCK);
        // SAFETY: every block writes its measure.
        let stats = unsafe {
            alloc::build(rows * blocks, |stats: *mut Stat| {
                let stats = Shared::new(stats);
                parallel::ranges(rows * blocks, cost, 1, |range| {
                    for n in range {
                        let (row, cols) = at(n);
                        let (grid, x) = (scheme.grid, self.x);
                        *stats.get().add(n) = dispatch(Measure { grid, x, row, cols });
                    }
                });
            })
        };
        let each = rows * blocks / count;
        let of = |stats: &[Stat]| Stat::all(stats, scheme.grid);
        let unit = |stats: &[Stat]| Unit::new(scheme, of(stats), rows * cols / count);
        let units: Vec<Unit> = stats.chunks_exact(each).map(unit).collect();
        parallel::ranges(rows * blocks, cost, 1, |range| {
            for n in range {
                let (row, cols) = at(n);
                dispatch(Known {
                    coder: self,
                    row,
                    cols,
                    units: units[n / each],
                });
            }
        });
        units
    }

    /// One unit for each column.
    fn by_column(&self, rows: usize) -> Vec<Unit> {
        let (scheme, cols) = (self.scheme, self.cols);
        let stats = column_stats(scheme.grid, self.x, rows, cols);
        let units: Vec<Unit> = stats
            .iter()
            .map(|&stat| Unit::new(scheme, stat, rows))
            .collect();
        let columns = ColumnUnits::new(&units);
        parallel::ranges(rows, COST * cols, 1, |range| {
            for row in range {
                dispatch(Known {
                    coder: self,
                    row,
                    cols: 0..cols,
                    units: columns.of(0..cols),
                });
            }
        });
        units
    }
}

/// The measure of each column. Rows are read as they lie, some columns by each thread.
fn column_stats<T: Element>(grid: Grid, x: &RowView<T>, rows: usize, cols: usize) -> Vec<Stat> {
    let mut measures = [vec![0.0; cols], vec![0.0; cols]];
    let to = [0, 1].map(|i| Shared::new(measures[i].as_mut_ptr()));
    parallel::ranges(cols, COST * rows, MAX_LANES, |cols| {
        dispatch(MeasureColumns {
            grid,
            x,
            rows,
            cols,
            to,
        })
    });
    let [a, b] = measures;
    a.into_iter().zip(b).map(|(a, b)| Stat([a, b])).collect()
}

struct MeasureColumns<'a, T> {
    grid: Grid,
    x: &'a RowView<'a, T>,
    rows: usize,
    cols: Range<usize>,
    /// The two numbers of each column.
    to: [Shared<f32>; 2],
}

impl<T: Element> Kernel for MeasureColumns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let first = 0.0;
        // SAFETY: the rows have these columns, which are this thread's.
        unsafe {
            match self.grid {
                Grid::Ternary | Grid::Sign { .. } => self.fold(s, Sums),
                Grid::Int8 => self.fold(s, AbsMax { first }),
                Grid::ZeroPoint { .. } | Grid::Affine { .. } => self.fold(s, Ends { first }),
            }
        }
    }
}

impl<T: Element> MeasureColumns<'_, T> {
    #[inline(always)]
    unsafe fn fold<S: Simd, F: Fold<1, N>, const N: usize>(&self, s: S, fold: F) {
        // Rows that are added up by themselves: a sum of all, one by one, would lose the small ones.
        const ROWS: usize = 512;
        let width = self.cols.len();
        for to in &self.to[..N] {
            std::slice::from_raw_parts_mut(to.get().add(self.cols.start), width).fill(F::START);
        }
        let mut some = vec![F::START; N * width];
        for rows in (0..self.rows).step_by(ROWS) {
            some.fill(F::START);
            for row in rows..self.rows.min(rows + ROWS) {
                let x = self.x.row(row).add(self.cols.start);
                for i in (0..width).step_by(S::LANES) {
                    let left = width - i;
                    let mut acc = [s.splat(0.0); N];
                    for (n, acc) in acc.iter_mut().enumerate() {
                        *acc = f32::load_upto(s, some.as_ptr().add(n * width + i), left);
                    }
                    let acc = fold.step(s, acc, [T::load_upto(s, x.add(i), left)]);
                    for (n, acc) in acc.into_iter().enumerate() {
                        f32::store_upto(s, some.as_mut_ptr().add(n * width + i), left, acc);
                    }
                }
            }
            for (n, to) in self.to[..N].iter().enumerate() {
                let to = to.get().add(self.cols.start);
                for i in (0..width).step_by(S::LANES) {
                    let left = width - i;
                    let all = f32::load_upto(s, to.add(i), left);
                    let some = f32::load_upto(s, some.as_ptr().add(n * width + i), left);
                    f32::store_upto(s, to.add(i), left, F::join(s, all, some));
                }
            }
        }
    }
}
