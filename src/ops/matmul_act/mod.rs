//! Products with an activation: `out = act(z)` with `z = x·y + bias`, for matrices and for stacks of them.
//!
//! Backward with `dz = g · act′(z)`: `dx = dz·yᵀ`, `dy = xᵀ·dz`, `dbias = Σ dz` over the rows, all summed back to their
//! shapes where they were repeated. Products are accumulated in f32; bias and activation follow before they are
//! rounded, unless z is kept for the backward.

mod cpu;
#[cfg(feature = "metal")]
pub(crate) mod metal;
pub(crate) mod stacks;

use super::activation::{self, activation, grad_before, Act};
use super::linear::{check_args as check_linear, check_bias, column_sums, matrix};
use super::reduce::sum_to;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, D};
use stacks::Stacks;

const NAME: &str = "matmul_act";

/// `act(x·y + bias)` for x `[.., m, k]`, y `[.., k, n]` and bias `[n]`, of any layout. Leading dims broadcast.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{matmul_act, Act};
/// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let y = Tensor::new(&[[5f32, 6.], [7., 8.]], &Device::Cpu)?;
/// let bias = Tensor::new(&[-20f32, 0.], &Device::Cpu)?;
/// let out = matmul_act(&x, &y, Some(&bias), Act::Relu)?;
/// assert_eq!(out.to_vec2::<f32>()?, [[0., 22.], [23., 50.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn matmul_act(x: &Tensor, y: &Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    check_args(x, y, bias)?;
    if !check::served(x) {
        return reference(x, y, bias, act);
    }
    if apply::tracks(x, y, bias) && act != Act::Identity {
        // Backward will ask for z, which is cheaper to keep than to compute again.
        return activation(&product(x, y, bias, Act::Identity)?, act);
    }
    product(x, y, bias, act)
}

/// `act(x·Wᵀ + bias)` for x `[.., in]`, W `[out, in]` and bias `[out]`: a linear layer with its activation.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{linear_act, Act};
/// let x = Tensor::new(&[10f32, 100.], &Device::Cpu)?;
/// let w = Tensor::new(&[[1f32, 2.], [3., -4.], [5., 6.]], &Device::Cpu)?;
/// let out = linear_act(&x, &w, None, Act::Relu)?;
/// assert_eq!(out.to_vec1::<f32>()?, [210., 0., 650.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn linear_act(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    check_linear("linear_act", x, w, bias)?;
    match x.rank() {
        1 => matmul_act(&x.unsqueeze(0)?, &w.t()?, bias, act)?.squeeze(0),
        _ => matmul_act(x, &w.t()?, bias, act),
    }
}

fn product(x: &Tensor, y: &Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    match bias {
        Some(bias) => apply::op3(x, y, bias, MatmulAct(act)),
        None => apply::op2(x, y, MatmulAct(act)),
    }
}

fn check_args(x: &Tensor, y: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    check::float(NAME, x)?;
    check::alike(NAME, x, "y", y)?;
    if let Some(bias) = bias {
        check::alike(NAME, x, "bias", bias)?;
    }
    output_shape(x.layout(), y.layout(), bias.map(Tensor::layout)).map(drop)
}

/// The shapes are checked here, for those who apply the CustomOp themselves too.
fn output_shape(x: &Layout, y: &Layout, bias: Option<&Layout>) -> Result<Shape> {
    let error = |accepted: &str| {
        let (x, y) = (x.shape(), y.shape());
        let message = format!("x has shape {x:?} and y has {y:?}, {accepted} accepted");
        Err(check::error(NAME, message))
    };
    let ([x_leading @ .., m, k], [y_leading @ .., inner, n]) = (x.dims(), y.dims()) else {
        return error("[.., m, k] and [.., k, n]");
    };
    if k != inner {
        return error(&format!("[.., {k}, n] for y"));
    }
    check_bias(NAME, *n, bias)?;
    let rank = x_leading.len().max(y_leading.len());
    let mut dims = Vec::with_capacity(rank + 2);
    for from_end in (1..=rank).rev() {
        let dim = |leading: &[usize]| match leading.len().checked_sub(from_end) {
            Some(i) => leading[i],
            None => 1,
        };
        dims.push(match (dim(x_leading), dim(y_leading)) {
            (x, y) if x == y || y == 1 => x,
            (1, y) => y,
            _ => return error("leading dims that broadcast"),
        });
    }
    dims.extend([*m, *n]);
    check::size(NAME, &dims)?;
    Ok(dims.into())
}

