//! Launches of kernels that compute each element of their outputs from the elements at the same place of their inputs.

use super::sources::Source;
use super::{build, grid, update, Launch, Operand};
use crate::op::{Arg, ArgMut};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result};

/// How a kernel reads an input.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// It has x's shape, and every element is in its place.
    Dense(Arg<'a, MetalStorage>),
    /// It broadcasts to x's shape and is read by a [`Spread`](super::Spread).
    Spread(Arg<'a, MetalStorage>),
}

impl<'a> Input<'a> {
    fn operand(self, x: &Layout) -> Result<Operand<'a>> {
        match self {
            Input::Dense((storage, l)) => Operand::contiguous(storage, l),
            Input::Spread((storage, l)) => Operand::broadcast(storage, &l.broadcast_as(x.shape())?),
        }
    }
}

/// Dense operands.
pub(crate) fn dense<'a>(
    args: impl IntoIterator<Item = Arg<'a, MetalStorage>>,
) -> Result<Vec<Operand<'a>>> {
    let args = args.into_iter();
    args.map(|(x, l)| Operand::contiguous(x, l)).collect()
}

/// Applies a kernel, four elements of x to a thread, to x and the other inputs. It has `outputs` outputs of x's shape, one
/// behind the other; `params` makes its parameters of the operands.
pub(crate) fn map<P: Copy + 'static>(
    source: &'static Source,
    kernel: &str,
    (x, l): Arg<MetalStorage>,
    rest: &[Input<'_>],
    outputs: usize,
    params: impl FnOnce(&[&Operand<'_>]) -> P,
) -> Result<MetalStorage> {
    let n = l.shape().elem_count();
    build(x, outputs * n, |out| {
        let xs = Operand::contiguous(x, l)?;
        let rest = operands(rest, l)?;
        let launch = Launch::new(x.device(), source, kernel)?.input(&xs);
        let params = params(&all(&xs, &rest));
        let launch = rest.iter().fold(launch, Launch::input).output(out);
        launch.params(&params).run(grid::elementwise(n, 4))
    })
}

/// As [`map`] to one output, in x's own memory.
pub(crate) fn map_in_place<P: Copy + 'static>(
    source: &'static Source,
    kernel: &str,
    (x, l): ArgMut<MetalStorage>,
    rest: &[Input<'_>],
    params: impl FnOnce(&[&Operand<'_>]) -> P,
) -> Result<()> {
    update((x, l), |x, xs| {
        let rest = operands(rest, l)?;
        let launch = Launch::new(x.device(), source, kernel)?.inout(xs);
        let params = params(&all(xs, &rest));
        let launch = rest.iter().fold(launch, Launch::input);
        launch.params(&params).run(grid::elementwise(xs.count(), 4))
    })
}

fn operands<'a>(inputs: &[Input<'a>], x: &Layout) -> Result<Vec<Operand<'a>>> {
    inputs.iter().map(|input| input.operand(x)).collect()
}

fn all<'a, 'b>(x: &'a Operand<'b>, rest: &'a [Operand<'b>]) -> Vec<&'a Operand<'b>> {
    [x].into_iter().chain(rest).collect()
}
