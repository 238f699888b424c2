//! What norms with an optional weight and bias share: their arguments, and their gradients, all of them from one op.

use super::widen::widened;
use crate::check;
use crate::layout::as_vector;
use crate::op::{self, Grads, InplaceOp, Op, Spec};
use candle_core::{Result, Tensor};
use std::sync::{Mutex, PoisonError};

/// A weight and a bias, as far as there are any.
pub type WeightAndBias<'a> = [Option<&'a Tensor>; 2];

/// Those that follow each other in the arguments of an op.
pub fn weight_and_bias<'a>(args: &[&'a Tensor]) -> WeightAndBias<'a> {
    [0, 1].map(|i| args.get(i).copied())
}

/// The arguments of a norm of `x` with vectors of `len` elements. A bias without a weight gets a weight of ones.
#[inline]
pub fn with_args<R>(
    x: &Tensor,
    len: usize,
    [weight, bias]: WeightAndBias,
    f: impl FnOnce(&[&Tensor]) -> Result<R>,
) -> Result<R> {
    let is_vector = |v: Option<&Tensor>| v.is_none_or(|v| v.dims() == [len]);
    let as_they_are = is_vector(weight) && is_vector(bias) && (weight.is_some() || bias.is_none());
    let made = match as_they_are {
        true => None,
        false => Some(vectors(x, len, [weight, bias])?),
    };
    let [weight, bias] = match &made {
        None => [weight, bias],
        Some(made) => made.each_ref().map(Option::as_ref),
    };
    let args = [x, weight.unwrap_or(x), bias.unwrap_or(x)];
    f(&args[..1 + usize::from(weight.is_some()) + usize::from(bias.is_some())])
}

/// The norm of `x` with vectors of `len` elements, on behalf of the function `name`.
#[inline]
pub fn apply(
    name: &'static str,
    norm: impl Op,
    x: &Tensor,
    len: usize,
    vectors: WeightAndBias,
) -> Result<Tensor> {
    with_args(x, len, vectors, |args| op::apply(name, norm, args))
}

/// As [`apply`], in x's own memory.
#[inline]
pub fn apply_inplace(
    name: &'static str,
    norm: impl InplaceOp,
    x: &Tensor,
    len: usize,
    vectors: WeightAndBias,
) -> Result<()> {
    with_args(x, len, vectors, |args| {
        op::apply_inplace(name, norm, args[0], &args[1..])
    })
}

/// Weight and bias as vectors of `len` elements; a weight wherever there is a bias.
#[cold]
fn vectors(x: &Tensor, len: usize, [weight, bias]: WeightAndBias) -> Result<[Option<Tensor>; 2]> {
    let vector = |v: Option<&Tensor>| v.map(|v| as_vector(v, len)).transpose();
    let (weight, bias) = (vector(weight)?, vector(bias)?);
    Ok(match (weight, bias) {
        (None, Some(bias)) => [Some(ones(x, &bias)?), Some(bias)],
        (weight, bias) => [weight, bias],
    })
}

/// The vectors, a weight and a bias as far as there are any, have an element for each of the `len` of x's `of_what`.
#[inline]
pub fn check_vectors(name: &str, vectors: &[Spec<'_>], len: usize, of_what: &str) -> Result<()> {
    // The bias first: a weight of ones may have been made for it.
    for (i, called) in [(1, "bias"), (0, "weight")] {
        if let Some(&vector) = vectors.get(i) {
            check::vector(name, called, vector, len, of_what)?;
        }
    }
    Ok(())
}

/// The channels of `[batch, channels, ..]`; 0 for a rank that norms of channels refuse.
pub fn channels(x: &Tensor) -> usize {
    x.dims().get(1).copied().unwrap_or(0)
}

/// `y · weight + bias` by stock ops, in y's dtype, where each channel of y has its own.
pub fn affine_by_channel(mut y: Tensor, [weight, bias]: WeightAndBias) -> Result<Tensor> {
    if let Some(weight) = weight {
        y = y.broadcast_mul(&by_channel(&widened(weight)?, y.rank())?)?;
    }
    if let Some(bias) = bias {
        y = y.broadcast_add(&by_channel(&widened(bias)?, y.rank())?)?;
    }
    Ok(y)
}

/// `[channels]` as `[1, channels, 1, ..]`
pub fn by_channel(vector: &Tensor, rank: usize) -> Result<Tensor> {
    let mut dims = vec![1; rank];
    dims[1] = vector.elem_count();
    vector.reshape(dims)
}

/// A weight of ones for `x`, as long as `bias`. The last one is kept: a layer asks for the same at every step.
pub fn ones(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    // Candle can't fill an empty tensor on Metal.
    if bias.elem_count() == 0 {
        return Ok(bias.detach());
    }
    static LAST: Mutex<Option<Tensor>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ones) = &*last {
        let alike = ones.dims() == bias.dims() && ones.dtype() == x.dtype();
        if alike && ones.device().same_device(x.device()) {
            return Ok(ones.clone());
        }
    }
    let ones = Tensor::ones(bias.shape(), x.dtype(), x.device())?;
    Ok(last.insert(ones).clone())
}

/// The gradients of the inputs `(x[, weight[, bias]])` that track them.
pub fn gradients<N>(norm: N, inputs: &[&Tensor], grad_out: &Tensor) -> Grads
where
    AffineBwd<N>: Op,
{
    let wanted: Vec<bool> = inputs.iter().map(|input| input.track_op()).collect();
    gradients_of(norm, inputs, &wanted, grad_out)
}

/// The gradients of the `wanted` inputs.
pub fn gradients_of<N>(norm: N, inputs: &[&Tensor], wanted: &[bool], grad_out: &Tensor) -> Grads
where
    AffineBwd<N>: Op,
{
    let vectors = wanted.iter().rposition(|&wanted| wanted).unwrap_or(0);
    let op = AffineBwd { norm, vectors };
    let args: Vec<&Tensor> = [inputs[0], grad_out]
        .into_iter()
        .chain(inputs.get(1).copied())
        .collect();
    let packed = op::apply(<AffineBwd<N> as Op>::NAME, op, &args)?;
    let mut start = 0;
    let mut part = |(input, &wanted): (&&Tensor, &bool)| {
        let len = input.elem_count();
        start += len;
        let grad = || packed.narrow(0, start - len, len)?.reshape(input.shape());
        wanted.then(grad).transpose()
    };
    inputs.iter().zip(wanted).map(&mut part).collect()
}

/// The gradients of a norm: `(x, grad_out[, weight])` → `[dx, dweight, dbias]` one after the other in a flat tensor, of the
/// vectors' gradients only the first `vectors`. One op reads x and the gradient once for all of them.
#[derive(Clone, Copy, Debug)]
pub struct AffineBwd<N> {
    pub norm: N,
    /// How many of dweight and dbias are wanted.
    pub vectors: usize,
}

/// Makes the gradients of a norm an [`Op`], under this name: they are the `backward` of the modules `cpu` and `metal`.
macro_rules! affine_bwd {
    ($norm:ty, $name:literal) => {
        impl Op for AffineBwd<$norm> {
            $crate::op::signature!($name(x, grad_out, weight));

            fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
                check::same_shape(name, args[0], "grad_out", args[1])?;
                self.norm.check(name, &[&args[..1], &args[2..]].concat())
            }
            $crate::op::kernels!(self, args => device::backward(self, args));
        }
    };
}
pub(super) use affine_bwd;
