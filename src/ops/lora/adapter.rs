//! The arguments of LoRA's ops: an adapter, and the checks that `lora` and `lora_gather` share.

use super::Lora;
use crate::check;
use crate::op::{Op, Spec};
use crate::ops::{dropout, linear};
use candle_core::{Result, Tensor};

/// `scale · (dropout(x)·Aᵀ)·Bᵀ`
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    /// `[rank, in]`
    pub a: &'a Tensor,
    /// `[out, rank]`
    pub b: &'a Tensor,
    pub scale: f32,
    pub dropout: Option<AdapterDropout>,
}

/// The dropout of an adapter's input. The same seed drops the same elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterDropout {
    pub p: f32,
    pub seed: u64,
}

impl AdapterDropout {
    pub(super) fn apply(self, x: &Tensor) -> Result<Tensor> {
        dropout::dropout(x, self.p, self.seed)
    }
}

impl<'a> Adapter<'a> {
    /// Without dropout.
    pub fn new(a: &'a Tensor, b: &'a Tensor, scale: f32) -> Self {
        Adapter {
            a,
            b,
            scale,
            dropout: None,
        }
    }

    pub(super) fn check(&self, name: &'static str, x: &Tensor, out: usize) -> Result<()> {
        let (a, b) = (self.a, self.b);
        check::same_device(name, Lora::ARGS, &[x, a, b])?;
        let args = [x.into(), a.into(), b.into()];
        check::same_floats(name, Lora::ARGS, &args)?;
        check_factors(name, x.dims(), out, args[1].dims(), args[2].dims())?;
        check_dropout(name, self.dropout)
    }
}

/// The shapes of A and B, or of n of each.
pub(in crate::ops) fn check_factors(
    name: &'static str,
    x: &[usize],
    out: usize,
    a: &[usize],
    b: &[usize],
) -> Result<()> {
    let cols = x.last().copied().unwrap_or(1);
    let fit = match (a, b) {
        ([stack_a @ .., rank, a_cols], [stack_b @ .., b_out, b_rank]) => {
            stack_a == stack_b && rank == b_rank && *rank > 0 && (*a_cols, *b_out) == (cols, out)
        }
        _ => false,
    };
    check::ensure(
        fit,
        name,
        format_args!(
            "got a of shape {a:?} and b of {b:?}, expected [.., rank, {cols}] and [.., {out}, rank] with a rank of 1 or more"
        ),
    )
}

/// The rank of A, whose dims are called `expected`, such as `[rank, in]`; x·Aᵀ fits in memory.
pub(in crate::ops) fn check_rank(
    name: &'static str,
    x: Spec<'_>,
    a: &[usize],
    expected: &[&str],
) -> Result<()> {
    if a.len() != expected.len() {
        let dims = expected.join(", ");
        let message = format_args!("got a of shape {a:?}, expected [{dims}]");
        return Err(check::error(name, message));
    }
    linear::check_result(name, "x·Aᵀ", x.layout, a[a.len() - 2])
}

/// The arguments `x, a, b` of an op that holds a frozen weight and bias; A's dims are called `expected`.
pub(in crate::ops) fn check_adapted(
    name: &'static str,
    args: &[Spec<'_>],
    weight: &Tensor,
    bias: Option<&Tensor>,
    expected: &[&str],
) -> Result<()> {
    let (x, a, b) = (args[0], args[1].dims(), args[2].dims());
    for (held, tensor) in [("weight", Some(weight)), ("bias", bias)] {
        let dtype = tensor.map_or(x.dtype, Tensor::dtype);
        check::same_dtype(name, x.dtype, held, dtype)?;
    }
    linear::check_layouts(name, x.layout, weight.layout(), bias.map(Tensor::layout))?;
    check_rank(name, x, a, expected)?;
    check_factors(name, x.dims(), weight.dims()[0], a, b)
}

pub(super) fn check_dropout(name: &'static str, dropout: Option<AdapterDropout>) -> Result<()> {
    let p = dropout.map_or(0.0, |dropout| dropout.p);
    let message = format_args!("got a dropout p = {p}, expected 0 ≤ p < 1");
    check::ensure((0.0..1.0).contains(&p), name, message)
}

pub(in crate::ops) fn with_bias<'a>(
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
) -> Vec<&'a Tensor> {
    [weight].into_iter().chain(bias).collect()
}
