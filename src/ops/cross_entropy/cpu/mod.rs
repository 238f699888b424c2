//! Losses over classes on the CPU.

mod backward;
mod forward;
mod gather;

use super::{loss_shape, Loss, FACTORS, NAME};
use crate::cpu::element::Element;
use crate::cpu::row_view::RowView;
use crate::cpu::{gather as copies, with_float};
use crate::op::on_cpu::{Arg, ArgMut, Args, OpResult};
use crate::ops::targets;
use candle_core::{CpuStorage, Layout, Result, Shape};
use std::borrow::Cow;

pub(crate) use backward::RowGradients;
pub(crate) use forward::{RowLosses, Terms};
pub use gather::{nll, nll_gradient};

/// All but the last dim, and the last dim.
pub(crate) fn rows_and_cols(dims: &[usize]) -> [usize; 2] {
    let (cols, leading) = dims.split_last().unwrap_or((&1, &[]));
    [leading.iter().product(), *cols]
}

/// The class weights in order, if there are any.
fn weights<'a, T: Element>(weight: Option<&Arg<'a>>) -> Result<Option<Cow<'a, [T]>>> {
    let Some((weight, layout)) = weight else {
        return Ok(None);
    };
    Ok(Some(copies::contiguous(weight.as_slice::<T>()?, layout)))
}

/// The loss, and the factors of its gradient.
pub fn forward(loss: &Loss, args: Args) -> Result<[(CpuStorage, Shape); 2]> {
    let ((x, layout), shape) = (args[0], loss_shape(loss.op.reduction, args[0].1.dims()));
    let [rows, cols] = rows_and_cols(layout.dims());
    let ignored = loss.op.ignore_index;
    let targets = targets::read(loss.name, loss.target(), args[1], cols, ignored)?;
    let (result, factors) = with_float!(loss.name, x, |x: &[T]| {
        let weight = weights::<T>(args.get(2))?;
        let terms = Terms::new(&loss.op, loss.sign(), &targets, weight.as_deref(), cols);
        let losses = RowLosses {
            x: &RowView::new(x, layout),
            targets: &targets,
            weight: weight.as_deref(),
            terms,
        };
        let (losses, factors) = losses.run([rows, cols]);
        Result::Ok((T::wrap(terms.reduce(losses, loss.op.reduction)), factors))
    })?;
    let factors = (CpuStorage::U32(factors), (rows, FACTORS).into());
    Ok([(result, shape), factors])
}

/// The gradient of the logits from `(logits, factors, grad_out)`.
pub fn gradient(args: Args, weight: Option<Arg>) -> OpResult {
    let ((x, layout), factors) = (args[0], read_factors(args[1])?);
    let size = rows_and_cols(layout.dims());
    let dx = with_float!(NAME, x, |x: &[T]| {
        let (grad, weight) = (contiguous::<T>(args[2])?, weights::<T>(weight.as_ref())?);
        let x = RowView::new(x, layout);
        let gradients = RowGradients::new(&factors, &grad, weight.as_deref(), size);
        Ok(T::wrap(gradients.run(&x)))
    })?;
    Ok((dx, layout.shape().clone()))
}

/// The gradient in the memory of the logits.
pub fn gradient_inplace((x, layout): ArgMut, rest: Args, weight: Option<Arg>) -> Result<()> {
    let (factors, size) = (read_factors(rest[0])?, rows_and_cols(layout.dims()));
    with_float!(NAME, x, |x: &[T]| {
        let (grad, weight) = (contiguous::<T>(rest[1])?, weights::<T>(weight.as_ref())?);
        let gradients = RowGradients::new(&factors, &grad, weight.as_deref(), size);
        copies::update(x, layout, |x: &mut [T]| gradients.overwrite(x));
        Ok(())
    })
}

fn contiguous<'a, T: Element>((storage, layout): Arg<'a>) -> Result<Cow<'a, [T]>> {
    Ok(copies::contiguous(storage.as_slice::<T>()?, layout))
}

fn read_factors<'a>((storage, layout): (&'a CpuStorage, &Layout)) -> Result<Cow<'a, [u32]>> {
    let factors = storage.as_slice::<u32>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) if start == end => Ok(Cow::Borrowed(&[])),
        Some((start, end)) => Ok(Cow::Borrowed(&factors[start..end])),
        None => candle_core::bail!("{NAME}: got strided factors, expected them in a row"),
    }
}
