//! A residual connection and the norm behind it: `sum = x + residual`, `normed = norm(sum)`, both returned.
//!
//! Two outputs do not fit a CustomOp, and packing them into one would cost more copies in the backward than the pass over
//! the sum that it saves. So one kernel makes both where no gradient is tracked, and two differentiable ops where one is.
//! The values are the same: the norm sees the sum as rounded to the dtype.

use super::{cpu, Kind, RowNorm};
use crate::check;
use crate::ops::affine_norm::{ones_like, Arg};
use crate::ops::{add_act, Act};
use candle_core::op::BackpropOp;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Layout, Result, Storage, StorageRef, Tensor};

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
    add("add_rms_norm", norm, x, residual, [weight, None])
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
    add("add_layer_norm", norm, x, residual, [weight, bias])
}

fn add(
    op: &'static str,
    norm: RowNorm,
    x: &Tensor,
    residual: &Tensor,
    vectors: [Option<&Tensor>; 2],
) -> Result<(Tensor, Tensor)> {
    norm.check(op, x, vectors)?;
    check::alike(op, x, "residual", residual)?;
    check::same_shape(op, x, "residual", residual)?;
    let [weight, bias] = vectors;
    let tracked = [Some(x), Some(residual), weight, bias]
        .into_iter()
        .flatten()
        .any(Tensor::track_op);
    if tracked || !check::served(x) {
        // Unlike Candle's own, this sum gives no gradient to a frozen argument.
        let sum = add_act(x, residual, Act::Identity)?;
        let normed = norm.apply(&sum, vectors)?;
        return Ok((sum, normed));
    }
    if let (None, Some(bias)) = (weight, bias) {
        return add(op, norm, x, residual, [Some(&ones_like(bias)?), Some(bias)]);
    }
    let inputs = [x, residual].map(Tensor::storage_and_layout);
    let held = vectors.map(|v| v.map(Tensor::storage_and_layout));
    let [sum, normed] = match inputs.each_ref().map(on_cpu) {
        [Some(x), Some(residual)] => {
            let vectors = held.each_ref().map(|v| v.as_ref().and_then(on_cpu));
            cpu::add(norm, x, residual, vectors)?.map(Storage::Cpu)
        }
        #[cfg(feature = "metal")]
        _ => match inputs.each_ref().map(on_metal) {
            [Some(x), Some(residual)] => {
                let vectors = held.each_ref().map(|v| v.as_ref().and_then(on_metal));
                super::metal::add(norm, x, residual, vectors)?.map(Storage::Metal)
            }
            _ => candle_core::bail!("{op}: no kernel for {:?}", x.device()),
        },
        #[cfg(not(feature = "metal"))]
        _ => candle_core::bail!("{op}: no kernel for {:?}", x.device()),
    };
    let tensor = |s| Tensor::from_storage(s, x.shape(), BackpropOp::none(), false);
    Ok((tensor(sum), tensor(normed)))
}

type Held<'a> = (StorageRef<'a>, &'a Layout);

fn on_cpu<'a>((storage, layout): &'a Held) -> Option<Arg<'a, CpuStorage>> {
    match &**storage {
        Storage::Cpu(storage) => Some((storage, layout)),
        _ => None,
    }
}

#[cfg(feature = "metal")]
fn on_metal<'a>((storage, layout): &'a Held) -> Option<Arg<'a, MetalStorage>> {
    match &**storage {
        Storage::Metal(storage) => Some((storage, layout)),
        _ => None,
    }
}
