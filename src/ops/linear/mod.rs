//! Linear layers: `y = x·Wᵀ + bias`, with a weight that is frozen or trained.
//!
//! Backward: `dx = g·W`, `dW = gᵀ·x`, `dbias = Σ g` over the rows. A frozen weight gets no gradient, not even a
//! buffer for one. Products are accumulated in f32.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
pub(crate) mod metal;

use crate::held::held;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, D};

const NAME: &str = "linear";

/// `x·Wᵀ + bias` for x `[.., in]`, W `[out, in]` and bias `[out]`, differentiable in all of them.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::linear;
/// let x = Tensor::new(&[10f32, 100.], &Device::Cpu)?;
/// let w = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
/// assert_eq!(linear(&x, &w, None)?.to_vec1::<f32>()?, [210., 430., 650.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    check_args(NAME, x, w, bias)?;
    if !check::served(x) {
        return reference(x, w, bias);
    }
    match bias {
        Some(bias) => apply::op3(x, w, bias, Linear),
        None => apply::op2(x, w, Linear),
    }
}

/// [`linear`] with a frozen weight and bias: differentiable in x alone, and nothing of the weight's size is ever
/// allocated for them.
pub fn frozen_linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    check_args(NAME, x, w, bias)?;
    if !check::served(x) {
        return reference(x, &w.detach(), bias.map(Tensor::detach).as_ref());
    }
    apply::op1(x, FrozenLinear::new(w, bias, 1.0))
}

/// `scale · x·Wᵀ`, differentiable in x.
pub(crate) fn scaled(x: &Tensor, w: &Tensor, scale: f32) -> Result<Tensor> {
    if !check::served(x) {
        return reference(x, &w.detach(), None)? * f64::from(scale);
    }
    apply::op1(x, FrozenLinear::new(w, None, scale))
}

pub(crate) fn check_args(op: &str, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    check::float(op, x)?;
    check::alike(op, x, "weight", w)?;
    if let Some(bias) = bias {
        check::alike(op, x, "bias", bias)?;
    }
    check_layouts(op, x.layout(), w.layout(), bias.map(Tensor::layout))
}

/// The shapes, for those who apply a CustomOp themselves too.
pub(crate) fn check_layouts(op: &str, x: &Layout, w: &Layout, bias: Option<&Layout>) -> Result<()> {
    let Some(&last) = x.dims().last() else {
        return Err(check::error(
            op,
            "a scalar (rank 0) given, rank 1 or more accepted",
        ));
    };
    match *w.dims() {
        [out, cols] if cols == last => {
            check::size(op, output_shape(x, out).dims())?;
            check_bias(op, out, bias)
        }
        _ => {
            let shape = w.shape();
            let message = format!(
                "weight has shape {shape:?}, x's last dim is {last}, [out, {last}] accepted"
            );
            Err(check::error(op, message))
        }
    }
}

pub(crate) fn check_bias(op: &str, out: usize, bias: Option<&Layout>) -> Result<()> {
    match bias {
        Some(bias) if bias.dims() != [out] => {
            let shape = bias.shape();
            let message = format!("bias has shape {shape:?}, [{out}] accepted");
            Err(check::error(op, message))
        }
        _ => Ok(()),
    }
}

/// [`frozen_linear`] as a CustomOp: `scale · x·Wᵀ + bias`.
#[derive(Clone, Debug)]
pub struct FrozenLinear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub scale: f32,
}

impl FrozenLinear {
    pub(crate) fn new(w: &Tensor, bias: Option<&Tensor>, scale: f32) -> Self {
        FrozenLinear {
            weight: w.detach(),
            bias: bias.map(Tensor::detach),
            scale,
        }
    }
}

impl CustomOp1 for FrozenLinear {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        let (w, bias) = (held(&self.weight), self.bias.as_ref().map(held));
        let bias = bias.as_ref().map(|b| b.cpu(NAME)).transpose()?;
        cpu::forward((x, l), w.cpu(NAME)?, bias, self.scale)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        let (w, bias) = (held(&self.weight), self.bias.as_ref().map(held));
        let bias = bias.as_ref().map(|b| b.metal(NAME)).transpose()?;
        metal::forward((x, l), w.metal(NAME)?, bias, self.scale)
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        grad_x(x, &self.weight, g, self.scale)
    }
}

/// [`linear`] as a CustomOp: of x and W, or of these and a bias.
#[derive(Clone, Copy, Debug)]
pub struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward((x, xl), (w, wl), None, 1.0)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward((x, xl), (w, wl), None, 1.0)
    }
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((grad_x(x, w, g, 1.0)?, grad_weight(x, w, g, 1.0)?))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        bias: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward((x, xl), (w, wl), Some((bias, bl)), 1.0)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
        bias: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward((x, xl), (w, wl), Some((bias, bl)), 1.0)
    }
    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dbias = bias.track_op().then(|| column_sums(g)).transpose()?;
        Ok((grad_x(x, w, g, 1.0)?, grad_weight(x, w, g, 1.0)?, dbias))
    }
}

/// `scale · g·W` where x tracks gradients.
pub(crate) fn grad_x(x: &Tensor, w: &Tensor, g: &Tensor, scale: f32) -> Result<Option<Tensor>> {
    let dx = || scaled(g, &w.t()?, scale);
    x.track_op().then(dx).transpose()
}

/// `scale · gᵀ·x` where w tracks gradients.
pub(crate) fn grad_weight(
    x: &Tensor,
    w: &Tensor,
    g: &Tensor,
    scale: f32,
) -> Result<Option<Tensor>> {
    let dw = || scaled(&matrix(g)?.t()?, &matrix(x)?.t()?, scale);
    w.track_op().then(dw).transpose()
}

/// Σ over all dims but the last, as a product with ones.
pub(crate) fn column_sums(g: &Tensor) -> Result<Tensor> {
    let g = matrix(g)?;
    let ones = Tensor::ones(g.dim(0)?, g.dtype(), g.device())?;
    scaled(&ones, &g.t()?, 1.0)
}

/// All dims but the last as one.
pub(crate) fn matrix(x: &Tensor) -> Result<Tensor> {
    let (last, rows) = (x.dim(D::Minus1)?, x.dims()[..x.rank() - 1].iter().product());
    x.reshape::<(usize, usize)>((rows, last))
}

/// The output's shape: x's, with `out` for its last dim.
pub(crate) fn output_shape(x: &Layout, out: usize) -> Shape {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = out;
    }
    dims.into()
}

/// The composition of stock ops that [`linear`] replaces.
pub fn reference(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let out = w.dim(0)?;
    let y = matrix(x)?.matmul(&w.t()?)?;
    let y = match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    };
    y.reshape(output_shape(x.layout(), out))
}
