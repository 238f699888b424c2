//! A row's statistics, then its elements while they are still in the cache.

mod backward;

pub use backward::{backward, total};

use super::{Kind, RowNorm};
use crate::cpu::element::Element;
use crate::cpu::moments::{Layer, Moments, Norm, Rms, L2};
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::ops::affine_norm::{AffineNorm, Arg, Vectors};
use candle_core::{CpuStorage, Layout, Result, Shape};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

/// Cost of an element, as in [`parallel`].
const COST: usize = 3;

/// Rows to normalise. `y` may be `x`. The first `VECTORS` of weight and bias are read.
struct Forward<T, K, const VECTORS: usize> {
    x: *const T,
    y: *mut T,
    vectors: [*const T; 2],
    rows: usize,
    cols: usize,
    eps: f32,
    norm: PhantomData<K>,
}

impl<T: Element, K: Norm, const VECTORS: usize> Forward<T, K, VECTORS> {
    /// # Safety
    /// As [`Element::load_piece`] and its like, at element `i` of the row that begins at `x` and `y`.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(
        &self,
        s: S,
        m: &Moments,
        (x, y): (*const T, *mut T),
        i: usize,
    ) {
        let left = self.cols - i;
        let mut v = m.apply::<S, K>(s, T::load_piece::<S, FULL>(s, x.add(i), left));
        if VECTORS == 1 {
            let weight = T::load_piece::<S, FULL>(s, self.vectors[0].add(i), left);
            v = s.mul(v, weight);
        }
        if VECTORS == 2 {
            let weight = T::load_piece::<S, FULL>(s, self.vectors[0].add(i), left);
            let bias = T::load_piece::<S, FULL>(s, self.vectors[1].add(i), left);
            v = s.fma(v, weight, bias);
        }
        T::store_piece::<S, FULL>(s, y.add(i), left, v);
    }
}

impl<T: Element, K: Norm, const VECTORS: usize> Kernel for Forward<T, K, VECTORS> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            // SAFETY: the pointers hold `rows` rows of `cols` elements, and vectors of `cols`.
            unsafe {
                let (x, y) = (self.x.add(row * self.cols), self.y.add(row * self.cols));
                let m = Moments::of::<S, T, K>(s, x, self.cols, self.eps);
                let mut i = 0;
                while i + S::LANES <= self.cols {
                    self.piece::<S, true>(s, &m, (x, y), i);
                    i += S::LANES;
                }
                if i < self.cols {
                    self.piece::<S, false>(s, &m, (x, y), i);
                }
            }
        }
    }
}

/// Rows and vectors as pointers that the threads share.
#[derive(Clone, Copy)]
struct Rows<T> {
    x: Shared<T>,
    y: Shared<T>,
    vectors: [Option<Shared<T>>; 2],
    cols: usize,
    norm: RowNorm,
}

impl<T: Element> Rows<T> {
    /// # Safety
    /// `x` is valid for reads, `y` for writes of the rows in `range`; vectors hold `cols` elements.
    unsafe fn forward(&self, range: Range<usize>) {
        match (self.norm.kind, self.vectors) {
            (Kind::L2, _) => self.run::<L2, 0>(range),
            (Kind::Rms, [None, _]) => self.run::<Rms, 0>(range),
            (Kind::Rms, [Some(_), _]) => self.run::<Rms, 1>(range),
            (Kind::Layer, [None, _]) => self.run::<Layer, 0>(range),
            (Kind::Layer, [Some(_), None]) => self.run::<Layer, 1>(range),
            (Kind::Layer, [Some(_), Some(_)]) => self.run::<Layer, 2>(range),
        }
    }

    unsafe fn run<K: Norm, const VECTORS: usize>(&self, range: Range<usize>) {
        let start = range.start * self.cols;
        dispatch(Forward::<T, K, VECTORS> {
            x: self.x.get().add(start),
            y: self.y.get().add(start),
            vectors: self
                .vectors
                .map(|v| v.map_or(std::ptr::null(), |v| v.get())),
            rows: range.len(),
            cols: self.cols,
            eps: self.norm.eps,
            norm: PhantomData,
        })
    }
}

