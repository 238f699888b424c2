//! Over the last dim by rows, over another by columns.

mod backward;
mod columns;
mod forward;
mod scores;

use super::{split, MaskedSoftmax, Softmax, SoftmaxBwd, NAME};
use crate::cpu::element::Element;
use crate::cpu::parallel::Shared;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::MAX_LANES;
use crate::cpu::{alloc, gather, with_float};
use candle_core::{CpuStorage, Layout, Result, Shape};
use scores::{Biased, Scaled};
use std::borrow::Cow;

pub fn forward(op: Softmax, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
    let [outer, n, inner] = split(l.shape(), op.dim);
    let out = with_float!(NAME, x, |x: &[T]| {
        let y = if inner == 1 {
            rows_of(&RowView::new(x, &rows(l, op.dim)), op.log, [outer, n])
        } else if inner < MAX_LANES {
            // Too narrow for lanes of columns: transposed, the columns are rows.
            let turned = l.transpose(op.dim, l.dims().len() - 1)?;
            let x = gather::contiguous(x, &turned);
            let rows = x.len() / n.max(1);
            let y = rows_of(&RowView::contiguous(x.as_ptr(), n), op.log, [rows, n]);
            turn_back(&y, &turned, op.dim)?
        } else {
            columns::forward(&gather::contiguous(x, l), op.log, [outer, n, inner])
        };
        Ok(T::wrap(y))
    })?;
    Ok((out, l.shape().clone()))
}

/// The layout without dims of size 1 behind `dim`, which then counts the elements of rows.
fn rows(l: &Layout, dim: usize) -> Cow<'_, Layout> {
    if dim + 1 == l.dims().len() {
        return Cow::Borrowed(l);
    }
    let (dims, stride) = (&l.dims()[..=dim], l.stride()[..=dim].to_vec());
    Cow::Owned(Layout::new(dims.into(), stride, l.start_offset()))
}

/// The elements of `turned`'s shape in the order of before `dim` and the last one were exchanged.
fn turn_back<T: Element>(data: &[T], turned: &Layout, dim: usize) -> Result<Vec<T>> {
    let back = Layout::contiguous(turned.shape()).transpose(dim, turned.dims().len() - 1)?;
    Ok(gather::contiguous(data, &back).into_owned())
}

pub fn forward_inplace(log: bool, x: &mut CpuStorage, l: &Layout) -> Result<()> {
    let cols = l.dims().last().copied().unwrap_or(1);
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            let (rows, y) = (x.len() / cols.max(1), Shared::new(x.as_mut_ptr()));
            let x = RowView::contiguous(y.get(), cols);
            // SAFETY: the rows lie in x; each is read before it is written, by one thread.
            unsafe { forward::run_plain(&x, y, log, [rows, cols]) }
        });
        Ok(())
    })
}

pub fn masked(
    op: MaskedSoftmax,
    (x, xl): (&CpuStorage, &Layout),
    mask: Option<(&CpuStorage, &Layout)>,
) -> Result<(CpuStorage, Shape)> {
    let n = xl.shape().elem_count();
    let out = with_float!(NAME, x, |x: &[T]| {
        let x = RowView::new(x, xl);
        let mask = mask_view::<T>(mask, xl.shape())?;
        // SAFETY: every element of every row is written.
        let y = unsafe { alloc::build(n, |y| masked_to(op, &x, mask, Shared::new(y), xl.shape())) };
        Ok(T::wrap(y))
    })?;
    Ok((out, xl.shape().clone()))
}

pub fn masked_inplace(
    op: MaskedSoftmax,
    (x, xl): (&mut CpuStorage, &Layout),
    mask: Option<(&CpuStorage, &Layout)>,
) -> Result<()> {
    let cols = xl.dims().last().copied().unwrap_or(1);
    with_float!(NAME, x, |x: &[T]| {
        let mask = mask_view::<T>(mask, xl.shape())?;
        gather::update(x, xl, |x: &mut [T]| {
            let y = Shared::new(x.as_mut_ptr());
            // SAFETY: x has the shape; a row is read before it is written, by one thread.
            unsafe { masked_to(op, &RowView::contiguous(y.get(), cols), mask, y, xl.shape()) }
        });
        Ok(())
    })
}

fn mask_view<'a, T: Element>(
    mask: Option<(&'a CpuStorage, &Layout)>,
    shape: &Shape,
) -> Result<Option<RowView<'a, T>>> {
    let Some((mask, ml)) = mask else {
        return Ok(None);
    };
    let mask = mask.as_slice::<T>()?;
    Ok(Some(RowView::new(mask, &ml.broadcast_as(shape)?)))
}

/// # Safety
/// `x`, `mask` and `y` have the shape.
unsafe fn masked_to<T: Element>(
    op: MaskedSoftmax,
    x: &RowView<T>,
    mask: Option<RowView<T>>,
    y: Shared<T>,
    shape: &Shape,
) {
    let cols = shape.dims().last().copied().unwrap_or(1);
    let rows = shape.elem_count() / cols.max(1);
    let scale = op.scale;
    match &mask {
        Some(mask) => forward::run(x, y, Biased { scale, mask }, [rows, cols]),
        None => {
            let queries = op.causal.then(|| shape.dims()[shape.rank() - 2]);
            forward::run(x, y, Scaled { scale, queries }, [rows, cols])
        }
    }
}

fn rows_of<T: Element>(x: &RowView<T>, log: bool, [rows, cols]: [usize; 2]) -> Vec<T> {
    // SAFETY: every element of every row is written.
    unsafe {
        alloc::build(rows * cols, |y| {
            forward::run_plain(x, Shared::new(y), log, [rows, cols])
        })
    }
}

pub fn backward(
    op: SoftmaxBwd,
    (y, yl): (&CpuStorage, &Layout),
    (g, gl): (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let [outer, n, inner] = split(yl.shape(), op.dim);
    let out = with_float!(NAME, y, |y: &[T]| {
        let g = g.as_slice::<T>()?;
        let dx = if inner == 1 {
            let y = RowView::new(y, &rows(yl, op.dim));
            rows_backward(&y, &RowView::new(g, &rows(gl, op.dim)), op, [outer, n])
        } else if inner < MAX_LANES {
            let last = yl.dims().len() - 1;
            let turned = yl.transpose(op.dim, last)?;
            let y = gather::contiguous(y, &turned);
            let g = gather::contiguous(g, &gl.transpose(op.dim, last)?);
            let rows = y.len() / n.max(1);
            let y = RowView::contiguous(y.as_ptr(), n);
            let dx = rows_backward(&y, &RowView::contiguous(g.as_ptr(), n), op, [rows, n]);
            turn_back(&dx, &turned, op.dim)?
        } else {
            let (y, g) = (gather::contiguous(y, yl), gather::contiguous(g, gl));
            columns::backward(&y, &g, op, [outer, n, inner])
        };
        Ok(T::wrap(dx))
    })?;
    Ok((out, yl.shape().clone()))
}

fn rows_backward<T: Element>(
    y: &RowView<T>,
    g: &RowView<T>,
    op: SoftmaxBwd,
    [rows, cols]: [usize; 2],
) -> Vec<T> {
    // SAFETY: every element of every row is written.
    unsafe {
        alloc::build(rows * cols, |dx| {
            backward::run(y, g, Shared::new(dx), op, [rows, cols])
        })
    }
}
