//! The norms of rows on the CPU: `forward` normalises rows, `residual` adds two tensors first, `backward` has the gradients.

mod backward;
mod forward;
mod residual;

pub use backward::{backward, row_grad};
pub use forward::{
    forward, inplace, MeasuredRow, NormByRow, NormRows, Normalise, Vectors, WriteRow,
};
pub use residual::add;

use super::{Kind, RowNorm};
use crate::cpu::element::Element;
use crate::cpu::gather;
use crate::cpu::moments::Divisor;
use crate::op::on_cpu::Arg;
use candle_core::{Layout, Result};
use std::borrow::Cow;
use std::ops::Deref;

impl Kind {
    fn is_centred(self) -> bool {
        matches!(self, Kind::Layer)
    }

    fn divisor(self) -> Divisor {
        match self {
            Kind::Rms | Kind::Layer => Divisor::RootMeanSquare,
            Kind::L2 => Divisor::Euclidean,
        }
    }
}

/// The number of rows, and their length.
#[inline]
fn rows_and_cols(l: &Layout) -> [usize; 2] {
    match l.dims() {
        [] => [1, 1],
        [.., 0] => [0, 0],
        [leading @ .., cols] => [leading.iter().product(), *cols],
    }
}

/// Up to two vectors as contiguous slices. Not a `Vec`: to norm a tiny tensor takes as long as a few allocations.
pub struct Slices<'a, T: Clone> {
    slices: [Cow<'a, [T]>; 2],
    count: usize,
}

impl<'a, T: Clone> Deref for Slices<'a, T> {
    type Target = [Cow<'a, [T]>];
    fn deref(&self) -> &Self::Target {
        &self.slices[..self.count]
    }
}

/// Weight and bias, as far as there are any, as contiguous slices.
#[inline]
pub fn slices<'a, T: Element>(vectors: &[Arg<'a>]) -> Result<Slices<'a, T>> {
    let slice = |i: usize| match vectors.get(i) {
        Some((v, l)) => Ok(gather::contiguous(v.as_slice::<T>()?, l)),
        None => Result::Ok(Cow::Borrowed(&[][..])),
    };
    Ok(Slices {
        slices: [slice(0)?, slice(1)?],
        count: vectors.len(),
    })
}
