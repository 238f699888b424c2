//! Gradients: dx row by row; dweight and dbias as sums over blocks of rows, then over the blocks in order. The blocks
//! depend on the sizes alone, so a result is the same bits on every run.

use super::{split, Kind, Layer, Moments, Norm, Rms, RowNorm, L2};
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::rows::{fold, Fold};
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::{alloc, gather, with_float};
use crate::ops::affine_norm::{AffineNorm, Arg};
use candle_core::{CpuStorage, Result, Shape};
use std::marker::PhantomData;
use std::ops::Range;

/// Cost of an element, as in [`parallel`].
const COST: usize = 6;

/// Σh and Σ(h·x̂) of a row, h = g or g·weight.
#[derive(Clone, Copy)]
struct Pulls<K> {
    moments: Moments,
    norm: PhantomData<K>,
}

impl<K: Norm> Fold<2, 2> for Pulls<K> {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [sum, dot]: [S::F; 2], [x, h]: [S::F; 2]) -> [S::F; 2] {
        let x = self.moments.apply::<S, K>(s, x);
        [s.add(sum, h), s.fma(h, x, dot)]
    }
}

impl<K: Norm> Fold<3, 2> for Pulls<K> {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, acc: [S::F; 2], [x, g, weight]: [S::F; 3]) -> [S::F; 2] {
        Fold::<2, 2>::step(self, s, acc, [x, s.mul(g, weight)])
    }
}

/// A block of rows. `sums` are the block's own: dweight, then dbias, the first `VECTORS` of them.
struct Backward<T, K, const WEIGHT: bool, const VECTORS: usize> {
    x: *const T,
    g: *const T,
    weight: *const T,
    dx: *mut T,
    sums: *mut f32,
    rows: usize,
    cols: usize,
    eps: f32,
    norm: PhantomData<K>,
}

/// A row, and dx = (h − x̂·slope − offset)·scale.
struct Row<T> {
    x: *const T,
    g: *const T,
    dx: *mut T,
    moments: Moments,
    slope: f32,
    offset: f32,
}

impl<T: Element, K: Norm, const WEIGHT: bool, const VECTORS: usize>
    Backward<T, K, WEIGHT, VECTORS>
{
    /// # Safety
    /// The pointers hold more than `row` rows.
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, s: S, row: usize) -> Row<T> {
        let n = self.cols;
        let (x, g) = (self.x.add(row * n), self.g.add(row * n));
        let moments = Moments::of::<S, T, K>(s, x, n, self.eps);
        let pulls = Pulls::<K> {
            moments,
            norm: PhantomData,
        };
        let [sum, dot] = if WEIGHT {
            fold(s, pulls, [x, g, self.weight], n)
        } else {
            fold(s, pulls, [x, g], n)
        };
        let offset = if K::CENTRED { sum / n as f32 } else { 0.0 };
        Row {
            x,
            g,
            dx: self.dx.add(row * n),
            moments,
            slope: dot * moments.pull,
            offset,
        }
    }

    /// # Safety
    /// As [`Element::load_piece`] and its like, at element `i` of the row.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, row: &Row<T>, i: usize) {
        let left = self.cols - i;
        let g = T::load_piece::<S, FULL>(s, row.g.add(i), left);
        let x = T::load_piece::<S, FULL>(s, row.x.add(i), left);
        let x = row.moments.apply::<S, K>(s, x);
        let mut h = g;
        if WEIGHT {
            h = s.mul(g, T::load_piece::<S, FULL>(s, self.weight.add(i), left));
        }
        let dx = s.fnma(x, s.splat(row.slope), s.sub(h, s.splat(row.offset)));
        let dx = s.mul(dx, s.splat(row.moments.scale));
        T::store_piece::<S, FULL>(s, row.dx.add(i), left, dx);
        if VECTORS > 0 {
            let p = self.sums.add(i);
            let sum = f32::load_piece::<S, FULL>(s, p, left);
            f32::store_piece::<S, FULL>(s, p, left, s.fma(g, x, sum));
        }
        if VECTORS > 1 {
            let p = self.sums.add(self.cols + i);
            let sum = f32::load_piece::<S, FULL>(s, p, left);
            f32::store_piece::<S, FULL>(s, p, left, s.add(g, sum));
        }
    }
}

impl<T: Element, K: Norm, const WEIGHT: bool, const VECTORS: usize> Kernel
    for Backward<T, K, WEIGHT, VECTORS>
{
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            // SAFETY: the pointers hold `rows` rows of `cols` elements, and sums and weight of `cols`.
            unsafe {
                let row = self.row(s, row);
                let mut i = 0;
                while i + S::LANES <= self.cols {
                    self.piece::<S, true>(s, &row, i);
                    i += S::LANES;
                }
                if i < self.cols {
                    self.piece::<S, false>(s, &row, i);
                }
            }
        }
    }
}

/// What the blocks share.
struct Blocks<T> {
    x: Shared<T>,
    g: Shared<T>,
    weight: Option<Shared<T>>,
    dx: Shared<T>,
    cols: usize,
    norm: RowNorm,
    vectors: usize,
}

