//! A residual connection and the norm behind it: `sum = x + residual`, `normed = norm(sum)`, both returned.
//!
//! One kernel makes both outputs; the norm sees the sum as rounded to the dtype. Backward: the gradient of the sum is the
//! one that reaches it directly plus the norm's `dx`, and both x and residual get it.

#[cfg(feature = "metal")]
use super::metal;
use super::{affine_norm, columns, cpu, with_args, Kind, RowNorm};
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Op, Spec};
use crate::ops::{add_act, Act};
use candle_core::{Result, Tensor};

/// `sum = x + residual` and `normed = rms_norm(sum, weight, eps)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::add_rms_norm;
/// let (x, residual) = (Tensor::new(&[1f32, 5.], &Device::Cpu)?, Tensor::new(&[2f32, -1.], &Device::Cpu)?);
/// let (sum, normed) = add_rms_norm(&x, &residual, None, 3.5)?;
/// assert_eq!(sum.to_vec1::<f32>()?, [3., 4.]);
/// assert_eq!(normed.to_vec1::<f32>()?, [0.75, 1.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: Option<&Tensor>,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let norm = RowNorm::new(Kind::Rms, eps);
    apply("add_rms_norm", norm, x, residual, weight, None)
}

/// `sum = x + residual` and `normed = layer_norm(sum, weight, bias, eps)`.
pub fn add_layer_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let norm = RowNorm::new(Kind::Layer, eps);
    apply("add_layer_norm", norm, x, residual, weight, bias)
}

fn apply(
    name: &'static str,
    norm: RowNorm,
    x: &Tensor,
    residual: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    with_args(x, columns(x.dims()), [weight, bias], |args| {
        let vectors = &args[1..];
        let mut all = [x, residual, x, x];
        all[2..2 + vectors.len()].copy_from_slice(vectors);
        op::apply_multi_pair(name, AddNorm(norm), &all[..2 + vectors.len()])
    })
}

/// `(x, residual[, weight[, bias]])` → `(sum, normed)`
struct AddNorm(RowNorm);

impl MultiOp for AddNorm {
    const ARGS: &'static [&'static str] = &["x", "residual", "weight", "bias"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, args)?;
        check::same_shape(name, args[0], "residual", args[1])?;
        self.0.check_parts(name, args[0], &args[2..])
    }
    kernels!(many: self, args => {
        let ([sum, normed], shape) = (device::add(self.0, args)?, args[0].1.shape());
        Ok(vec![(sum, shape.clone()), (normed, shape.clone())])
    });
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let tracks_sum = inputs[0].track_op() || inputs[1].track_op();
        let mut dsum = grads[0].clone().filter(|_| tracks_sum);
        let mut vectors = vec![None; inputs.len() - 2];
        if let Some(dnormed) = &grads[1] {
            let args: Vec<&Tensor> = outputs[..1].iter().chain(&inputs[2..]).collect();
            let mut wanted: Vec<bool> = args.iter().map(|input| input.track_op()).collect();
            wanted[0] = tracks_sum;
            let mut grads = affine_norm::gradients_of(self.0, &args, &wanted, dnormed)?;
            vectors = grads.split_off(1);
            dsum = match (dsum, grads.pop().flatten()) {
                (Some(a), Some(b)) => Some(add_act(&a, &b, Act::Identity)?),
                (a, b) => a.or(b),
            };
        }
        let of = |input: &Tensor| dsum.clone().filter(|_| input.track_op());
        let mut all = vec![of(&inputs[0]), of(&inputs[1])];
        all.append(&mut vectors);
        Ok(all)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let sum = (args[0] + args[1])?;
        let normed = self.0.reference(&[&[&sum], &args[2..]].concat())?;
        Ok(vec![sum, normed])
    }
}
