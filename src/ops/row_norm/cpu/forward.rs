//! `y = x̂ · weight + bias`: measure a row, then write it while it is in the cache.

use super::{rows_and_cols, slices, RowNorm};
use crate::cpu::element::Element;
use crate::cpu::moments::{normed, Divisor, MomentSums, Moments};
use crate::cpu::parallel::Shared;
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::{ArgMut, Args, OpResult};
use candle_core::{Layout, Result};
use std::borrow::Cow;
use std::ops::Range;

/// The weight and the bias of a norm, as far as it has them.
pub type Vectors<'a, T> = &'a [Cow<'a, [T]>];

/// A norm that sees a tensor as rows of one length, each normalised by itself.
pub trait NormByRow: Copy {
    /// The name for errors behind the check.
    fn name(&self) -> &'static str;
    /// The number of rows of a tensor, and their length.
    fn rows_and_cols(&self, l: &Layout) -> [usize; 2];
    /// The rows where they lie, if they can be read there.
    fn view<'a, T: Element>(&self, x: &'a [T], l: &Layout) -> RowView<'a, T>;
    /// Normalises the rows of a tensor of layout `l`, with as many of weight and bias as there are.
    ///
    /// # Safety
    /// x and y have these rows, and nothing else touches those of y. y may be x's own memory.
    unsafe fn run<T: Element>(self, l: &Layout, x: &RowView<T>, y: Shared<T>, params: Vectors<T>);
}

pub fn forward<N: NormByRow>(norm: N, args: Args) -> OpResult {
    let (x, l) = args[0];
    let [rows, cols] = norm.rows_and_cols(l);
    let out = with_float!(norm.name(), x, |x: &[T]| {
        let (x, vectors) = (norm.view(x, l), slices::<T>(&args[1..])?);
        // SAFETY: x and y have the rows, and every element of every row of y is written.
        Ok(T::wrap(unsafe {
            alloc::build(rows * cols, |y| norm.run(l, &x, Shared::new(y), &vectors))
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn inplace<N: NormByRow>(norm: N, (x, l): ArgMut, vectors: Args) -> Result<()> {
    let [_, cols] = norm.rows_and_cols(l);
    with_float!(norm.name(), x, |x: &[T]| {
        let vectors = slices::<T>(vectors)?;
        gather::update(x, l, |x: &mut [T]| {
            let y = Shared::new(x.as_mut_ptr());
            // SAFETY: x has the rows, and is used through the pointer alone until they are written.
            unsafe { norm.run(l, &RowView::from_raw(y.get(), cols), y, &vectors) }
        });
        Ok(())
    })
}

impl NormByRow for RowNorm {
    fn name(&self) -> &'static str {
        RowNorm::name(self)
    }
    fn rows_and_cols(&self, l: &Layout) -> [usize; 2] {
        rows_and_cols(l)
    }
    fn view<'a, T: Element>(&self, x: &'a [T], l: &Layout) -> RowView<'a, T> {
        RowView::new(x, l)
    }
    unsafe fn run<T: Element>(self, l: &Layout, x: &RowView<T>, y: Shared<T>, params: Vectors<T>) {
        let [rows, cols] = rows_and_cols(l);
        // SAFETY: the caller's promise is the same.
        unsafe { NormRows::new(self, x, y, params, cols).run(rows) }
    }
}

/// Rows of `cols` elements to normalise. Weight and bias hold `groups · cols` elements; row i uses those of group
/// i % groups.
#[derive(Clone, Copy)]
pub struct NormRows<'a, T> {
    norm: RowNorm,
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    weight: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    cols: usize,
    groups: usize,
}

impl<'a, T: Element> NormRows<'a, T> {
    /// One weight and bias, as far as there are any, for all rows.
    pub fn new<V: AsRef<[T]>>(
        norm: RowNorm,
        x: &'a RowView<'a, T>,
        y: Shared<T>,
        vectors: &'a [V],
        cols: usize,
    ) -> Self {
        NormRows {
            norm,
            x,
            y,
            weight: vectors.first().map(AsRef::as_ref),
            bias: vectors.get(1).map(AsRef::as_ref),
            cols,
            groups: 1,
        }
    }

    /// The same with a weight and bias for each of `groups` groups.
    pub fn with_groups(self, groups: usize) -> Self {
        NormRows { groups, ..self }
    }

    /// Normalises `rows` rows on all threads.
    ///
    /// # Safety
    /// x and y have `rows` rows of `cols` elements, and nothing else touches those of y. y may be x's own memory.
    pub unsafe fn run(self, rows: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_on(Rows::AllThreads(rows)) }
    }

    /// Normalises some rows on this thread.
    ///
    /// # Safety
    /// As for `run`, for these rows.
    pub unsafe fn run_here(self, rows: Range<usize>) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run_on(Rows::ThisThread(rows)) }
    }

    /// # Safety
    /// As for `run`, for these rows.
    unsafe fn run_on(self, rows: Rows) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            match (self.norm.kind.is_centred(), self.weight, self.bias) {
                (false, None, _) => self.run_as::<false, 0>(rows),
                (false, Some(_), _) => self.run_as::<false, 1>(rows),
                (true, None, _) => self.run_as::<true, 0>(rows),
                (true, Some(_), None) => self.run_as::<true, 1>(rows),
                (true, Some(_), Some(_)) => self.run_as::<true, 2>(rows),
            }
        }
    }

    /// # Safety
    /// As for `run`, for these rows.
    unsafe fn run_as<const CENTRED: bool, const VECTORS: usize>(self, rows: Rows) {
        let write = WriteRows::<T, CENTRED, VECTORS>::new(
            [self.weight, self.bias].map(Option::unwrap_or_default),
            self.cols,
            self.groups,
        );
        let op = Normalise::<T, _, CENTRED> {
            x: self.x,
            y: self.y,
            cols: self.cols,
            divisor: self.norm.kind.divisor(),
            eps: self.norm.eps,
            write,
        };
        // SAFETY: by the caller's promise, the op's x and y have these rows of `cols` elements.
        unsafe {
            match rows {
                Rows::AllThreads(rows) => two_pass::run(op, rows, self.cols),
                Rows::ThisThread(rows) => two_pass::run_here(op, rows, self.cols),
            }
        }
    }
}

