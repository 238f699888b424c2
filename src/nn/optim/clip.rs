//! Gradients brought within a bound before an optimiser's step.

use crate::check;
use crate::op::storage_address;
use crate::ops::grads::{scale_inplace, sums_of_squares};
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use std::collections::HashMap;

/// Scales the gradients of `vars` so that the norm over all of them together is at most `max_norm`, and returns the norm from
/// before. Variables without a gradient count as zeros. As in PyTorch's `clip_grad_norm_`, the factor is
/// max_norm / (norm + 1e-6), and an infinite `max_norm` only measures.
///
/// Squares are added up in f32, of f16 and bf16 gradients too. A norm that is not finite is an error which names the first
/// variable with such a gradient, and leaves all gradients as they are; then skip the step.
///
/// Gradients are scaled in their own memory where no other gradient and none of `vars` lies in it: a clone of a
/// gradient's tensor from before the call sees the scaled values, and on Metal so does what Candle's `Tensor::copy` made of it, which
/// shares its buffer. A gradient that was put into the store by hand must not lie in a variable outside of `vars`: that variable would
/// be scaled.
///
/// ```
/// use candle_core::{Device, Result, Var};
/// use candle_fused::nn::clip_grad_norm;
/// # fn main() -> Result<()> {
/// let w = Var::new(&[3f32, 4.], &Device::Cpu)?;
/// let mut grads = (w.sqr()?.sum_all()? / 2.)?.backward()?;
/// assert_eq!(clip_grad_norm(&mut grads, &[w.clone()], 1.0)?, 5.0);
/// let clipped = grads.get(&w).unwrap().to_vec1::<f32>()?;
/// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
pub fn clip_grad_norm(grads: &mut GradStore, vars: &[Var], max_norm: f64) -> Result<f64> {
    let name = "clip_grad_norm";
    let message = format_args!("got max_norm = {max_norm}, expected 0 or more");
    check::ensure(max_norm >= 0.0, name, message)?;
    let found = found(grads, vars);
    let tensors: Vec<&Tensor> = found.iter().map(|(_, grad)| grad).collect();
    let sums = sums_of_squares(name, &tensors)?;
    let norm = sums.iter().sum::<f64>().sqrt();
    if let Some(bad) = sums.iter().position(|sum| !sum.is_finite()) {
        let (i, shape) = (found[bad].0, vars[found[bad].0].shape());
        let message = format_args!(
            "got a gradient whose norm is {} for variable {i} of shape {shape:?}, expected finite ones; no gradient was changed",
            sums[bad].sqrt()
        );
        return Err(check::error(name, message));
    }
    let factor = max_norm / (norm + 1e-6);
    if factor >= 1.0 {
        return Ok(norm);
    }
    let mut users: HashMap<usize, usize> = HashMap::new();
    let stored = grads.get_ids().filter_map(|&id| grads.get_id(id));
    let all = vars.iter().map(Var::as_tensor).chain(stored);
    for tensor in all {
        *users.entry(storage_address(tensor)).or_default() += 1;
    }
    for (i, grad) in found {
        // Candle's cast of nothing panics on Metal.
        if grad.elem_count() == 0 {
            continue;
        }
        let is_alone = users.get(&storage_address(&grad)) == Some(&1);
        let own = is_alone && grad.is_contiguous() && !grad.track_op() && check::has_kernel(&grad);
        match own {
            true => scale_inplace(name, &grad, factor)?,
            false => {
                let grad = grad.detach();
                let wide = check::accumulator_dtype(grad.dtype());
                let scaled = (grad.to_dtype(wide)? * factor)?.to_dtype(grad.dtype())?;
                grads.insert(&vars[i], scaled);
            }
        }
    }
    Ok(norm)
}

/// Brings each element of the gradients of `vars` within −bound and bound. A NaN is an error, and leaves all gradients as they are.
///
/// ```
/// use candle_core::{Device, Result, Var};
/// use candle_fused::nn::clip_grad_value;
/// # fn main() -> Result<()> {
/// let w = Var::new(&[3f32, -0.25], &Device::Cpu)?;
/// let mut grads = w.sqr()?.sum_all()?.backward()?;
/// clip_grad_value(&mut grads, &[w.clone()], 1.0)?;
/// assert_eq!(grads.get(&w).unwrap().to_vec1::<f32>()?, [1.0, -0.5]);
/// # Ok(())
/// # }
/// ```
pub fn clip_grad_value(grads: &mut GradStore, vars: &[Var], bound: f64) -> Result<()> {
    let name = "clip_grad_value";
    let message = format_args!("got bound = {bound}, expected 0 or more");
    check::ensure(bound >= 0.0, name, message)?;
    let found = found(grads, vars);
    let mut clipped = Vec::with_capacity(found.len());
    for (i, grad) in found {
        if grad.elem_count() == 0 {
            continue;
        }
        let grad = grad.detach();
        // A comparison: a clamp may turn a NaN into either bound.
        let nans = grad.ne(&grad)?.to_dtype(DType::F32)?.sum_all()?;
        let message = format_args!(
            "got a NaN in the gradient of variable {i} of shape {:?}, expected none; no gradient was changed",
            vars[i].shape()
        );
        check::ensure(nans.to_scalar::<f32>()? == 0.0, name, message)?;
        clipped.push((i, grad.clamp(-bound, bound)?));
    }
    for (i, grad) in clipped {
        grads.insert(&vars[i], grad);
    }
    Ok(())
}

/// The variables that have gradients, by number. A variable that is listed twice counts once.
fn found(grads: &GradStore, vars: &[Var]) -> Vec<(usize, Tensor)> {
    let mut seen = HashMap::new();
    let numbered = vars.iter().enumerate();
    // An optimiser skips variables of integers, whatever their gradients.
    let floats = numbered.filter(|(_, var)| var.dtype().is_float());
    let once = floats.filter(|(_, var)| seen.insert(var.id(), ()).is_none());
    let found = once.filter_map(|(i, var)| Some((i, grads.get(var)?.clone())));
    found.collect()
}
