//! The gradients of x and W, whoever asks for them.

#[cfg(feature = "metal")]
use super::metal;
use super::{composed, cpu, Settings, NAME};
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use crate::ops::cross_entropy::{loss_shape, LossReduction};
#[cfg(feature = "metal")]
use crate::ops::{mul_act_inplace, Act};
use candle_core::op::BackpropOp;
#[cfg(feature = "metal")]
use candle_core::Device;
use candle_core::{CpuStorage, DType, Error, Result, Shape, Storage, Tensor, Var};

/// The gradients of x and W in f32, for a gradient of 1 of the loss; without elements where not wanted.
pub type Made = [Storage; 2];

/// The loss and the gradients that are wanted, on behalf of the function `name`.
pub fn with_loss(
    name: &'static str,
    op: &Settings,
    args: &[&Tensor],
    wanted: [bool; 2],
) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
    check::same_device(name, super::Loss::ARGS, args)?;
    if !check::has_kernel(args[0]) {
        op.check(name, &op::specs(args))?;
        return check::on_behalf_of(name, NAME, by_reference(op, args, wanted));
    }
    let made = make(op, args, wanted);
    let (loss, [dx, dw]) = check::on_behalf_of(name, NAME, made)?;
    let shape = loss_shape(op.loss.reduction, args[0].dims());
    let of = |i: usize, made: Storage| match wanted[i] {
        true => finished(made, None, args[i]).map(Some),
        false => Ok(None),
    };
    Ok((tensor(loss, shape), of(0, dx)?, of(1, dw)?))
}

/// The gradients of all inputs `(x, w, target[, weight])` from that of the loss, and perhaps from what was made with it.
pub fn gradients(op: &Settings, made: Option<Made>, inputs: &[Tensor], grad: &Tensor) -> Grads {
    let wanted = [0, 1].map(|i| inputs[i].track_op());
    if op.loss.reduction == LossReduction::None {
        return of_rows(op, wanted, inputs, grad);
    }
    // A graph of gradients would end here in silence.
    if grad.track_op() {
        return Err(Error::BackwardNotSupported { op: NAME });
    }
    let made = match made {
        Some(made) => made,
        None => make(op, &inputs.iter().collect::<Vec<_>>(), wanted)?.1,
    };
    let mut all = vec![None; inputs.len()];
    for (i, made) in made.into_iter().enumerate() {
        if wanted[i] {
            all[i] = Some(finished(made, Some(grad), &inputs[i])?);
        }
    }
    Ok(all)
}

fn tensor(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// The loss and the gradients, of arguments that are checked here: a user may call a CustomOp's backward by hand.
fn make(op: &Settings, args: &[&Tensor], wanted: [bool; 2]) -> Result<(Storage, Made)> {
    match args[0].device() {
        #[cfg(feature = "metal")]
        Device::Metal(_) => {
            let run = |args: op::Args<_>| {
                check_storages(op, args)?;
                metal::run(op, args, None, wanted)
            };
            let (loss, made) = op::with_storages(NAME, args, run)?;
            Ok((metal::storage(loss), made.map(metal::storage)))
        }
        _ => {
            let run = |args: op::Args<_>| {
                check_storages(op, args)?;
                cpu::run(op, args, None, wanted)
            };
            let (loss, made) = op::with_storages(NAME, args, run)?;
            Ok((cpu::storage(loss), made.map(cpu::storage)))
        }
    }
}

fn check_storages<S: op::KernelStorage>(op: &Settings, args: op::Args<S>) -> Result<()> {
    op.check(NAME, &args.iter().map(Spec::from).collect::<Vec<_>>())
}

/// The gradient of `input`, from the one for a gradient of 1 of the loss, whose memory it takes.
fn finished(made: Storage, grad: Option<&Tensor>, input: &Tensor) -> Result<Tensor> {
    let grad = grad.map(|g| g.detach().to_dtype(DType::F32)).transpose()?;
    let (shape, dtype) = (input.shape().clone(), input.dtype());
    match made {
        Storage::Cpu(CpuStorage::F32(values)) => {
            let grad = grad.map_or(Ok(1.0), |g| g.to_scalar::<f32>())?;
            let storage = cpu::finished(values, grad, dtype)?;
            Ok(tensor(Storage::Cpu(storage), shape))
        }
        #[cfg(feature = "metal")]
        made @ Storage::Metal(_) => {
            let made = tensor(made, shape);
            if let Some(grad) = grad {
                mul_act_inplace(&made, &grad, Act::Identity)?;
            }
            made.to_dtype(dtype)
        }
        _ => Err(check::error(NAME, "gradients of another device or dtype")),
    }
}

/// On a device or of a dtype without a kernel.
fn by_reference(
    op: &Settings,
    args: &[&Tensor],
    wanted: [bool; 2],
) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
    let var = |i: usize| match wanted[i] {
        true => Ok(Var::from_tensor(&args[i].detach())?.into_inner()),
        false => Ok::<_, Error>(args[i].clone()),
    };
    let (x, w) = (var(0)?, var(1)?);
    let loss = composed(op, &[&[&x, &w], &args[2..]].concat())?;
    if !wanted.contains(&true) {
        return Ok((loss, None, None));
    }
    let grads = loss.backward()?;
    let of = |i: usize, t: &Tensor| match (wanted[i], grads.get(t)) {
        (false, _) => Ok(None),
        (true, Some(grad)) => Ok(Some(grad.clone())),
        (true, None) => t.zeros_like().map(Some),
    };
    Ok((loss.detach(), of(0, &x)?, of(1, &w)?))
}

/// The gradients of losses that were not reduced.
fn of_rows(op: &Settings, wanted: [bool; 2], inputs: &[Tensor], grad: &Tensor) -> Grads {
    let gradient = Gradient { op: *op, wanted };
    let grad = grad.flatten_all()?;
    let args: Vec<&Tensor> = [&grad].into_iter().chain(inputs).collect();
    let mut made = op::apply_multi(NAME, gradient, &args)?.into_iter();
    let wanted = wanted.map(|wanted| if wanted { made.next() } else { None });
    let mut all = wanted.to_vec();
    all.resize(inputs.len(), None);
    Ok(all)
}

/// `(grad_out, x, w, target[, weight])` → the gradients of x and w that are wanted, for losses of rows.
struct Gradient {
    op: Settings,
    wanted: [bool; 2],
}

impl MultiOp for Gradient {
    const ARGS: &'static [&'static str] = &["grad_out", "x", "w", "target", "weight"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check(name, &args[1..])?;
        let (x, grad) = (args[1], args[0]);
        check::same_dtype(name, x.dtype, "grad_out", grad.dtype)?;
        let rows = x.dims()[..x.rank() - 1].iter().product();
        check::has_shape(name, "grad_out", grad.layout, &[rows])
    }
    kernels!(many: self, args => {
        let (_, grads) = device::run(&self.op, &args[1..], Some(args[0]), self.wanted)?;
        let grads = grads.into_iter().zip([args[1].1, args[2].1]).zip(self.wanted);
        let grads = grads.filter(|(_, wanted)| *wanted);
        Ok(grads.map(|((grad, layout), _)| (grad, layout.shape().clone())).collect())
    });
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
        Err(check::error(NAME, "no kernel for this device or dtype"))
    }
}
