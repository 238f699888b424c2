//! Divergences on the CPU: rows are measured, then summed up while they are in the cache.

use super::{loss_shape, Distribution, KlDiv, LossReduction, KEPT, NAME};
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::fold::{fold, Fold};
use crate::cpu::gather;
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::cpu::two_pass::{self, TwoPassRow};
use crate::cpu::with_float;
use crate::op::on_cpu::Args;
use crate::ops::cross_entropy::cpu::rows_and_cols;
use crate::ops::softmax::{MaxSum, Plain, ScoreRow};
use candle_core::{CpuStorage, Result, Shape};
use std::ops::Range;

/// The divergence, and the numbers that are kept of each row.
pub fn forward(op: KlDiv, args: Args) -> Result<[(CpuStorage, Shape); 2]> {
    let ((q, ql), (p, pl)) = (args[0], args[1]);
    let [rows, cols] = rows_and_cols(ql.dims());
    let (loss, kept) = with_float!(NAME, q, |q: &[T]| {
        let (q, p) = (RowView::new(q, ql), RowView::new(p.as_slice::<T>()?, pl));
        // SAFETY: both have the rows, and all that is kept of each is written.
        let kept = unsafe {
            alloc::build(rows * KEPT, |kept| {
                let kept = Shared::new(kept);
                let (q, p) = (&q, &p);
                two_pass::run(
                    Rows {
                        op,
                        q,
                        p,
                        cols,
                        kept,
                    },
                    rows,
                    cols,
                )
            })
        };
        let losses = kept.chunks_exact(KEPT).map(|kept| kept[KEPT - 1]);
        let loss: Vec<T> = match op.reduction {
            LossReduction::None => losses.map(T::narrow).collect(),
            _ => {
                let sum: f64 = losses.map(f64::from).sum();
                let count = if op.reduction == LossReduction::Mean {
                    rows
                } else {
                    1
                };
                vec![T::narrow((sum / count as f64) as f32)]
            }
        };
        Result::Ok((T::wrap(loss), kept))
    })?;
    let kept = (CpuStorage::F32(kept), (rows, KEPT).into());
    Ok([(loss, loss_shape(op.reduction, ql.dims())), kept])
}

/// Rows of input and target, and where what is kept of them goes.
struct Rows<'a, T> {
    op: KlDiv,
    q: &'a RowView<'a, T>,
    p: &'a RowView<'a, T>,
    cols: usize,
    kept: Shared<f32>,
}

impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

/// Of what is not given as logits: nothing is subtracted from log-probabilities.
const UNIT: MaxSum = MaxSum { max: 0.0, sum: 1.0 };

impl<T: Element> TwoPassRow for Rows<'_, T> {
    type Stat = [MaxSum; 2];
    const APPLIES_PARTS: bool = false;

    fn cost(cols: usize) -> usize {
        cols * 4 * parallel::EXP
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> [MaxSum; 2] {
        let mut stats = [UNIT; 2];
        let rows = [(self.q, self.op.input), (self.p, self.op.target)];
        for (stat, (x, given)) in stats.iter_mut().zip(rows) {
            if given == Distribution::Logits {
                let scores = ScoreRow::new(Plain, x, row, self.cols);
                // SAFETY: x has this row of `cols` elements, and these columns lie in it.
                *stat = unsafe { MaxSum::measure(s, scores, cols.clone()) };
            }
        }
        stats
    }

    fn join(&self, a: [MaxSum; 2], b: [MaxSum; 2]) -> [MaxSum; 2] {
        let of = |i: usize, given| match given {
            Distribution::Logits => a[i].join(b[i]),
            _ => UNIT,
        };
        [of(0, self.op.input), of(1, self.op.target)]
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stat: [MaxSum; 2]) {
        let logs = Logs {
            q: [stat[0].max, stat[0].sum.ln()],
            p: [stat[1].max, stat[1].sum.ln()],
        };
        // SAFETY: both have this row of `cols` elements, and there is room for what is kept of it, which no other thread writes.
        unsafe {
            let x = [self.q.row(row), self.p.row(row)];
            let [sum, total] = match self.op.target {
                Distribution::Probs => fold(s, Terms::<true>(logs), x, cols.len()),
                _ => fold(s, Terms::<false>(logs), x, cols.len()),
            };
            let kept = [logs.q[0], logs.q[1], logs.p[0], logs.p[1], total, sum];
            let to = self.kept.get().add(row * KEPT);
            std::ptr::copy_nonoverlapping(kept.as_ptr(), to, KEPT);
        }
    }
}

/// What is subtracted from logits of either side: the maximum, then the logarithm of the sum.
#[derive(Clone, Copy)]
struct Logs {
    q: [f32; 2],
    p: [f32; 2],
}