impl<T: Element> Blocks<T> {
    /// # Safety
    /// The pointers hold the rows in `range`, `sums` holds `vectors · cols`.
    unsafe fn backward(&self, range: Range<usize>, sums: *mut f32) {
        match (self.norm.kind, self.weight.is_some(), self.vectors) {
            (Kind::L2, ..) => self.run::<L2, false, 0>(range, sums),
            (Kind::Rms, false, _) => self.run::<Rms, false, 0>(range, sums),
            (Kind::Rms, true, 0) => self.run::<Rms, true, 0>(range, sums),
            (Kind::Rms, true, _) => self.run::<Rms, true, 1>(range, sums),
            (Kind::Layer, false, _) => self.run::<Layer, false, 0>(range, sums),
            (Kind::Layer, true, 0) => self.run::<Layer, true, 0>(range, sums),
            (Kind::Layer, true, 1) => self.run::<Layer, true, 1>(range, sums),
            (Kind::Layer, true, _) => self.run::<Layer, true, 2>(range, sums),
        }
    }

    unsafe fn run<K: Norm, const WEIGHT: bool, const VECTORS: usize>(
        &self,
        range: Range<usize>,
        sums: *mut f32,
    ) {
        let start = range.start * self.cols;
        dispatch(Backward::<T, K, WEIGHT, VECTORS> {
            x: self.x.get().add(start),
            g: self.g.get().add(start),
            weight: self.weight.map_or(std::ptr::null(), |w| w.get()),
            dx: self.dx.get().add(start),
            sums,
            rows: range.len(),
            cols: self.cols,
            eps: self.norm.eps,
            norm: PhantomData,
        })
    }
}

/// `[dx, dweight, dbias]`, of the vectors' gradients the first `vectors`.
pub fn backward(
    norm: RowNorm,
    (x, xl): Arg<CpuStorage>,
    (g, gl): Arg<CpuStorage>,
    weight: Option<Arg<CpuStorage>>,
    vectors: usize,
) -> Result<(CpuStorage, Shape)> {
    let (rows, cols) = split(xl);
    let n = rows * cols + vectors * cols;
    let out = with_float!(norm.name(), x, |x: &[T]| {
        let x = gather::contiguous(x, xl);
        let g = gather::contiguous(g.as_slice::<T>()?, gl);
        let slices = super::slices::<T>([weight, None])?;
        // SAFETY: dx is written row by row, what follows it by `total`.
        Ok(T::wrap(unsafe {
            alloc::build(n, |out| {
                let blocks = Blocks {
                    x: Shared::new(x.as_ptr().cast_mut()),
                    g: Shared::new(g.as_ptr().cast_mut()),
                    weight: super::pointers(&slices)[0],
                    dx: Shared::new(out),
                    cols,
                    norm,
                    vectors,
                };
                if vectors == 0 {
                    return parallel::ranges(rows, cols * COST, 1, |range| {
                        blocks.backward(range, std::ptr::null_mut())
                    });
                }
                let block = block_rows(rows);
                let mut sums = vec![0f32; rows.div_ceil(block) * vectors * cols];
                let shared = Shared::new(sums.as_mut_ptr());
                parallel::ranges(rows.div_ceil(block), block * cols * COST, 1, |range| {
                    for i in range {
                        let sums = shared.get().add(i * vectors * cols);
                        blocks.backward(i * block..rows.min((i + 1) * block), sums);
                    }
                });
                let n = vectors * cols;
                total(&sums, n, n, out.add(rows * cols));
            })
        }))
    })?;
    Ok((out, n.into()))
}

/// Rows of a block: enough that its sums are a small share of what it reads, and at most 64 blocks.
fn block_rows(rows: usize) -> usize {
    rows.div_ceil(64).max(8)
}

/// The sum of all rows of `parts`, `stride` elements each, of which the first `n` are wanted.
///
/// # Safety
/// `out` is valid for writes of `n` elements; `parts` holds whole rows.
pub unsafe fn total<T: Element>(parts: &[f32], stride: usize, n: usize, out: *mut T) {
    let rows = parts.len().checked_div(stride).unwrap_or(0);
    let (parts, out) = (Shared::new(parts.as_ptr().cast_mut()), Shared::new(out));
    parallel::ranges(n, rows.max(1), 64, |range| {
        dispatch(Total {
            parts: parts.get().add(range.start),
            out: out.get().add(range.start),
            len: range.len(),
            rows,
            stride,
        })
    });
}

struct Total<T> {
    parts: *const f32,
    out: *mut T,
    len: usize,
    rows: usize,
    stride: usize,
}

impl<T: Element> Total<T> {
    /// # Safety
    /// As [`Element::load_piece`] and its like, at element `i` of each row.
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize) {
        let left = self.len - i;
        let mut sum = s.splat(0.0);
        for row in 0..self.rows {
            let p = self.parts.add(row * self.stride + i);
            sum = s.add(sum, f32::load_piece::<S, FULL>(s, p, left));
        }
        T::store_piece::<S, FULL>(s, self.out.add(i), left, sum);
    }
}

impl<T: Element> Kernel for Total<T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut i = 0;
        // SAFETY: see `total`.
        unsafe {
            while i + S::LANES <= self.len {
                self.piece::<S, true>(s, i);
                i += S::LANES;
            }
            if i < self.len {
                self.piece::<S, false>(s, i);
            }
        }
    }
}
