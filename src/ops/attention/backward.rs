//! The gradients of attention, all of them from one op.

use super::geometry::Geometry;
#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, Attend, NAME};
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use candle_core::{DType, Error, Result, Tensor};

/// The gradients of those inputs of [`Attend`] that track one. `outputs` are the result, the log-sum-exps, and the result in
/// f32 where it is kept.
pub fn gradients(op: &Attend, inputs: &[Tensor], outputs: &[Tensor], grad: &Tensor) -> Grads {
    // A boolean mask and numbers of keys have no gradient, though a comparison of tracked tensors may have made them.
    let floats = |input: &Tensor| input.track_op() && input.dtype() == inputs[0].dtype();
    let wanted: Vec<bool> = inputs.iter().map(floats).collect();
    if !wanted.contains(&true) {
        return Ok(vec![None; inputs.len()]);
    }
    let bwd = AttendBwd {
        op: op.clone(),
        wanted: wanted.clone(),
    };
    let wide = outputs.get(2).filter(|wide| wide.elem_count() > 0);
    let y = wide.unwrap_or(&outputs[0]);
    let args = [y, &outputs[1], grad].into_iter().chain(inputs);
    let mut grads = op::apply_multi(NAME, bwd, &args.collect::<Vec<_>>())?.into_iter();
    Ok(wanted
        .into_iter()
        .map(|wanted| if wanted { grads.next() } else { None })
        .collect())
}

/// `(y, log-sum-exps, grad_out, q, k, v[, mask][, sinks][, key_lengths])` → the gradients that are `wanted`, one for each
/// input of [`Attend`] from q on. y may be f32 where the others are 16 bits.
pub struct AttendBwd {
    pub op: Attend,
    pub wanted: Vec<bool>,
}

/// The arguments before those of [`Attend`].
pub const FIRST: usize = 3;

impl AttendBwd {
    /// The sizes of the call, if its arguments go together.
    pub fn geometry(&self, name: &'static str, args: &[Spec<'_>]) -> Result<Geometry> {
        let message = format_args!(
            "got {} tensors, expected the inputs of attention",
            args.len()
        );
        check::ensure(args.len() == FIRST + self.wanted.len(), name, message)?;
        let geometry = self.op.geometry(name, &args[FIRST..])?;
        let names = ["y", "log_sums", "grad_out"];
        for (i, called) in names.into_iter().enumerate() {
            let (dims, dtype) = match i {
                0 if args[0].dtype == DType::F32 => (geometry.output(), DType::F32),
                1 => (geometry.log_sums().to_vec(), DType::F32),
                _ => (geometry.output(), args[FIRST].dtype),
            };
            check::same_dtype(name, dtype, called, args[i].dtype)?;
            check::has_shape(name, called, args[i].layout, &dims)?;
        }
        Ok(geometry)
    }
}

impl MultiOp for AttendBwd {
    const ARGS: &'static [&'static str] = &[
        "y",
        "log_sums",
        "grad_out",
        "q",
        "k",
        "v",
        "mask",
        "sinks",
        "key_lengths",
    ];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.geometry(name, args).map(drop)
    }
    kernels!(many: self, args => device::backward(self, args));
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, _: &[&Tensor]) -> Result<Vec<Tensor>> {
        Err(check::error(NAME, "no kernel for this device or dtype"))
    }
}
