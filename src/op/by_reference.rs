//! Ops on a CPU that has no kernels (see [`check::cpu_has_kernels`]): each runs its reference, plain Candle, by whatever route it
//! is called.

use super::any::AnyOp;
use super::storage::contiguous_copy;
use super::{ArgMut, Args, Grads, KernelStorage, OpResult};
use crate::check;
use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, Var};

/// The result of an op whose arguments Candle has locked: they are copied.
pub(crate) fn forward(
    name: &'static str,
    op: &dyn AnyOp,
    args: Args<CpuStorage>,
) -> OpResult<CpuStorage> {
    if let Some((x, _)) = args.iter().find(|(x, _)| x.dtype() == DType::F64) {
        // As with kernels: f64 is for the functions, which call the reference themselves.
        return Err(check::unsupported_dtype(name, x.dtype()));
    }
    let args = args.iter().map(|arg| {
        let (storage, shape) = (
            Storage::Cpu(contiguous_copy(name, *arg)?),
            arg.1.shape().clone(),
        );
        Ok(Tensor::from_storage(
            storage,
            shape,
            BackpropOp::none(),
            false,
        ))
    });
    let args = args.collect::<Result<Vec<_>>>()?;
    let y = op.reference(&args.iter().collect::<Vec<_>>())?;
    let mut result = CpuStorage::F32(Vec::new());
    CpuStorage::read(name, &[&y], &mut |y| {
        result = contiguous_copy(name, y[0])?;
        Ok(())
    })?;
    Ok((result, y.shape().clone()))
}

/// The in-place form: the result is computed beside x, and copied.
pub(crate) fn inplace(
    name: &'static str,
    op: &dyn AnyOp,
    (x, layout): ArgMut<CpuStorage>,
    rest: Args<CpuStorage>,
) -> Result<()> {
    let (y, _) = forward(name, op, &[&[(&*x, layout)], rest].concat())?;
    match (x, y) {
        (CpuStorage::F32(x), CpuStorage::F32(y)) => write(x, layout, &y),
        (CpuStorage::F16(x), CpuStorage::F16(y)) => write(x, layout, &y),
        (CpuStorage::BF16(x), CpuStorage::BF16(y)) => write(x, layout, &y),
        (x, _) => return Err(check::unsupported_dtype(name, x.dtype())),
    }
    Ok(())
}

/// The gradients of an op in a user's own graph, by Candle's backward of the reference.
pub(crate) fn bwd(op: &dyn AnyOp, inputs: &[&Tensor], grad: &Tensor) -> Grads {
    let vars = inputs.iter().map(|x| match x.track_op() {
        true => Ok(Var::from_tensor(x)?.into_inner()),
        false => Ok(x.detach()),
    });
    let vars = vars.collect::<Result<Vec<_>>>()?;
    let y = op.reference(&vars.iter().collect::<Vec<_>>())?;
    let grads = (y * grad.detach())?.sum_all()?.backward()?;
    let of = |(x, var): (&&Tensor, &Tensor)| match (x.track_op(), grads.get(var)) {
        (false, _) => Ok(None),
        (true, Some(grad)) => Ok(Some(grad.clone())),
        (true, None) => x.zeros_like().map(Some),
    };
    inputs.iter().zip(&vars).map(of).collect()
}

/// Writes the elements of y, in order, to the places that the layout has in x.
fn write<T: Copy>(x: &mut [T], layout: &Layout, y: &[T]) {
    for (mut i, &y) in y.iter().enumerate() {
        let mut at = layout.start_offset();
        for (dim, stride) in layout.dims().iter().zip(layout.stride()).rev() {
            at += i % dim * stride;
            i /= dim;
        }
        x[at] = y;
    }
}
