//! The gradients. One op sums up `g · x̂` and `g` for each channel, and in training makes dx of them.

#[cfg(feature = "metal")]
use super::metal;
use super::{apply, check_statistic, cpu, Given, NAME};
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use crate::ops::affine_norm::{self, ones};
use candle_core::{Error, Result, Tensor};

/// The gradients of the inputs `(x, mean, var[, weight[, bias]])` of the norm of inference that track one.
pub fn of_given(norm: Given, inputs: &[&Tensor], g: &Tensor) -> Grads {
    let (x, mean, var, weight) = (inputs[0], inputs[1], inputs[2], inputs.get(3).copied());
    let mut grads = vec![None; inputs.len()];
    if x.track_op() {
        // A norm of g, from which no mean is subtracted and to which no bias is added.
        let no_mean = var.zeros_like()?;
        let args = [g, &no_mean, var].into_iter().chain(weight);
        grads[0] = Some(apply(norm, &args.collect::<Vec<_>>())?);
    }
    if !inputs[1..].iter().any(|input| input.track_op()) {
        return Ok(grads);
    }
    let scale = (var + f64::from(norm.eps))?.sqrt()?.recip()?;
    let moments = Tensor::stack(&[mean, &scale, &mean.zeros_like()?], 0)?;
    let sums = Gradients::apply(&[x, g, &moments])?.sums;
    let (dots, totals) = (sums.get(0)?, sums.get(1)?);
    let slope = match weight {
        Some(weight) => (&scale * weight.to_dtype(scale.dtype())?)?,
        None => scale.clone(),
    };
    let dmean = || (&totals * &slope)?.neg();
    let dvar = || (&dots * (&slope * &scale)?)? * -0.5;
    let vectors = vector_grads(&dots, &totals, inputs[0]);
    let of_rest = op::grads(&inputs[1..], &[&dmean, &dvar, &vectors[0], &vectors[1]])?;
    grads.splice(1.., of_rest);
    Ok(grads)
}

/// The gradients of the inputs `(x[, weight[, bias]])` of the norm of training that track one. `outputs` are y, the mean, the
/// variance and the moments, and `grads` the gradients of the first three.
pub fn of_measured(inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let (x, mean, moments) = (inputs[0], &outputs[1], &outputs[3]);
    let [gy, gmean, gvar] = [0, 1, 2].map(|i| grads[i].clone());
    if gy.is_none() && gmean.is_none() && gvar.is_none() {
        return Ok(vec![None; inputs.len()]);
    }
    let gy = gy.map_or_else(|| x.zeros_like(), Ok)?;
    let weight = match inputs.get(1) {
        Some(&weight) => weight.clone(),
        None => ones(x, mean)?,
    };
    let result = if !x.track_op() {
        Gradients::apply(&[x, &gy, moments])?
    } else if gmean.is_none() && gvar.is_none() {
        Gradients::apply(&[x, &gy, moments, &weight])?
    } else {
        let or_zeros = |g: Option<Tensor>| g.map_or_else(|| mean.zeros_like(), Ok);
        let statistics = Tensor::stack(&[or_zeros(gmean)?, or_zeros(gvar)?], 0)?;
        Gradients::apply(&[x, &gy, moments, &weight, &statistics])?
    };
    let (dots, totals) = (result.sums.get(0)?, result.sums.get(1)?);
    let dx = || Ok(result.dx.clone());
    let vectors = vector_grads(&dots, &totals, x);
    op::grads(&inputs, &[&dx, &vectors[0], &vectors[1]])
}

/// dweight and dbias from the sums, in x's dtype.
fn vector_grads<'a>(
    dots: &'a Tensor,
    totals: &'a Tensor,
    x: &'a Tensor,
) -> [impl Fn() -> Result<Tensor> + 'a; 2] {
    [dots, totals].map(|sums| move || sums.to_dtype(x.dtype()))
}

/// `(x, grad_out, moments[, weight[, grad_statistics]])` → dx of training, and `[2, channels]` with `Σ g · x̂` and `Σ g`. Without
/// a weight dx is not wanted, and empty. The gradients of mean and variance come in as `[2, channels]`, if there are any.
pub struct Gradients;

/// What [`Gradients`] returns.
struct Summed {
    dx: Tensor,
    sums: Tensor,
}

impl Gradients {
    fn apply(args: &[&Tensor]) -> Result<Summed> {
        let (dx, sums) = op::apply_multi_pair("batch_norm_bwd", Self, args)?;
        Ok(Summed { dx, sums })
    }
}

impl MultiOp for Gradients {
    const ARGS: &'static [&'static str] =
        &["x", "grad_out", "moments", "weight", "grad_statistics"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, &args[..2])?;
        check::same_shape(name, args[0], "grad_out", args[1])?;
        check_statistic(name, args[0], "moments", args[2], 3)?;
        if let Some(&weight) = args.get(3) {
            check::same_dtype(name, args[0].dtype, "weight", weight.dtype)?;
            affine_norm::check_vectors(name, &[weight], args[0].dims()[1], "channels")?;
        }
        if let Some(&statistics) = args.get(4) {
            check_statistic(name, args[0], "grad_statistics", statistics, 2)?;
        }
        Ok(())
    }
    kernels!(many: self, args => device::gradients(args));
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
        Err(check::error(NAME, "no kernel for this device or dtype"))
    }
}
