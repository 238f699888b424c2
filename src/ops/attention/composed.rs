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

#[cfg(test)]
mod tests {
    use super::super::{cpu, AttentionConfig};
    use super::*;
    use candle_core::{CpuStorage, Device};

    fn random(dims: &[usize], seed: u64, dtype: DType) -> Result<Tensor> {
        let value = |i: u64| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0;
        let count = dims.iter().product::<usize>() as u64;
        let values: Vec<f32> = (0..count).map(value).collect();
        Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)
    }

    fn assert_close(
        got: &(CpuStorage, Shape),
        want: &(CpuStorage, Shape),
        within: f32,
    ) -> Result<()> {
        assert_eq!(got.1, want.1);
        let numbers = |(storage, shape): &(CpuStorage, Shape)| -> Result<Vec<f32>> {
            let storage = Storage::Cpu(storage.clone());
            let t = Tensor::from_storage(storage, shape.clone(), BackpropOp::none(), false);
            t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
        };
        for (got, want) in numbers(got)?.into_iter().zip(numbers(want)?) {
            let near = (got - want).abs() <= within * (1.0 + want.abs());
            assert!(near || got == want, "got {got}, expected {want}");
        }
        Ok(())
    }

    /// The composition gives what the kernels of the CPU give, which the grid compares with the reference.
    #[test]
    fn the_composition_agrees_with_the_kernels() -> Result<()> {
        for (dtype, within) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
            let q = random(&[2, 4, 5, 8], 1, dtype)?;
            let k = random(&[2, 7, 2, 8], 2, dtype)?.transpose(1, 2)?;
            let v = random(&[2, 2, 7, 6], 3, dtype)?;
            let config = AttentionConfig {
                causal: true,
                mask: Some(random(&[5, 7], 4, dtype)?),
                sinks: Some(random(&[4], 5, dtype)?),
                key_lengths: Some(Tensor::new(&[7u32, 0], &Device::Cpu)?),
                ..Default::default()
            };
            let op = Attend::new(&config, true);
            let inputs = super::super::roles([&q, &k, &v], &config).list();
            let (got, want) = op::with_storages(NAME, &inputs, |args: Args<CpuStorage>| {
                Ok((forward(&op, args, Storage::Cpu)?, cpu::forward(&op, args)?))
            })?;
            for (got, want) in got.iter().zip(&want) {
                assert_close(got, want, within)?;
            }
            let tensor = |(storage, shape): &(CpuStorage, Shape)| {
                let storage = Storage::Cpu(storage.clone());
                Tensor::from_storage(storage, shape.clone(), BackpropOp::none(), false)
            };
            let outputs: Vec<Tensor> = want[..2].iter().map(tensor).collect();
            let grad = random(&[2, 4, 5, 6], 6, dtype)?;
            let bwd = AttendBwd {
                op,
                wanted: vec![true, true, true, true, true, false],
            };
            let first = [&outputs[0], &outputs[1], &grad];
            let args = [&first[..], &inputs].concat();
            let (got, want) = op::with_storages(NAME, &args, |args: Args<CpuStorage>| {
                Ok((
                    backward(&bwd, args, Storage::Cpu)?,
                    cpu::backward(&bwd, args)?,
                ))
            })?;
            assert_eq!((got.len(), want.len()), (5, 5));
            for (got, want) in got.iter().zip(&want) {
                assert_close(got, want, 2.0 * within)?;
            }
        }
        Ok(())
    }
}
