//! Group norm over `[batch, channels, ..spatial]`: the channels of a group are normalised together, as in
//! `layer_norm`, then `y = x̂ · weight[c] + bias[c]`.
//!
//! Backward, with `h = g · weight[c]` and means over a group: `dx = (h − mean(h) − x̂ · mean(h · x̂)) / √(var(x) + eps)`;
//! `dweight[c] = Σ g · x̂` and `dbias[c] = Σ g` over the batch and all positions. Everything is computed in f32 and
//! rounded once; the variance takes two passes.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::affine_norm::{Affine, AffineNorm, Arg, Vectors};
use super::row_norm::{reference_layer, widened};
use crate::check;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Layout, Result, Shape, Tensor};

const NAME: &str = "group_norm";

/// A norm over groups of channels. `Affine(GroupNorm { .. })` is the CustomOp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Into how many groups the channels are cut.
    pub num_groups: usize,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// `(x − mean) / √(var + eps) · weight[c] + bias[c]`, mean and variance over each of `num_groups` groups of channels, for
/// f32, f16 and bf16 of any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::group_norm;
/// let x = Tensor::new(&[[[1f32, 3.], [5., 5.]]], &Device::Cpu)?;
/// let y = group_norm(&x, 2, None, None, 1e-9)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[-1., 1.], [0., 0.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn group_norm(
    x: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let norm = GroupNorm { num_groups, eps };
    norm.check(x, [weight, bias])?;
    if !check::served(x) {
        return reference(x, num_groups, weight, bias, eps);
    }
    Affine(norm).apply(x, [weight, bias])
}

/// [`group_norm`] in x's own memory, for inference.
pub fn group_norm_inplace(
    x: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<()> {
    let norm = GroupNorm { num_groups, eps };
    norm.check(x, [weight, bias])?;
    check::untracked(NAME, x)?;
    Affine(norm).apply_inplace(x, [weight, bias])
}

impl GroupNorm {
    fn check(&self, x: &Tensor, vectors: [Option<&Tensor>; 2]) -> Result<()> {
        check::float(NAME, x)?;
        check::eps(NAME, self.eps.into())?;
        let (groups, shape) = (self.num_groups, x.shape());
        let &[_, channels, ..] = x.dims() else {
            let message = format!("x has shape {shape:?}, [batch, channels, ..] accepted");
            return Err(check::error(NAME, message));
        };
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message =
                format!("{groups} groups given, a divisor of the {channels} channels accepted");
            return Err(check::error(NAME, message));
        }
        for (name, vector) in ["weight", "bias"].into_iter().zip(vectors) {
            if let Some(vector) = vector {
                check::alike(NAME, x, name, vector)?;
                if vector.dims() != [channels] {
                    let given = vector.shape();
                    let message = format!("{name} has shape {given:?}, x has {channels} channels");
                    return Err(check::error(NAME, message));
                }
            }
        }
        Ok(())
    }

    /// How x lies in groups.
    fn extent(&self, l: &Layout) -> Extent {
        let dims = l.dims();
        Extent {
            batch: dims[0],
            channels: dims[1],
            spatial: dims[2..].iter().product(),
            groups: self.num_groups,
        }
    }
}

/// The sizes of a contiguous `[batch, groups, channels / groups, spatial]`.
#[derive(Clone, Copy, Debug)]
struct Extent {
    batch: usize,
    channels: usize,
    spatial: usize,
    groups: usize,
}

impl Extent {
    fn rows(&self) -> usize {
        self.batch * self.groups
    }
    fn channels_per_group(&self) -> usize {
        self.channels / self.groups
    }
    /// Elements of a group.
    fn cols(&self) -> usize {
        self.channels_per_group() * self.spatial
    }
    fn count(&self) -> usize {
        self.batch * self.channels * self.spatial
    }
}

impl AffineNorm for GroupNorm {
    fn name(&self) -> &'static str {
        NAME
    }
    fn bwd_name(&self) -> &'static str {
        "group_norm_bwd"
    }
    fn cpu_fwd(
        &self,
        x: Arg<CpuStorage>,
        vectors: Vectors<CpuStorage>,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, x, vectors)
    }
    fn cpu_inplace(
        &self,
        x: (&mut CpuStorage, &Layout),
        vectors: Vectors<CpuStorage>,
    ) -> Result<()> {
        cpu::forward_inplace(*self, x, vectors)
    }
    fn cpu_bwd(
        &self,
        x: Arg<CpuStorage>,
        grad_out: Arg<CpuStorage>,
        weight: Option<Arg<CpuStorage>>,
        vectors: usize,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::backward(*self, x, grad_out, weight, vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: Arg<MetalStorage>,
        vectors: Vectors<MetalStorage>,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(*self, x, vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_inplace(&self, x: Arg<MetalStorage>, vectors: Vectors<MetalStorage>) -> Result<()> {
        metal::forward_inplace(*self, x, vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_bwd(
        &self,
        x: Arg<MetalStorage>,
        grad_out: Arg<MetalStorage>,
        weight: Option<Arg<MetalStorage>>,
        vectors: usize,
    ) -> Result<(MetalStorage, Shape)> {
        metal::backward(*self, x, grad_out, weight, vectors)
    }
}

/// The composition of stock ops that [`group_norm`] replaces.
pub fn reference(
    x: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let wide = widened(x)?;
    let (batch, channels) = (x.dims()[0], x.dims()[1]);
    let cols = x.dims()[2..].iter().product::<usize>() * channels / num_groups;
    let groups = wide.reshape((batch, num_groups, cols))?;
    let mut y = reference_layer(&groups, None, None, eps)?.reshape(x.shape())?;
    let mut dims = vec![1; x.rank()];
    dims[1] = channels;
    if let Some(weight) = weight {
        y = y.broadcast_mul(&widened(weight)?.reshape(&dims[..])?)?;
    }
    if let Some(bias) = bias {
        y = y.broadcast_add(&widened(bias)?.reshape(&dims[..])?)?;
    }
    y.to_dtype(x.dtype())
}
