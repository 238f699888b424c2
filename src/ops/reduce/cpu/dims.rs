//! Reductions over any dims: one run of neighbouring dims after the other, the last one first, with results in f32 between two
//! of them.

use super::super::{ReduceDims, Reduction, NAME};
use super::rows::reduce_rows;
use crate::cpu::column_sums::{reduce_middle, Max, Sum};
use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use crate::ops::reduce::dims::Run;
use std::borrow::Cow;

pub fn over_dims(op: &ReduceDims, (x, l): Arg) -> OpResult {
    let shape = op.reduced_shape(l.dims());
    let (runs, scale) = (op.runs(l.dims()), op.scale(l.dims()));
    let is_max = op.reduction == Reduction::Max;
    let out = with_float!(NAME, x, |x: &[T]| {
        let results: Vec<T> = match &runs[..] {
            _ if l.shape().elem_count() == 0 => vec![T::narrow(0.0 * scale); shape.elem_count()],
            [] => gather::contiguous(x, l).into_owned(),
            // Rows are read where they lie.
            [run] if run.is_last_dim => {
                reduce_rows(&RowView::new(x, l), [run.outer, run.n], is_max, scale)
            }
            [run] => reduce(&gather::contiguous(x, l), *run, is_max, scale),
            [first, between @ .., last] => {
                let mut sums: Vec<f32> = reduce(&gather::contiguous(x, l), *first, is_max, 1.0);
                for run in between {
                    sums = reduce(&sums, *run, is_max, 1.0);
                }
                reduce(&sums, *last, is_max, scale)
            }
        };
        Ok(T::wrap(results))
    })?;
    Ok((out, shape))
}

/// `scale` times the sums or maxima of a run.
fn reduce<I: Element, O: Element>(x: &[I], run: Run, is_max: bool, scale: f32) -> Vec<O> {
    let Run {
        outer, n, inner, ..
    } = run;
    match (inner, is_max) {
        (1, _) => {
            let rows = RowView::contiguous(Cow::Borrowed(x), n);
            reduce_rows(&rows, [outer, n], is_max, scale)
        }
        (_, false) => reduce_middle::<Sum, I, O>(x, [outer, n, inner], scale),
        (_, true) => reduce_middle::<Max, I, O>(x, [outer, n, inner], scale),
    }
}
