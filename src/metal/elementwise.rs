//! Launches of kernels that compute each element of their outputs from the elements at the same place of their inputs.

use super::sources::Source;
use super::{aligned4, build, grid, update, Launch, Operand};
use crate::op::on_metal::{Arg, ArgMut};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result};
use candle_metal_kernels::metal::Buffer;

/// How a kernel reads an input.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// It has x's shape, and every element is in its place.
    Dense(Arg<'a>),
    /// It broadcasts to x's shape and is read by a [`Spread`](super::Spread).
    Spread(Arg<'a>),
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
pub(crate) fn dense<'a>(args: impl IntoIterator<Item = Arg<'a>>) -> Result<Vec<Operand<'a>>> {
    let args = args.into_iter();
    args.map(|(x, l)| Operand::contiguous(x, l)).collect()
}

/// The parameters of an elementwise kernel: the number of elements, how the inputs behind x are spread (nothing, if none is),
/// what else the op needs, and whether four elements may be read at a time.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Params<S, P> {
    pub(crate) n: u64,
    pub(crate) spread: S,
    pub(crate) op: P,
    pub(crate) aligned: u32,
}

/// A kernel that takes four elements of x to a thread.
pub(crate) struct Elementwise<S, P> {
    pub(crate) source: &'static Source,
    pub(crate) kernel: String,
    /// [`Params::spread`] from the operands behind x.
    pub(crate) spread: fn(&[Operand<'_>]) -> S,
    /// [`Params::op`]
    pub(crate) op: P,
}

impl<S: Copy + 'static, P: Copy + 'static> Elementwise<S, P> {
    /// Applies the kernel to x and the other inputs. It has `outputs` outputs of x's shape, one behind the other.
    pub(crate) fn map(
        &self,
        (x, l): Arg,
        rest: &[Input<'_>],
        outputs: usize,
    ) -> Result<MetalStorage> {
        build(x, outputs * l.shape().elem_count(), |out| {
            let xs = Operand::contiguous(x, l)?;
            let launch = Launch::new(x.device(), self.source, &self.kernel)?;
            self.run(launch.input(&xs), (&xs, l), rest, Some(out))
        })
    }

    /// As [`Elementwise::map`] to one output, in x's own memory.
    pub(crate) fn map_in_place(&self, (x, l): ArgMut, rest: &[Input<'_>]) -> Result<()> {
        update((x, l), |x, xs| {
            let launch = Launch::new(x.device(), self.source, &self.kernel)?;
            self.run(launch.inout(xs), (xs, l), rest, None)
        })
    }

    /// Binds what follows x, and runs.
    fn run(
        &self,
        launch: Launch<'_>,
        (x, l): (&Operand<'_>, &Layout),
        rest: &[Input<'_>],
        out: Option<&Buffer>,
    ) -> Result<()> {
        let rest = rest.iter().map(|input| input.operand(l));
        let rest = rest.collect::<Result<Vec<_>>>()?;
        let params = Params {
            n: x.count() as u64,
            spread: (self.spread)(&rest),
            op: self.op,
            aligned: aligned4(&[x].into_iter().chain(&rest).collect::<Vec<_>>()),
        };
        let launch = rest.iter().fold(launch, Launch::input);
        let launch = out.into_iter().fold(launch, Launch::output);
        launch.params(&params).run(grid::elementwise(x.count(), 4))
    }
}