/// [`matmul_act()`] as a CustomOp: of x and y, or of these and a bias.
#[derive(Clone, Copy, Debug)]
pub struct MatmulAct(pub Act);

impl CustomOp2 for MatmulAct {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        y: &CpuStorage,
        yl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self.0, (x, xl), (y, yl), None)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(self.0, (x, xl), (y, yl), None)
    }
    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dz = grad_before(self.0, g, || product(x, y, None, Act::Identity))?;
        Ok((grad_x(x, y, &dz)?, grad_y(x, y, &dz)?))
    }
}

impl CustomOp3 for MatmulAct {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        y: &CpuStorage,
        yl: &Layout,
        bias: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(self.0, (x, xl), (y, yl), Some((bias, bl)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
        bias: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal::forward(self.0, (x, xl), (y, yl), Some((bias, bl)))
    }
    fn bwd(
        &self,
        x: &Tensor,
        y: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dz = grad_before(self.0, g, || product(x, y, Some(bias), Act::Identity))?;
        let dbias = bias.track_op().then(|| column_sums(&dz)).transpose()?;
        Ok((grad_x(x, y, &dz)?, grad_y(x, y, &dz)?, dbias))
    }
}

/// `dz·yᵀ` where x tracks gradients.
fn grad_x(x: &Tensor, y: &Tensor, dz: &Tensor) -> Result<Option<Tensor>> {
    let dx = || sum_to(&product(dz, &y.t()?, None, Act::Identity)?, x.shape());
    x.track_op().then(dx).transpose()
}

/// `xᵀ·dz` where y tracks gradients.
fn grad_y(x: &Tensor, y: &Tensor, dz: &Tensor) -> Result<Option<Tensor>> {
    let leading = |t: &Tensor| t.dims()[..t.rank() - 2].to_vec();
    let dy = || {
        // One y for all of x: one product, over the rows of the whole stack.
        if dz.rank() > 2 && leading(x) == leading(dz) && leading(y).iter().all(|&d| d == 1) {
            let dy = product(&matrix(x)?.t()?, &matrix(dz)?, None, Act::Identity)?;
            return dy.reshape(y.shape());
        }
        sum_to(&product(&x.t()?, dz, None, Act::Identity)?, y.shape())
    };
    y.track_op().then(dy).transpose()
}

/// The composition of stock ops that [`matmul_act()`] replaces.
pub fn reference(x: &Tensor, y: &Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    let z = stock_product(x, y)?;
    let z = match bias {
        Some(bias) => z.broadcast_add(bias)?,
        None => z,
    };
    activation::reference(&z, act)
}

/// Candle takes two leading dims at most.
fn stock_product(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let shape = output_shape(x.layout(), y.layout(), None)?;
    let leading = &shape.dims()[..shape.rank() - 2];
    if leading.len() <= 2 {
        return x.broadcast_matmul(y);
    }
    let stack = |t: &Tensor| {
        let (rows, cols) = (t.dim(D::Minus2)?, t.dim(D::Minus1)?);
        t.broadcast_as([leading, &[rows, cols]].concat())?.reshape((
            leading.iter().product::<usize>(),
            rows,
            cols,
        ))
    };
    stack(x)?.matmul(&stack(y)?)?.reshape(&shape)
}
