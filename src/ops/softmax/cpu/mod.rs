//! Softmax on the CPU. Over the last dim it runs row by row (`softmax_rows`, `log_softmax_rows`, and `backward` for both),
//! over another dim it runs across columns (`columns`).

mod backward;
mod columns;
mod log_softmax_rows;
mod max_sum;
mod scores;
mod softmax_rows;

use super::{split, MaskedSoftmax, Softmax, SoftmaxBwd, NAME};
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::MAX_LANES;
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::{Arg, ArgMut, Args, OpResult};
use candle_core::{Layout, Result, Shape};
pub use max_sum::{finite_max, MaxSum};
use scores::{Biased, Scaled};
pub use scores::{Plain, ScoreRow};
use std::borrow::Cow;

/// Runs `$body` with `$LOG` as a constant: whether the logarithm of the softmax is wanted.
macro_rules! with_log {
    ($log:expr, $LOG:ident => $body:expr) => {
        if $log {
            const $LOG: bool = true;
            $body
        } else {
            const $LOG: bool = false;
            $body
        }
    };
}

pub fn forward(op: Softmax, (x, l): Arg) -> OpResult {
    let out = with_float!(NAME, x, |x: &[T]| {
        with_log!(op.log, LOG => forward_as::<T, LOG>(x, l, op.dim)).map(T::wrap)
    })?;
    Ok((out, l.shape().clone()))
}

fn forward_as<T: Element, const LOG: bool>(x: &[T], l: &Layout, dim: usize) -> Result<Vec<T>> {
    if l.shape().elem_count() == 0 {
        return Ok(Vec::new());
    }
    let [outer, n, inner] = split(l.shape(), dim);
    if inner == 1 {
        let x = RowView::new(x, &without_dims_behind(l, dim));
        return Ok(forward_by_row::<T, LOG>(&x, [outer, n]));
    }
    if inner < MAX_LANES {
        // Too few columns to fill a vector. Transposed, they are rows.
        let transposed = l.transpose(dim, l.dims().len() - 1)?;
        let x = RowView::new(x, &transposed);
        let y = forward_by_row::<T, LOG>(&x, [outer * inner, n]);
        return transpose_back(&y, &transposed, dim);
    }
    let x = gather::contiguous(x, l);
    Ok(columns::forward::<T, LOG>(&x, [outer, n, inner]))
}

fn forward_by_row<T: Element, const LOG: bool>(x: &RowView<T>, size: [usize; 2]) -> Vec<T> {
    // SAFETY: x has the rows, and every element of every row of y is written.
    unsafe {
        alloc::build(size[0] * size[1], |y| {
            run_rows::<T, LOG>(x, Shared::new(y), size)
        })
    }
}

/// # Safety
/// `x` and `y` have the rows and columns of `size`. They may be the same memory.
unsafe fn run_rows<T: Element, const LOG: bool>(x: &RowView<T>, y: Shared<T>, size: [usize; 2]) {
    // SAFETY: the caller's promise is the same.
    unsafe {
        if LOG {
            log_softmax_rows::run(x, y, size)
        } else {
            softmax_rows::run(x, y, Plain, size)
        }
    }
}

/// The layout without the dims behind `dim`, which have size 1: the rows are then those of the last dim.
pub fn without_dims_behind(l: &Layout, dim: usize) -> Cow<'_, Layout> {
    if dim + 1 == l.dims().len() {
        return Cow::Borrowed(l);
    }
    let (dims, stride) = (&l.dims()[..=dim], l.stride()[..=dim].to_vec());
    Cow::Owned(Layout::new(dims.into(), stride, l.start_offset()))
}

/// The elements of contiguous `data` of shape `transposed`, with `dim` and the last dim exchanged again.
fn transpose_back<T: Element>(data: &[T], transposed: &Layout, dim: usize) -> Result<Vec<T>> {
    let last = transposed.dims().len() - 1;
    let back = Layout::contiguous(transposed.shape()).transpose(dim, last)?;
    Ok(gather::contiguous(data, &back).into_owned())
}

pub fn inplace(log: bool, (x, l): ArgMut) -> Result<()> {
    let size = rows_and_cols(l.shape());
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            let y = Shared::new(x.as_mut_ptr());
            // SAFETY: x has the rows, and is used through the pointer alone until they are written.
            unsafe {
                let x = RowView::from_raw(y.get(), size[1]);
                with_log!(log, LOG => run_rows::<T, LOG>(&x, y, size))
            }
        });
        Ok(())
    })
}

/// All but the last dim, and the last dim.
fn rows_and_cols(shape: &Shape) -> [usize; 2] {
    let cols = shape.dims().last().copied().unwrap_or(1);
    [shape.elem_count() / cols.max(1), cols]
}

