//! Dropout by a counter-based generator: `out = mask · act(x) [+ residual]` with act the identity or
//! ReLU and mask either 0 or `1 / (1 − p)`.
//!
//! Whether element i stays depends on (seed, i) alone (Philox4x32-10, word `i % 4` of counter `i / 4`),
//! so the mask is the same on every device and is made again in the backward pass instead of kept:
//! `dx = mask · act′(x) · g`, `dresidual = g`.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
mod metal;
pub(crate) mod philox;

use super::activation::{self, Act, ActivationBwd};
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, InplaceOp1, Layout, Result, Shape, Tensor};

const NAME: &str = "dropout";

/// Zeroes each element with probability `p` and scales the others by `1 / (1 − p)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::dropout;
/// let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?;
/// assert_eq!(dropout(&x, 0.0, 42)?.to_vec1::<f32>()?, [1., 2., 3.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn dropout(x: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    apply(x, false, p, seed)
}

/// `dropout(relu(x))`
pub fn relu_dropout(x: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    apply(x, true, p, seed)
}

fn apply(x: &Tensor, relu: bool, p: f32, seed: u64) -> Result<Tensor> {
    check_args(x, p)?;
    if !check::served(x) {
        let act = if relu { Act::Relu } else { Act::Identity };
        return reference(x, act, p, seed);
    }
    apply::op1(x, Dropout { relu, p, seed })
}

/// `dropout(x) + residual`
pub fn dropout_add(x: &Tensor, residual: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    check_args(x, p)?;
    check::alike(NAME, x, "residual", residual)?;
    check::same_shape(NAME, x, "residual", residual)?;
    if !check::served(x) {
        return reference_add(x, residual, p, seed);
    }
    apply::op2(x, residual, DropoutAdd { p, seed })
}

/// [`dropout`] in x's own memory.
pub fn dropout_inplace(x: &Tensor, p: f32, seed: u64) -> Result<()> {
    let relu = false;
    apply_inplace(x, Dropout { relu, p, seed })
}

/// [`relu_dropout`] in x's own memory.
pub fn relu_dropout_inplace(x: &Tensor, p: f32, seed: u64) -> Result<()> {
    let relu = true;
    apply_inplace(x, Dropout { relu, p, seed })
}

fn apply_inplace(x: &Tensor, op: Dropout) -> Result<()> {
    check_args(x, op.p)?;
    check::untracked(NAME, x)?;
    apply::inplace1(x, op)
}

fn check_args(x: &Tensor, p: f32) -> Result<()> {
    check::float(NAME, x)?;
    if !(0.0..1.0).contains(&p) {
        return Err(check::error(
            NAME,
            format_args!("p is {p}, 0 ≤ p < 1 is accepted"),
        ));
    }
    Ok(())
}

/// [`dropout`] and [`relu_dropout`] as a CustomOp; [`dropout`] also in place.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    pub relu: bool,
    pub p: f32,
    pub seed: u64,
}

impl CustomOp1 for Dropout {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        metal::forward(*self, x, l)
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let masked = dropout(g, self.p, self.seed)?;
        if self.relu {
            return apply::op2(x, &masked, ActivationBwd(Act::Relu)).map(Some);
        }
        Ok(Some(masked))
    }
}

impl InplaceOp1 for Dropout {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, l: &Layout) -> Result<()> {
        cpu::forward_inplace(*self, x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &mut MetalStorage, l: &Layout) -> Result<()> {
        metal::forward_inplace(*self, x, l)
    }
}

/// [`dropout_add`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct DropoutAdd {
    pub p: f32,
    pub seed: u64,
}

impl CustomOp2 for DropoutAdd {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        residual: &CpuStorage,
        rl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward_add(*self, (x, xl), (residual, rl))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        residual: &MetalStorage,
        rl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward_add(*self, (x, xl), (residual, rl))
    }
    fn bwd(
        &self,
        x: &Tensor,
        residual: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dx = x.track_op().then(|| dropout(g, self.p, self.seed));
        Ok((dx.transpose()?, residual.track_op().then(|| g.clone())))
    }
}

/// The mask as a tensor times stock ops: what [`dropout`] and [`relu_dropout`] replace.
pub fn reference(x: &Tensor, act: Act, p: f32, seed: u64) -> Result<Tensor> {
    let mask = philox::Mask::new(p, seed);
    let factors: Vec<f32> = (0..x.elem_count()).map(|i| mask.factor(i)).collect();
    let factors = Tensor::from_vec(factors, x.shape(), x.device())?.to_dtype(x.dtype())?;
    let dropped = factors.eq(0f64)?;
    // Selected rather than multiplied: a dropped NaN or infinity is 0.
    let y = (activation::reference(x, act)? * factors)?;
    dropped.where_cond(&y.zeros_like()?, &y)
}

/// What [`dropout_add`] replaces.
pub fn reference_add(x: &Tensor, residual: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    reference(x, Act::Identity, p, seed)? + residual
}
