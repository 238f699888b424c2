//! Gradients of the norms. dx is written row by row. dweight and dbias are sums over blocks of rows, then over the blocks
//! in order; the blocks depend on the sizes alone, so that a result has the same bits on every run.

use super::{rows_and_cols, slices, RowNorm};
use crate::cpu::column_sums::sum_rows;
use crate::cpu::element::Element;
use crate::cpu::fold::fold;
use crate::cpu::moments::{normed, Divisor, MomentSums, Moments, RowGradSums};
use crate::cpu::parallel::Shared;
use crate::cpu::pieces::{for_each_piece, Pieces};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::{alloc, with_float};
use crate::op::on_cpu::{Args, OpResult};
use crate::ops::affine_norm::AffineBwd;
use std::ops::Range;

/// dx, dweight and dbias one after the other; of the last two, the first `vectors`.
pub fn backward(op: &AffineBwd<RowNorm>, args: Args) -> OpResult {
    let (&AffineBwd { norm, vectors }, (x, xl), (g, gl)) = (op, args[0], args[1]);
    let [rows, cols] = rows_and_cols(xl);
    let n = rows * cols + vectors * cols;
    // A layer norm sums up dbias beside dweight even if it is not wanted: a loop for dweight alone would be code that is
    // hardly ever run.
    let summed = match norm.kind.is_centred() && vectors == 1 {
        true => 2,
        false => vectors,
    };
    let out = with_float!(norm.name(), x, |x: &[T]| {
        let x = &RowView::new(x, xl);
        let g = &RowView::new(g.as_slice::<T>()?, gl);
        let weight = slices::<T>(&args[2..])?;
        let rows_per_sum = rows_per_sum(rows);
        let mut sums = vec![0f32; rows.div_ceil(rows_per_sum) * summed * cols];
        // SAFETY: x, g and dx have the rows, and `sums` has `summed` sums for each block of them. dx is written row by
        // row, what follows it by `sum_rows`.
        let out = unsafe {
            alloc::build(n, |out| {
                let gradients = GradRows {
                    norm,
                    x,
                    g,
                    weight: weight.first().map(AsRef::as_ref),
                    dx: Shared::new(out),
                    sums: Shared::new(sums.as_mut_ptr()),
                    rows_per_sum,
                    cols,
                    vectors: summed,
                };
                gradients.run(rows);
                sum_rows(&sums, summed * cols, vectors * cols, out.add(rows * cols));
            })
        };
        Ok(T::wrap(out))
    })?;
    Ok((out, n.into()))
}

/// The rows that are added up to one sum: enough that the sums are a small part of what is read (one in 8 rows), and at
/// most 64 sums.
fn rows_per_sum(rows: usize) -> usize {
    rows.div_ceil(64).max(8)
}

/// What the gradients are made of, and where they go.
struct GradRows<'a, T> {
    norm: RowNorm,
    x: &'a RowView<'a, T>,
    g: &'a RowView<'a, T>,
    weight: Option<&'a [T]>,
    dx: Shared<T>,
    sums: Shared<f32>,
    rows_per_sum: usize,
    cols: usize,
    vectors: usize,
}

impl<T: Element> GradRows<'_, T> {
    /// # Safety
    /// x, g and dx have `rows` rows of `cols` elements; `sums` has `vectors · cols` elements for every `rows_per_sum` rows.
    /// Nothing else touches dx and `sums`.
    unsafe fn run(&self, rows: usize) {
        let centred = self.norm.kind.is_centred();
        // SAFETY: the caller's promise is the same.
        unsafe {
            match (centred, self.weight.is_some(), self.vectors) {
                (false, false, _) => self.run_as::<false, false, 0>(rows),
                (false, true, 0) => self.run_as::<false, true, 0>(rows),
                (false, true, _) => self.run_as::<false, true, 1>(rows),
                (true, false, _) => self.run_as::<true, false, 0>(rows),
                (true, true, 0) => self.run_as::<true, true, 0>(rows),
                (true, true, _) => self.run_as::<true, true, 2>(rows),
            }
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn run_as<const CENTRED: bool, const WEIGHT: bool, const VECTORS: usize>(
        &self,
        rows: usize,
    ) {
        let weight = self.weight.unwrap_or_default();
        assert!(!WEIGHT || weight.len() == self.cols);
        let op = Gradient::<T, CENTRED, WEIGHT, VECTORS> {
            x: self.x,
            g: self.g,
            weight,
            dx: self.dx,
            sums: self.sums,
            rows_per_sum: self.rows_per_sum,
            sum_len: self.vectors * self.cols,
            cols: self.cols,
            divisor: self.norm.kind.divisor(),
            eps: self.norm.eps,
        };
        // SAFETY: by the caller's promise the op's x, g and dx have these rows, and there are sums for every `rows_per_sum`
        // of them; the weight's length was checked above.
        unsafe { two_pass::run(op, rows, self.cols) }
    }
}

/// [`GradRows`], of whose sums the first `VECTORS` are wanted: dweight, then dbias.
#[derive(Clone, Copy)]
struct Gradient<'a, T, const CENTRED: bool, const WEIGHT: bool, const VECTORS: usize> {
    x: &'a RowView<'a, T>,
    g: &'a RowView<'a, T>,
    weight: &'a [T],
    dx: Shared<T>,
    sums: Shared<f32>,
    rows_per_sum: usize,
    sum_len: usize,
    cols: usize,
    divisor: Divisor,
    eps: f32,
}