pub fn forward(
    norm: RowNorm,
    (x, l): Arg<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> Result<(CpuStorage, Shape)> {
    let out = with_float!(norm.name(), x, |x: &[T]| {
        let x = gather::contiguous(x, l);
        let vectors = slices::<T>(vectors)?;
        let (rows, cols) = split(l);
        // SAFETY: all rows are written; the slices outlive the threads.
        Ok(T::wrap(unsafe {
            alloc::build(x.len(), |y| {
                let all = Rows {
                    x: Shared::new(x.as_ptr().cast_mut()),
                    y: Shared::new(y),
                    vectors: pointers(&vectors),
                    cols,
                    norm,
                };
                parallel::ranges(rows, cols * COST, 1, |range| all.forward(range));
            })
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(
    norm: RowNorm,
    (x, l): (&mut CpuStorage, &Layout),
    vectors: Vectors<CpuStorage>,
) -> Result<()> {
    let (rows, cols) = split(l);
    with_float!(norm.name(), x, |x: &[T]| {
        let vectors = slices::<T>(vectors)?;
        gather::update(x, l, |x: &mut [T]| {
            let x = Shared::new(x.as_mut_ptr());
            let all = Rows {
                x,
                y: x,
                vectors: pointers(&vectors),
                cols,
                norm,
            };
            // SAFETY: as in `forward`.
            parallel::ranges(rows, cols * COST, 1, |range| unsafe { all.forward(range) });
        });
        Ok(())
    })
}

/// x + residual, rounded, and its norm.
pub fn add(
    norm: RowNorm,
    (x, xl): Arg<CpuStorage>,
    (r, rl): Arg<CpuStorage>,
    vectors: Vectors<CpuStorage>,
) -> Result<[CpuStorage; 2]> {
    /// Elements of some rows that stay in the L1 cache between the sum and the norm.
    const BLOCK: usize = 4096;
    with_float!(norm.name(), x, |x: &[T]| {
        let x = gather::contiguous(x, xl);
        let r = gather::contiguous(r.as_slice::<T>()?, rl);
        let vectors = slices::<T>(vectors)?;
        let (rows, cols) = split(xl);
        let block = (BLOCK / cols.max(1)).max(1);
        let (x_start, r_start) = (
            Shared::new(x.as_ptr().cast_mut()),
            Shared::new(r.as_ptr().cast_mut()),
        );
        let mut sum = Vec::new();
        // SAFETY: as in `forward`; the sum's rows are written before they are read.
        let normed = unsafe {
            alloc::build(x.len(), |y| {
                sum = alloc::build(x.len(), |sum| {
                    let all = Rows {
                        x: Shared::new(sum),
                        y: Shared::new(y),
                        vectors: pointers(&vectors),
                        cols,
                        norm,
                    };
                    parallel::ranges(rows, cols * (COST + 1), block, |range| {
                        for start in range.clone().step_by(block) {
                            let end = range.end.min(start + block);
                            dispatch(Add {
                                x: x_start.get().add(start * cols),
                                y: r_start.get().add(start * cols),
                                sum: all.x.get().add(start * cols),
                                n: (end - start) * cols,
                            });
                            all.forward(start..end);
                        }
                    });
                });
            })
        };
        Ok([T::wrap(sum), T::wrap(normed)])
    })
}

struct Add<T> {
    x: *const T,
    y: *const T,
    sum: *mut T,
    n: usize,
}

impl<T: Element> Add<T> {
    /// # Safety
    /// As [`Element::load_piece`] and its like, at element `i`.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize) {
        let left = self.n - i;
        let x = T::load_piece::<S, FULL>(s, self.x.add(i), left);
        let y = T::load_piece::<S, FULL>(s, self.y.add(i), left);
        T::store_piece::<S, FULL>(s, self.sum.add(i), left, s.add(x, y));
    }
}

impl<T: Element> Kernel for Add<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut i = 0;
        // SAFETY: the pointers hold `n` elements.
        unsafe {
            while i + S::LANES <= self.n {
                self.piece::<S, true>(s, i);
                i += S::LANES;
            }
            if i < self.n {
                self.piece::<S, false>(s, i);
            }
        }
    }
}

/// Rows and their length.
fn split(l: &Layout) -> (usize, usize) {
    let cols = l.dims().last().copied().unwrap_or(1);
    (l.shape().elem_count().checked_div(cols).unwrap_or(0), cols)
}

type Slices<'a, T> = [Option<Cow<'a, [T]>>; 2];

/// The elements of weight and bias.
pub fn slices<'a, T: Element>([weight, bias]: Vectors<'a, CpuStorage>) -> Result<Slices<'a, T>> {
    let slice = |v: Option<Arg<'a, CpuStorage>>| match v {
        Some((v, l)) => Ok(Some(gather::contiguous(v.as_slice::<T>()?, l))),
        None => candle_core::Result::Ok(None),
    };
    Ok([slice(weight)?, slice(bias)?])
}

fn pointers<T: Element>(vectors: &Slices<T>) -> [Option<Shared<T>>; 2] {
    vectors
        .each_ref()
        .map(|v| v.as_ref().map(|v| Shared::new(v.as_ptr().cast_mut())))
}
