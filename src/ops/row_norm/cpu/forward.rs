//! `y = x̂ · weight + bias`: measure a row, then write it while it is in the cache.

use super::{rows_and_cols, slices, RowNorm};
use crate::cpu::element::Element;
use crate::cpu::moments::{Divisor, MomentSums, Moments};
use crate::cpu::parallel::Shared;
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, gather, with_float};
use crate::op::{Arg, ArgMut, OpResult};
use crate::ops::affine_norm::Vectors;
use candle_core::{CpuStorage, Result};
use std::ops::Range;

pub fn forward(
    norm: RowNorm,
    (x, l): Arg<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> OpResult<CpuStorage> {
    let [rows, cols] = rows_and_cols(l);
    let out = with_float!(norm.name(), x, |x: &[T]| {
        let x = &RowView::new(x, l);
        let vectors = &slices::<T>(vectors)?;
        // SAFETY: x has the rows, and every element of every row of y is written.
        let y = unsafe {
            alloc::build(rows * cols, |y| {
                NormRows::new(norm, x, Shared::new(y), vectors, cols).run(rows)
            })
        };
        Ok(T::wrap(y))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(
    norm: RowNorm,
    (x, l): ArgMut<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> Result<()> {
    let [rows, cols] = rows_and_cols(l);
    with_float!(norm.name(), x, |x: &[T]| {
        let vectors = &slices::<T>(vectors)?;
        gather::update(x, l, |x: &mut [T]| {
            let y = Shared::new(x.as_mut_ptr());
            // SAFETY: x has the rows, and is used through the pointer alone until they are written.
            unsafe {
                let x = &RowView::from_raw(y.get(), cols);
                NormRows::new(norm, x, y, vectors, cols).run(rows)
            }
        });
        Ok(())
    })
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
    /// One weight and bias for all rows.
    pub fn new<V: AsRef<[T]>>(
        norm: RowNorm,
        x: &'a RowView<'a, T>,
        y: Shared<T>,
        [weight, bias]: &'a [Option<V>; 2],
        cols: usize,
    ) -> Self {
        let [weight, bias] = [weight, bias].map(|v| v.as_ref().map(AsRef::as_ref));
        NormRows {
            norm,
            x,
            y,
            weight,
            bias,
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
    /// x and y have the rows, of `cols` elements. They may be the same.
    pub unsafe fn run(self, rows: usize) {
        self.run_on(Rows::AllThreads(rows))
    }

    /// Normalises some rows on this thread.
    ///
    /// # Safety
    /// As for `run`; no other thread touches these rows of y.
    pub unsafe fn run_here(self, rows: Range<usize>) {
        self.run_on(Rows::ThisThread(rows))
    }

    unsafe fn run_on(self, rows: Rows) {
        match (self.norm.kind.is_centred(), self.weight, self.bias) {
            (false, None, _) => self.run_as::<false, 0>(rows),
            (false, Some(_), _) => self.run_as::<false, 1>(rows),
            (true, None, _) => self.run_as::<true, 0>(rows),
            (true, Some(_), None) => self.run_as::<true, 1>(rows),
            (true, Some(_), Some(_)) => self.run_as::<true, 2>(rows),
        }
    }

    unsafe fn run_as<const CENTRED: bool, const VECTORS: usize>(self, rows: Rows) {
        let vectors = [self.weight, self.bias].map(Option::unwrap_or_default);
        for vector in &vectors[..VECTORS] {
            assert_eq!(vector.len(), self.groups * self.cols);
        }
        let op = Normalise::<T, CENTRED, VECTORS> {
            x: self.x,
            y: self.y,
            vectors,
            cols: self.cols,
            groups: self.groups,
            divisor: self.norm.kind.divisor(),
            eps: self.norm.eps,
        };
        match rows {
            Rows::AllThreads(rows) => two_pass::run(op, rows, self.cols),
            Rows::ThisThread(rows) => two_pass::run_here(op, rows, self.cols),
        }
    }
}

enum Rows {
    AllThreads(usize),
    ThisThread(Range<usize>),
}

/// [`NormRows`], of which the first `VECTORS` of weight and bias are read.
#[derive(Clone, Copy)]
struct Normalise<'a, T, const CENTRED: bool, const VECTORS: usize> {
    x: &'a RowView<'a, T>,
    y: Shared<T>,
    vectors: [&'a [T]; 2],
    cols: usize,
    groups: usize,
    divisor: Divisor,
    eps: f32,
}

impl<T: Element, const CENTRED: bool, const VECTORS: usize> TwoPassRow
    for Normalise<'_, T, CENTRED, VECTORS>
{
    type Stat = MomentSums;

    fn cost(cols: usize) -> usize {
        cols * 3
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> MomentSums {
        let x = self.x.row(row).add(cols.start);
        MomentSums::measure::<S, T, CENTRED>(s, x, cols.len())
    }

    fn join(&self, a: MomentSums, b: MomentSums) -> MomentSums {
        a.join::<CENTRED>(b)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, sums: MomentSums) {
        let first = match self.groups {
            1 => 0,
            groups => row % groups * self.cols,
        };
        let row = NormRow::<T, CENTRED, VECTORS> {
            x: self.x.row(row),
            y: self.y.get().add(row * self.cols),
            vectors: self.vectors.map(|v| v.as_ptr().wrapping_add(first)),
            moments: Moments::new::<CENTRED>(sums, self.divisor, self.eps),
        };
        for_each_piece(s, cols, &row);
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
        let x = T::load_piece::<S, FULL>(s, self.x.add(i), left);
        let mut v = self.moments.apply::<S, CENTRED>(s, x);
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