/// The moments of x, Σh and Σ h·(x − mean), where h = g or g · weight.
#[derive(Clone, Copy)]
struct GradStat {
    moments: MomentSums,
    sum: f32,
    dot: f32,
}

impl<T: Element, const CENTRED: bool, const WEIGHT: bool, const VECTORS: usize> TwoPassRow
    for Gradient<'_, T, CENTRED, WEIGHT, VECTORS>
{
    type Stat = GradStat;

    fn cost(cols: usize) -> usize {
        cols * 6
    }

    fn rows_together(&self) -> usize {
        match VECTORS {
            0 => 1,
            _ => self.rows_per_sum,
        }
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> GradStat {
        let (start, n) = (cols.start, cols.len());
        // SAFETY: x and g have this row, these columns lie in it, and the weight, if it is read, is as long as a row.
        unsafe {
            let (x, g) = (self.x.row(row).add(start), self.g.row(row).add(start));
            let moments = MomentSums::measure::<S, T, CENTRED>(s, x, n);
            let sums = RowGradSums {
                mean: moments.mean(),
            };
            let [sum, dot] = if WEIGHT {
                fold(s, sums, [x, g, self.weight.as_ptr().add(start)], n)
            } else {
                fold(s, sums, [x, g], n)
            };
            GradStat { moments, sum, dot }
        }
    }

    fn join(&self, a: GradStat, b: GradStat) -> GradStat {
        let moments = a.moments.join::<CENTRED>(b.moments);
        let dot = |part: GradStat| part.dot + part.sum * (part.moments.mean() - moments.mean());
        GradStat {
            moments,
            sum: a.sum + b.sum,
            dot: dot(a) + dot(b),
        }
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: GradStat) {
        let moments = Moments::new::<CENTRED>(stat.moments, self.divisor, self.eps);
        // Σ h·x̂
        let mut dot = stat.dot * moments.scale;
        let mut offset = 0.0;
        if CENTRED {
            dot += stat.sum * moments.shift;
            offset = stat.sum / self.cols as f32;
        }
        // SAFETY: x, g and dx have this row of `cols` elements; the sums have `sum_len`, VECTORS · cols, for the block of rows
        // that it is one of, and `rows_together` keeps such a block on one thread. Where the sums or the weight are not
        // used there may be none, and they are not read.
        unsafe {
            let dweight = match VECTORS {
                0 => self.sums.get(),
                _ => self.sums.get().add(row / self.rows_per_sum * self.sum_len),
            };
            let row = GradRow::<T, CENTRED, WEIGHT, VECTORS> {
                x: self.x.row(row),
                g: self.g.row(row),
                weight: self.weight.as_ptr(),
                dx: self.dx.get().add(row * self.cols),
                dweight,
                dbias: dweight.wrapping_add(self.cols),
                moments,
                slope: dot * moments.grad_factor,
                offset,
            };
            for_each_piece(s, cols, &row);
        }
    }
}

/// dx = (h − x̂ · slope − offset) · scale
#[inline(always)]
pub fn row_grad<S: Simd>(s: S, m: Moments, h: S::F, x: S::F, [slope, offset]: [f32; 2]) -> S::F {
    let dx = s.fnma(x, s.splat(slope), s.sub(h, s.splat(offset)));
    s.mul(dx, s.splat(m.scale))
}

/// One row of x, g and dx, and the sums that it adds to.
struct GradRow<T, const CENTRED: bool, const WEIGHT: bool, const VECTORS: usize> {
    x: *const T,
    g: *const T,
    weight: *const T,
    dx: *mut T,
    dweight: *mut f32,
    dbias: *mut f32,
    moments: Moments,
    slope: f32,
    offset: f32,
}

impl<T: Element, const CENTRED: bool, const WEIGHT: bool, const VECTORS: usize> Pieces
    for GradRow<T, CENTRED, WEIGHT, VECTORS>
{
    #[inline(always)]
    unsafe fn piece<S: Simd, const FULL: bool>(&self, s: S, i: usize, left: usize) {
        // SAFETY: `apply` asks for columns of a row that x, g and dx have, and so have the weight and the sums that are used.
        unsafe {
            let g = T::load_piece::<S, FULL>(s, self.g.add(i), left);
            let x = normed::<S, T, CENTRED, FULL>(s, self.moments, self.x.add(i), left);
            let mut h = g;
            if WEIGHT {
                h = s.mul(g, T::load_piece::<S, FULL>(s, self.weight.add(i), left));
            }
            let dx = row_grad(s, self.moments, h, x, [self.slope, self.offset]);
            T::store_piece::<S, FULL>(s, self.dx.add(i), left, dx);
            if VECTORS > 0 {
                let sum = f32::load_piece::<S, FULL>(s, self.dweight.add(i), left);
                f32::store_piece::<S, FULL>(s, self.dweight.add(i), left, s.fma(g, x, sum));
            }
            if VECTORS > 1 {
                let sum = f32::load_piece::<S, FULL>(s, self.dbias.add(i), left);
                f32::store_piece::<S, FULL>(s, self.dbias.add(i), left, s.add(g, sum));
            }
        }
    }
}