impl Logs {
    /// p, log p and log q.
    #[inline(always)]
    fn of<S: Simd, const PROBS: bool>(self, s: S, q: S::F, p: S::F) -> [S::F; 3] {
        let log_q = s.sub(s.sub(q, s.splat(self.q[0])), s.splat(self.q[1]));
        if PROBS {
            return [p, math::log(s, p), log_q];
        }
        let log_p = s.sub(s.sub(p, s.splat(self.p[0])), s.splat(self.p[1]));
        [math::exp(s, log_p), log_p, log_q]
    }
}

/// Σ p · (log p − log q) and Σ p
#[derive(Clone, Copy)]
struct Terms<const PROBS: bool>(Logs);

impl<const PROBS: bool> Fold<2, 2> for Terms<PROBS> {
    fn pad(&self) -> [f32; 2] {
        [0.0, if PROBS { 0.0 } else { f32::NEG_INFINITY }]
    }
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [sum, total]: [S::F; 2], [q, p]: [S::F; 2]) -> [S::F; 2] {
        let [p, log_p, log_q] = self.0.of::<S, PROBS>(s, q, p);
        let term = s.mul(p, s.sub(log_p, log_q));
        let zero = s.splat(0.0);
        [
            s.add(sum, s.select(s.eq(p, zero), zero, term)),
            s.add(total, p),
        ]
    }
}

/// The gradient of the input, or of the target, from `(input, target, kept, grad_out)`.
pub fn gradient(op: KlDiv, of_target: bool, args: Args) -> Result<CpuStorage> {
    let ((q, ql), (p, pl), (kept, kl), (g, gl)) = (args[0], args[1], args[2], args[3]);
    let [rows, cols] = rows_and_cols(ql.dims());
    let kept = gather::contiguous(kept.as_slice::<f32>()?, kl);
    with_float!(NAME, q, |q: &[T]| {
        let (q, p) = (RowView::new(q, ql), RowView::new(p.as_slice::<T>()?, pl));
        let grad = gather::contiguous(g.as_slice::<T>()?, gl);
        let unit = op.unit(rows);
        // SAFETY: the ranges cover all rows, which both have, and every element of each is written.
        let out = unsafe {
            alloc::build(rows * cols, |out: *mut T| {
                let out = Shared::new(out);
                parallel::ranges(rows, cols * 3 * parallel::EXP, 1, |range| {
                    for row in range {
                        let kept = &kept[row * KEPT..][..KEPT];
                        let grad = grad[if grad.len() == 1 { 0 } else { row }].widen();
                        dispatch(RowGradient {
                            op,
                            of_target,
                            kept,
                            grad: grad * unit,
                            x: [q.row(row), p.row(row)],
                            out: out.get().add(row * cols),
                            cols,
                        });
                    }
                });
            })
        };
        Ok(T::wrap(out))
    })
}

/// One row, which `x` and `out` have `cols` elements of.
struct RowGradient<'a, T> {
    op: KlDiv,
    of_target: bool,
    kept: &'a [f32],
    grad: f32,
    x: [*const T; 2],
    out: *mut T,
    cols: usize,
}

impl<T: Element> Kernel for RowGradient<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let probs = self.op.target == Distribution::Probs;
        match (probs, self.of_target) {
            (true, true) => self.write::<S, true, true>(s),
            (true, false) => self.write::<S, true, false>(s),
            (false, true) => self.write::<S, false, true>(s),
            (false, false) => self.write::<S, false, false>(s),
        }
    }
}

impl<T: Element> RowGradient<'_, T> {
    #[inline(always)]
    fn write<S: Simd, const PROBS: bool, const TARGET: bool>(self, s: S) {
        let [max_q, sum_q, max_p, sum_p, total, loss] = [0, 1, 2, 3, 4, 5].map(|i| self.kept[i]);
        let logs = Logs {
            q: [max_q, sum_q],
            p: [max_p, sum_p],
        };
        let (grad, zero) = (s.splat(self.grad), s.splat(0.0));
        let shift = match self.op.target {
            Distribution::Logits => s.splat(-loss),
            _ => s.splat(1.0),
        };
        // The factor of q: log-probabilities have none.
        let total = match self.op.input {
            Distribution::Logits => s.splat(total),
            _ => zero,
        };
        let mut j = 0;
        while j < self.cols {
            let left = self.cols - j;
            // SAFETY: the row has `left` elements from j on.
            unsafe {
                let q = T::load_upto(s, self.x[0].add(j), left);
                let p = T::load_upto(s, self.x[1].add(j), left);
                let [p, log_p, log_q] = logs.of::<S, PROBS>(s, q, p);
                let d = if TARGET {
                    let slope = s.add(s.sub(log_p, log_q), shift);
                    let d = if PROBS { slope } else { s.mul(p, slope) };
                    s.select(s.eq(p, zero), zero, d)
                } else {
                    let q = match self.op.input {
                        Distribution::Logits => s.mul(math::exp(s, log_q), total),
                        _ => zero,
                    };
                    s.sub(q, p)
                };
                T::store_upto(s, self.out.add(j), left, s.mul(d, grad));
            }
            j += S::LANES;
        }
    }
}