pub fn masked(op: MaskedSoftmax, args: Args) -> OpResult {
    let ((x, xl), mask) = (args[0], args.get(1));
    let shape = xl.shape();
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = RowView::new(x, xl);
        let mask = mask_view::<T>(mask, shape)?;
        // SAFETY: x and the mask have the shape, and every element of every row of y is written.
        let y = unsafe {
            alloc::build(shape.elem_count(), |y| {
                run_masked(op, &x, mask, Shared::new(y), shape)
            })
        };
        Ok(T::wrap(y))
    })?;
    Ok((out, shape.clone()))
}

pub fn masked_inplace(op: MaskedSoftmax, (x, l): ArgMut, rest: Args) -> Result<()> {
    let [_, cols] = rows_and_cols(l.shape());
    with_float!(NAME, x, |x: &[T]| {
        let mask = mask_view::<T>(rest.first(), l.shape())?;
        gather::update(x, l, |x: &mut [T]| {
            let y = Shared::new(x.as_mut_ptr());
            // SAFETY: x has the shape, and is used through the pointer alone until its rows are written.
            unsafe { run_masked(op, &RowView::from_raw(y.get(), cols), mask, y, l.shape()) }
        });
        Ok(())
    })
}

fn mask_view<'a, T: Element>(
    mask: Option<&Arg<'a>>,
    shape: &Shape,
) -> Result<Option<RowView<'a, T>>> {
    let Some(&(mask, ml)) = mask else {
        return Ok(None);
    };
    let mask = mask.as_slice::<T>()?;
    Ok(Some(RowView::new(mask, &ml.broadcast_as(shape)?)))
}

/// # Safety
/// `x`, `mask` and `y` have the shape. `x` and `y` may be the same.
unsafe fn run_masked<T: Element>(
    op: MaskedSoftmax,
    x: &RowView<T>,
    mask: Option<RowView<T>>,
    y: Shared<T>,
    shape: &Shape,
) {
    let (size, scale) = (rows_and_cols(shape), op.scale);
    // SAFETY: the caller's promise is the same.
    unsafe {
        match &mask {
            Some(mask) => softmax_rows::run(x, y, Biased { scale, mask }, size),
            None => {
                let queries = op.causal.then(|| shape.dims()[shape.rank() - 2]);
                softmax_rows::run(x, y, Scaled { scale, queries }, size)
            }
        }
    }
}

pub fn backward(op: SoftmaxBwd, (y, yl): Arg, (g, gl): Arg) -> OpResult {
    let out = with_float!(NAME, y, |y: &[T]| {
        let g = g.as_slice::<T>()?;
        with_log!(op.log, LOG => backward_as::<T, LOG>(op, (y, yl), (g, gl))).map(T::wrap)
    })?;
    Ok((out, yl.shape().clone()))
}

fn backward_as<T: Element, const LOG: bool>(
    op: SoftmaxBwd,
    (y, yl): (&[T], &Layout),
    (g, gl): (&[T], &Layout),
) -> Result<Vec<T>> {
    if yl.shape().elem_count() == 0 {
        return Ok(Vec::new());
    }
    let [outer, n, inner] = split(yl.shape(), op.dim);
    if inner == 1 {
        let y = RowView::new(y, &without_dims_behind(yl, op.dim));
        let g = RowView::new(g, &without_dims_behind(gl, op.dim));
        return Ok(backward_by_row::<T, LOG>(&y, &g, op.scale, [outer, n]));
    }
    if inner < MAX_LANES {
        let last = yl.dims().len() - 1;
        let (yl, gl) = (yl.transpose(op.dim, last)?, gl.transpose(op.dim, last)?);
        let (y, g) = (RowView::new(y, &yl), RowView::new(g, &gl));
        let dx = backward_by_row::<T, LOG>(&y, &g, op.scale, [outer * inner, n]);
        return transpose_back(&dx, &yl, op.dim);
    }
    let (y, g) = (gather::contiguous(y, yl), gather::contiguous(g, gl));
    let size = [outer, n, inner];
    Ok(columns::backward::<T, LOG>(&y, &g, op.scale, size))
}

fn backward_by_row<T: Element, const LOG: bool>(
    y: &RowView<T>,
    g: &RowView<T>,
    scale: f32,
    size: [usize; 2],
) -> Vec<T> {
    // SAFETY: y and g have the rows, and every element of every row of dx is written.
    unsafe {
        alloc::build(size[0] * size[1], |dx| {
            backward::run::<T, LOG>([y, g], Shared::new(dx), scale, size)
        })
    }
}
