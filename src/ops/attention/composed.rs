//! Attention composed of Candle's kernels in f32.

use super::backward::{AttendBwd, FIRST};
use super::{reference, Attend, NAME};
use crate::op::{self, Arg, Args, KernelStorage, OpResults};
use candle_core::backend::BackendDevice;
use candle_core::op::BackpropOp;
use candle_core::{DType, Result, Shape, Storage, Tensor, Var};

/// A tensor's storage made of a device's own.
pub type Wrap<S> = fn(S) -> Storage;

pub fn forward<S: KernelStorage>(op: &Attend, args: Args<S>, wrap: Wrap<S>) -> OpResults<S>
where
    S::Device: BackendDevice<Storage = S>,
{
    let tensors = tensors(args, wrap)?;
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    let (q, k, v) = (tensors[0], tensors[1], tensors[2]);
    let (y, sums) = reference::with_log_sums(q, k, v, &op.config(&tensors))?;
    let mut outputs = vec![stored(&y.to_dtype(args[0].0.dtype())?)?, stored(&sums)?];
    if op.keeps_wide && args[0].0.dtype() != DType::F32 {
        outputs.push(stored(&y)?);
    }
    Ok(outputs)
}

pub fn backward<S: KernelStorage>(bwd: &AttendBwd, args: Args<S>, wrap: Wrap<S>) -> OpResults<S>
where
    S::Device: BackendDevice<Storage = S>,
{
    let tensors = tensors(args, wrap)?;
    let grad = &tensors[2];
    let var = |(t, &wanted): (&Tensor, &bool)| match wanted {
        true => Ok(Var::from_tensor(t)?.into_inner()),
        false => Ok(t.clone()),
    };
    let inputs = tensors[FIRST..].iter().zip(&bwd.wanted).map(var);
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let refs: Vec<&Tensor> = inputs.iter().collect();
    let y = reference(refs[0], refs[1], refs[2], &bwd.op.config(&refs))?;
    let grads = (y * grad)?.sum_all()?.backward()?;
    let mut outputs = Vec::new();
    for ((input, arg), &wanted) in inputs.iter().zip(&args[FIRST..]).zip(&bwd.wanted) {
        if wanted {
            let grad = match grads.get(input) {
                Some(grad) => grad.clone(),
                None => input.zeros_like()?,
            };
            outputs.push(stored(&grad.to_dtype(arg.0.dtype())?)?);
        }
    }
    Ok(outputs)
}

/// Copies of the arguments, of floats in f32.
fn tensors<S: KernelStorage>(args: Args<S>, wrap: Wrap<S>) -> Result<Vec<Tensor>>
where
    S::Device: BackendDevice<Storage = S>,
{
    args.iter().map(|arg| tensor(*arg, wrap)).collect()
}

fn tensor<S: KernelStorage>((storage, layout): Arg<S>, wrap: Wrap<S>) -> Result<Tensor>
where
    S::Device: BackendDevice<Storage = S>,
{
    let (device, shape) = (storage.device(), layout.shape());
    let mut copy = device.zeros_impl(shape, storage.dtype())?;
    storage.copy_strided_src(&mut copy, 0, layout)?;
    let copy = Tensor::from_storage(wrap(copy), shape.clone(), BackpropOp::none(), false);
    match copy.dtype() {
        DType::F16 | DType::BF16 => copy.to_dtype(DType::F32),
        _ => Ok(copy),
    }
}

fn stored<S: KernelStorage>(t: &Tensor) -> Result<(S, Shape)> {
    let t = t.force_contiguous()?;
    let layout = t.layout().clone();
    op::with_storages(NAME, &[&t], |args: Args<S>| {
        Ok((args[0].0.try_clone(&layout)?, t.shape().clone()))
    })
}