enum Rows {
    AllThreads(usize),
    ThisThread(Range<usize>),
}

/// How a row is written once its moments are known.
pub trait WriteRow<T>: Copy + Send + Sync {
    /// What an element costs to measure and write, in the units of [`parallel`](crate::cpu::parallel).
    const COST: usize;

    /// Writes columns of a row. Must be `inline(always)`.
    ///
    /// # Safety
    /// x can be read and y written at these columns. They may be the same memory, but for that nothing else touches y's.
    unsafe fn write<S: Simd>(&self, s: S, row: MeasuredRow<T>);
}

/// Columns of a row whose moments are known.
pub struct MeasuredRow<T> {
    pub number: usize,
    /// Where the row begins, and where it goes.
    pub x: *const T,
    pub y: *mut T,
    pub cols: Range<usize>,
    pub moments: Moments,
}

/// Rows of `cols` elements of x, and of y one behind the other: measured here, written by `write`.
#[derive(Clone, Copy)]
pub struct Normalise<'a, T, W, const CENTRED: bool> {
    pub x: &'a RowView<'a, T>,
    pub y: Shared<T>,
    pub cols: usize,
    pub divisor: Divisor,
    pub eps: f32,
    pub write: W,
}

impl<T: Element, W: WriteRow<T>, const CENTRED: bool> TwoPassRow for Normalise<'_, T, W, CENTRED> {
    type Stat = MomentSums;

    fn cost(cols: usize) -> usize {
        cols * W::COST
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> MomentSums {
        // SAFETY: x has this row, and these columns lie in it.
        unsafe {
            let x = self.x.row(row).add(cols.start);
            MomentSums::measure::<S, T, CENTRED>(s, x, cols.len())
        }
    }

    fn join(&self, a: MomentSums, b: MomentSums) -> MomentSums {
        a.join::<CENTRED>(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, sums: MomentSums) {
        let moments = Moments::new::<CENTRED>(sums, self.divisor, self.eps);
        // SAFETY: x and y have this row of `self.cols` elements, and no other thread is given these columns.
        unsafe {
            let row = MeasuredRow {
                number: row,
                x: self.x.row(row),
                y: self.y.get().add(row * self.cols),
                cols,
                moments,
            };
            self.write.write(s, row)
        }
    }
}

/// `x̂ · weight + bias`, of which the first `VECTORS` are read; row i uses those of group i % groups.
#[derive(Clone, Copy)]
struct WriteRows<'a, T, const CENTRED: bool, const VECTORS: usize> {
    /// The first `VECTORS` hold `groups · cols` elements.
    vectors: [&'a [T]; 2],
    cols: usize,
    groups: usize,
}

impl<'a, T, const CENTRED: bool, const VECTORS: usize> WriteRows<'a, T, CENTRED, VECTORS> {
    fn new(vectors: [&'a [T]; 2], cols: usize, groups: usize) -> Self {
        for vector in &vectors[..VECTORS] {
            assert_eq!(vector.len(), groups * cols);
        }
        WriteRows {
            vectors,
            cols,
            groups,
        }
    }
}

impl<T: Element, const CENTRED: bool, const VECTORS: usize> WriteRow<T>
    for WriteRows<'_, T, CENTRED, VECTORS>
{
    const COST: usize = 3;

    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, row: MeasuredRow<T>) {
        let first = match self.groups {
            1 => 0,
            groups => row.number % groups * self.cols,
        };
        let cols = row.cols;
        let row = NormRow::<T, CENTRED, VECTORS> {
            x: row.x,
            y: row.y,
            vectors: self.vectors.map(|v| v.as_ptr().wrapping_add(first)),
            moments: row.moments,
        };
        // SAFETY: x and y can be used at these columns, and so can the vectors: `new` has seen that they have `cols`
        // elements from `first` on, which is the start of one of their groups.
        unsafe { for_each_piece(s, cols, &row) }
    }
}

/// One row of x and y, its vectors, and its moments.
struct NormRow<T, const CENTRED: bool, const VECTORS: usize> {
    x: *const T,
    y: *mut T,
    vectors: [*const T; 2],
    moments: Moments,
}

impl<T: Element, const CENTRED: bool, const VECTORS: usize> Pieces
    for NormRow<T, CENTRED, VECTORS>
{
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: `write` asks for columns that x, y and the first `VECTORS` vectors have.
        unsafe {
            let mut v = normed::<S, T, CENTRED, FULL>(s, self.moments, self.x.add(i), left);
            if VECTORS == 1 {
                let weight = T::load_piece::<S, FULL>(s, self.vectors[0].add(i), left);
                v = s.mul(v, weight);
            }
            if VECTORS == 2 {
                let weight = T::load_piece::<S, FULL>(s, self.vectors[0].add(i), left);
                let bias = T::load_piece::<S, FULL>(s, self.vectors[1].add(i), left);
                v = s.fma(v, weight, bias);
            }
            T::store_piece::<S, FULL>(s, self.y.add(i), left, v);
        }
    }
}
