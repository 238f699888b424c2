//! The gradients of norms with an optional weight and bias, all of them from one op.

use crate::check;
use crate::layout::as_vector;
pub(crate) use crate::op::Arg;
use crate::op::{self, Args, Op, OpResult, Spec};
use candle_core::shape::Dim;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Result, Shape, Tensor};
use std::sync::{Mutex, PoisonError};

/// Weight and bias, where there are any.
pub type Vectors<'a, S> = [Option<Arg<'a, S>>; 2];

/// The arguments that follow x.
pub fn vectors<'a, S>(args: &[Arg<'a, S>]) -> Vectors<'a, S> {
    [args.get(1).copied(), args.get(2).copied()]
}

/// The arguments of a norm of `x` with vectors over dim `dim`. A bias without a weight gets a weight of ones.
pub fn with_args<R>(
    x: &Tensor,
    dim: impl Dim,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    f: impl FnOnce(&[&Tensor]) -> Result<R>,
) -> Result<R> {
    // A rank that the norm will refuse has no such dim.
    let len = dim
        .to_index(x.shape(), "norm")
        .map_or(0, |dim| x.dims()[dim]);
    let vector = |v: Option<&Tensor>| v.map(|v| as_vector(v, len)).transpose();
    let (weight, bias) = (vector(weight)?, vector(bias)?);
    let (weight, bias) = (weight.as_ref(), bias.as_ref());
    match (weight, bias) {
        (None, None) => f(&[x]),
        (Some(weight), None) => f(&[x, weight]),
        (Some(weight), Some(bias)) => f(&[x, weight, bias]),
        (None, Some(bias)) => f(&[x, &ones(x, bias)?, bias]),
    }
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

/// A norm of `(x[, weight[, bias]])` whose kernels compute all gradients together.
///
/// `*_bwd` returns `[dx, dweight, dbias]` one after the other in a flat tensor, of the vectors' gradients only the first
/// `vectors`: one op reads x and the gradient once for all of them.
pub trait AffineNorm: Op + Copy {
    /// The name of the op that computes the gradients.
    const BWD_NAME: &'static str;

    fn cpu_bwd(
        &self,
        x: Arg<CpuStorage>,
        grad_out: Arg<CpuStorage>,
        weight: Option<Arg<CpuStorage>>,
        vectors: usize,
    ) -> Result<(CpuStorage, Shape)>;

    #[cfg(feature = "metal")]
    fn metal_bwd(
        &self,
        x: Arg<MetalStorage>,
        grad_out: Arg<MetalStorage>,
        weight: Option<Arg<MetalStorage>>,
        vectors: usize,
    ) -> Result<(MetalStorage, Shape)>;
}

/// The gradients of the inputs `(x[, weight[, bias]])` that track them.
pub fn gradients<N: AffineNorm>(
    norm: N,
    inputs: &[&Tensor],
    grad_out: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let wanted: Vec<bool> = inputs.iter().map(|input| input.track_op()).collect();
    gradients_of(norm, inputs, &wanted, grad_out)
}

/// The gradients of the `wanted` inputs.
pub fn gradients_of<N: AffineNorm>(
    norm: N,
    inputs: &[&Tensor],
    wanted: &[bool],
    grad_out: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let x = inputs[0];
    let vectors = wanted.iter().rposition(|&wanted| wanted).unwrap_or(0);
    let op = AffineBwd { norm, vectors };
    let packed = match inputs.get(1) {
        None => op::apply(N::BWD_NAME, op, &[x, grad_out])?,
        Some(weight) => op::apply(N::BWD_NAME, op, &[x, grad_out, weight])?,
    };
    let mut start = 0;
    let mut part = |(input, &wanted): (&&Tensor, &bool)| {
        let len = input.elem_count();
        start += len;
        let grad = || packed.narrow(0, start - len, len)?.reshape(input.shape());
        wanted.then(grad).transpose()
    };
    inputs.iter().zip(wanted).map(&mut part).collect()
}

/// `(x, grad_out[, weight])` → the gradients in one flat tensor, see [`AffineNorm`].
#[derive(Clone, Copy, Debug)]
struct AffineBwd<N> {
    norm: N,
    /// How many of dweight and dbias are wanted.
    vectors: usize,
}

impl<N: AffineNorm> Op for AffineBwd<N> {
    const NAME: &'static str = N::BWD_NAME;
    const ARGS: &'static [&'static str] = &["x", "grad_out", "weight"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, args)?;
        check::same_shape(name, args[0], "grad_out", args[1])?;
        match args.get(2) {
            None => self.norm.check(name, &args[..1]),
            Some(weight) => self.norm.check(name, &[args[0], *weight]),
        }
    }
    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage> {
        let weight = args.get(2).copied();
        self.norm.cpu_bwd(args[0], args[1], weight, self.vectors)
    }
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        let weight = args.get(2).copied();
        self.norm.metal_bwd(args[0], args[1], weight, self.vectors)
    }
}
