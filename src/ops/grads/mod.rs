//! What is done with gradients between a backward pass and an optimiser's step: sums of squares for a norm over all of them,
//! scaling in place, and adding them up in f32.
//!
//! ```text
//! sum_squares([g₁, g₂, …]) = Σᵢ Σ gᵢ²          scale_inplace: g ← c·g          add_inplace: sum ← sum + g
//! ```
//!
//! The functions serve `nn::optim` and export nothing.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use crate::check;
use crate::op::{self, kernels, overwrite, signature, with_storages, InplaceOp, Op, OpResult};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, DType, Result, Tensor};

const NAME: &str = "grads";

/// The sum of the squares of each gradient's elements. f16, bf16 and f32 are added up in f32 by short parts, and the parts in f64. On
/// Metal one wait serves all gradients of a device.
pub(crate) fn sums_of_squares(name: &'static str, grads: &[&Tensor]) -> Result<Vec<f64>> {
    #[cfg(feature = "metal")]
    let mut parts: Vec<(usize, Tensor)> = Vec::new();
    let mut sums = vec![0f64; grads.len()];
    for (i, grad) in grads.iter().enumerate() {
        check::is_float(name, *grad)?;
        let grad = grad.detach();
        match grad.device() {
            _ if grad.elem_count() == 0 => {}
            _ if !check::has_kernel(&grad) => sums[i] = reference_sum_squares(&grad)?,
            #[cfg(feature = "metal")]
            candle_core::Device::Metal(_) => {
                let partial = op::apply_kernel(name, PartialSums, &[&grad])?;
                parts.push((i, partial));
            }
            _ => {
                sums[i] = with_storages(name, &[&grad], |args: op::Args<CpuStorage>| {
                    cpu::sum_squares(args[0])
                })?
            }
        }
    }
    #[cfg(feature = "metal")]
    for (i, partial) in parts {
        sums[i] = partial.to_vec1::<f32>()?.into_iter().map(f64::from).sum();
    }
    Ok(sums)
}

/// In plain Candle.
pub(crate) fn reference_sum_squares(grad: &Tensor) -> Result<f64> {
    let grad = grad.to_dtype(DType::F64)?;
    grad.sqr()?.sum_all()?.to_scalar::<f64>()
}

/// Multiplies the tensor's own memory by a factor, in f32.
pub(crate) fn scale_inplace(name: &'static str, grad: &Tensor, factor: f64) -> Result<()> {
    op::apply_inplace(name, Scale { factor }, grad, &[])
}

/// Adds a gradient of any float dtype to a sum in f32, in the sum's own memory. Where there is no kernel, the sum is returned
/// as a new tensor.
pub(crate) fn add_inplace(
    name: &'static str,
    sum: &Tensor,
    grad: &Tensor,
) -> Result<Option<Tensor>> {
    let grad = grad.detach();
    if !check::has_kernel(sum) || !check::is_served(&grad) {
        return Ok(Some((sum + grad.to_dtype(sum.dtype())?)?));
    }
    if sum.elem_count() == 0 {
        return Ok(None);
    }
    match sum.device() {
        #[cfg(feature = "metal")]
        candle_core::Device::Metal(_) => overwrite(name, &[sum], &grad, &mut |targets, grad| {
            metal::add((&mut *targets[0].0, targets[0].1), grad)
        })?,
        _ => overwrite(name, &[sum], &grad, &mut |targets, grad| {
            cpu::add((&mut *targets[0].0, targets[0].1), grad)
        })?,
    }
    Ok(None)
}

/// g ← c·g
#[derive(Clone, Copy)]
struct Scale {
    factor: f64,
}

impl Op for Scale {
    signature!(NAME(x));

    fn cpu(&self, _: op::Args<CpuStorage>) -> OpResult<CpuStorage> {
        Err(check::error(NAME, "gradients are scaled in place"))
    }
    #[cfg(feature = "metal")]
    fn metal(&self, _: op::Args<MetalStorage>) -> OpResult<MetalStorage> {
        Err(check::error(NAME, "gradients are scaled in place"))
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        args[0].affine(self.factor, 0.0)
    }
}

impl InplaceOp for Scale {
    kernels!(in place: self, x, _ => device::scale(self.factor as f32, x));
}

/// Sums of squares of parts, to be added up.
#[cfg(feature = "metal")]
struct PartialSums;

#[cfg(feature = "metal")]
impl Op for PartialSums {
    signature!(NAME(x));

    fn cpu(&self, _: op::Args<CpuStorage>) -> OpResult<CpuStorage> {
        Err(check::error(
            NAME,
            "got a tensor on the CPU, expected Metal",
        ))
    }
    fn metal(&self, args: op::Args<MetalStorage>) -> OpResult<MetalStorage> {
        metal::partial_sums(args[0])
    }
}
