//! Channels with few elements in each batch item. A batch item is a row then, and the coefficients of a channel are repeated for
//! each of its columns.

use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::ops::batch_norm::Extent;
use std::ops::Range;

/// What an element costs, in the units of [`parallel`].
const COST: usize = 2;

/// How an element comes of the I inputs and the K coefficients of its channel. `of` must be `inline(always)`.
pub trait Formula<const I: usize, const K: usize> {
    fn of<S: Simd>(s: S, x: [S::F; I], k: [S::F; K]) -> S::F;
}

/// `(x − mean) · slope + offset`
pub struct Affine;

impl Formula<1, 3> for Affine {
    #[inline(always)]
    fn of<S: Simd>(s: S, [x]: [S::F; 1], [mean, slope, offset]: [S::F; 3]) -> S::F {
        s.fma(s.sub(x, mean), slope, offset)
    }
}

/// The coefficients of all columns of a row, or of several rows one behind the other where a row is short.
struct Table<const K: usize> {
    /// K times `period`.
    values: Vec<f32>,
    period: usize,
}

impl<const K: usize> Table<K> {
    fn new(extent: Extent, of_channel: impl Fn(usize) -> [f32; K]) -> Self {
        /// Shorter rows are repeated up to this length, so that inner loops stay long.
        const MIN_PERIOD: usize = 512;
        let columns = extent.of_item();
        let rows = MIN_PERIOD
            .div_ceil(columns.max(1))
            .clamp(1, extent.batch.max(1));
        let period = rows * columns;
        let mut values = vec![0.0; K * period];
        for c in 0..extent.channels {
            for (k, value) in of_channel(c).into_iter().enumerate() {
                let first = k * period + c * extent.spatial;
                values[first..][..extent.spatial].fill(value);
            }
        }
        for k in 0..K {
            for row in 1..rows {
                let first = k * period;
                values.copy_within(first..first + columns, first + row * columns);
            }
        }
        Table { values, period }
    }
}

/// The elements by the formula, of contiguous inputs and the coefficients of each channel.
pub fn by_columns<T: Element, F: Formula<I, K>, const I: usize, const K: usize>(
    _: F,
    inputs: [&[T]; I],
    extent: Extent,
    of_channel: impl Fn(usize) -> [f32; K],
) -> Vec<T> {
    let n = extent.count();
    assert!(inputs.iter().all(|x| x.len() == n));
    let table = &Table::new(extent, of_channel);
    let x = inputs.map(|x| Shared::new(x.as_ptr().cast_mut()));
    // SAFETY: the ranges cover the n elements of the inputs and of y, and each is one thread's.
    unsafe {
        alloc::build(n, |y| {
            let y = Shared::new(y);
            parallel::ranges(n, COST * I, 64, |range| {
                let formula = std::marker::PhantomData::<fn() -> F>;
                dispatch(Columns {
                    formula,
                    x,
                    y,
                    table,
                    range,
                })
            });
        })
    }
}

/// A range of the elements that x and y have.
struct Columns<'a, T, F, const I: usize, const K: usize> {
    formula: std::marker::PhantomData<fn() -> F>,
    x: [Shared<T>; I],
    y: Shared<T>,
    table: &'a Table<K>,
    range: Range<usize>,
}

impl<T: Element, F: Formula<I, K>, const I: usize, const K: usize> Kernel
    for Columns<'_, T, F, I, K>
{
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let period = self.table.period;
        let mut at = self.range.start;
        while at < self.range.end {
            let column = at % period;
            let n = (period - column).min(self.range.end - at);
            let mut body = Run::<T, F, I, K> {
                formula: self.formula,
                x: [std::ptr::null(); I],
                y: self.y.get().wrapping_add(at),
                k: [std::ptr::null(); K],
            };
            for (to, x) in body.x.iter_mut().zip(&self.x) {
                *to = x.get().wrapping_add(at);
            }
            for (k, to) in body.k.iter_mut().enumerate() {
                *to = self.table.values[k * period + column..][..n].as_ptr();
            }
            // SAFETY: the n elements from `at` on lie in the range, which x and y have, and the table has n columns from
            // `column` on.
            unsafe { for_each_piece(s, 0..n, &body) };
            at += n;
        }
    }
}

/// Neighbouring elements, and their coefficients.
struct Run<T, F, const I: usize, const K: usize> {
    formula: std::marker::PhantomData<fn() -> F>,
    x: [*const T; I],
    y: *mut T,
    k: [*const f32; K],
}

impl<T: Element, F: Formula<I, K>, const I: usize, const K: usize> Pieces for Run<T, F, I, K> {
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        let (mut x, mut k) = ([s.splat(0.0); I], [s.splat(0.0); K]);
        // SAFETY: x, y and k have the elements that are asked for.
        unsafe {
            for (x, p) in x.iter_mut().zip(&self.x) {
                *x = T::load_piece::<S, FULL>(s, p.add(i), left);
            }
            for (k, p) in k.iter_mut().zip(&self.k) {
                *k = f32::load_piece::<S, FULL>(s, p.add(i), left);
            }
            T::store_piece::<S, FULL>(s, self.y.add(i), left, F::of(s, x, k));
        }
    }
}
