//! Gated linear units: `out = act(gate) · up`, from two tensors or from one packed `[.., gate | up]`.
//!
//! Backward: `dgate = g · up · act′(gate)`, `dup = g · act(gate)`, both in one pass. Computed in f32.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, Act};
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp2, Layout, Result, Shape, Tensor, D,
};

const NAME: &str = "glu";

/// `act(gate) · up`; both of one shape.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{glu, Act};
/// let gate = Tensor::new(&[-1f32, 2.], &Device::Cpu)?;
/// let up = Tensor::new(&[5f32, 3.], &Device::Cpu)?;
/// assert_eq!(glu(&gate, &up, Act::Relu)?.to_vec1::<f32>()?, [0., 6.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn glu(gate: &Tensor, up: &Tensor, act: Act) -> Result<Tensor> {
    check_args(gate, up)?;
    if !check::served(gate) {
        return reference(gate, up, act);
    }
    apply::op2(gate, up, Glu(act))
}

/// `act(gate) · up` of a tensor `[.., 2n]` that holds the gate in the first half of its last dim.
pub fn glu_packed(x: &Tensor, act: Act) -> Result<Tensor> {
    check::float(NAME, x)?;
    check::has_dims(NAME, x)?;
    let last = x.dim(D::Minus1)?;
    if !last.is_multiple_of(2) {
        let message = format!("packed x has a last dim of {last}, an even one is accepted");
        return Err(check::error(NAME, message));
    }
    if !check::served(x) {
        return reference_packed(x, act);
    }
    apply::op1(x, GluPacked(act))
}

/// `gate = act(gate) · up` in the gate's own memory, for inference.
pub fn glu_inplace(gate: &Tensor, up: &Tensor, act: Act) -> Result<()> {
    check_args(gate, up)?;
    check::untracked(NAME, gate)?;
    apply::inplace2(gate, up, Glu(act))
}

fn check_args(gate: &Tensor, up: &Tensor) -> Result<()> {
    check::float(NAME, gate)?;
    check::alike(NAME, gate, "up", up)?;
    check::same_shape(NAME, gate, "up", up)
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident, $packed:ident = $act:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
            glu(gate, up, $act)
        }
        $(#[$doc])*
        ///
        /// The gate is the first half of the last dim.
        pub fn $packed(x: &Tensor) -> Result<Tensor> {
            glu_packed(x, $act)
        }
    )*};
}

named! {
    /// `silu(gate) · up`
    swiglu, swiglu_packed = Act::Silu;
    /// `gelu(gate) · up`, with the tanh form of GELU
    geglu, geglu_packed = Act::Gelu;
    /// `relu(gate) · up`
    reglu, reglu_packed = Act::Relu;
}

/// [`glu`] as a CustomOp, out of place and in place.
#[derive(Clone, Copy, Debug)]
pub struct Glu(pub Act);

impl CustomOp2 for Glu {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_l: &Layout,
        up: &CpuStorage,
        up_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self.0, (gate, gate_l), (up, up_l))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        gate: &MetalStorage,
        gate_l: &Layout,
        up: &MetalStorage,
        up_l: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(self.0, (gate, gate_l), (up, up_l))
    }
    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let both = apply::op3(gate, up, g, GluBwd(self.0))?;
        let dgate = gate.track_op().then(|| both.get(0)).transpose()?;
        let dup = up.track_op().then(|| both.get(1)).transpose()?;
        Ok((dgate, dup))
    }
}

impl InplaceOp2 for Glu {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        gate: &mut CpuStorage,
        gate_l: &Layout,
        up: &CpuStorage,
        up_l: &Layout,
    ) -> Result<()> {
        cpu::forward_inplace(self.0, (gate, gate_l), (up, up_l))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        gate: &mut MetalStorage,
        gate_l: &Layout,
        up: &MetalStorage,
        up_l: &Layout,
    ) -> Result<()> {
        metal::forward_inplace(self.0, (gate, gate_l), (up, up_l))
    }
}

/// [`glu_packed`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct GluPacked(pub Act);

impl CustomOp1 for GluPacked {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((cpu::forward_packed(self.0, (x, l))?, halved(l)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        Ok((metal::forward_packed(self.0, (x, l))?, halved(l)))
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        apply::op2(x, g, GluPackedBwd(self.0)).map(Some)
    }
}

fn halved(x: &Layout) -> Shape {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last /= 2;
    }
    dims.into()
}

/// `(gate, up, g) → [dgate, dup]`, stacked.
#[derive(Clone, Copy, Debug)]
pub struct GluBwd(pub Act);

impl CustomOp3 for GluBwd {
    fn name(&self) -> &'static str {
        "glu_bwd"
    }
    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_l: &Layout,
        up: &CpuStorage,
        up_l: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = [&[2], gate_l.dims()].concat().into();
        let grads = cpu::backward(self.0, (gate, gate_l), (up, up_l), (g, gl))?;
        Ok((grads, shape))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        gate: &MetalStorage,
        gate_l: &Layout,
        up: &MetalStorage,
        up_l: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        let shape = [&[2], gate_l.dims()].concat().into();
        let grads = metal::backward(self.0, (gate, gate_l), (up, up_l), (g, gl))?;
        Ok((grads, shape))
    }
}

/// `(packed x, g) → packed dx`
#[derive(Clone, Copy, Debug)]
pub struct GluPackedBwd(pub Act);

impl CustomOp2 for GluPackedBwd {
    fn name(&self) -> &'static str {
        "glu_packed_bwd"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let dx = cpu::backward_packed(self.0, (x, xl), (g, gl))?;
        Ok((dx, xl.shape().clone()))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        let dx = metal::backward_packed(self.0, (x, xl), (g, gl))?;
        Ok((dx, xl.shape().clone()))
    }
}

/// The composition of stock ops that [`glu`] replaces.
pub fn reference(gate: &Tensor, up: &Tensor, act: Act) -> Result<Tensor> {
    activation::reference(gate, act)? * up
}

/// The composition of stock ops that [`glu_packed`] replaces.
pub fn reference_packed(x: &Tensor, act: Act) -> Result<Tensor> {
    let n = x.dim(D::Minus1)? / 2;
    let (gate, up) = (x.narrow(D::Minus1, 0, n)?, x.narrow(D::Minus1, n, n)?);
    reference(&gate, &up, act)
}
