//! Products with an activation: `out = act(z)` with `z = x·y + bias`, for matrices and for stacks of them.
//!
//! Backward with `dz = g · act′(z)`: `dx = dz·yᵀ`, `dy = xᵀ·dz`, `dbias = Σ dz` over the rows, all summed back to their
//! shapes where they were repeated. Products are accumulated in f32; bias and activation follow before they are
//! rounded, unless z is kept for the backward.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::activation::{self, activation, grad_through_act, Act};
use super::linear::{check_args as check_linear, check_bias, column_sums, flatten_rows, Bias};
use super::reduce::sum_to;
use crate::check;
use crate::layout::as_vector;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{Layout, Result, Shape, Tensor, D};

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
    apply(NAME, x, y, bias, act)
}

fn apply(name: &'static str, x: &Tensor, y: &Tensor, bias: Bias, act: Act) -> Result<Tensor> {
    let tracked = [Some(x), Some(y), bias]
        .into_iter()
        .flatten()
        .any(Tensor::track_op);
    if tracked && act != Act::Identity && check::has_kernel(x) {
        // Backward will ask for z, which is cheaper to keep than to compute again.
        return activation(&product(name, x, y, bias, Act::Identity)?, act);
    }
    product(name, x, y, bias, act)
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
    let bias = match (bias, w.dims()) {
        (Some(bias), &[out, _]) => Some(as_vector(bias, out)?),
        _ => bias.cloned(),
    };
    let bias = bias.as_ref();
    check_linear("linear_act", x, w, bias)?;
    match x.rank() {
        1 => apply("linear_act", &x.unsqueeze(0)?, &w.t()?, bias, act)?.squeeze(0),
        _ => apply("linear_act", x, &w.t()?, bias, act),
    }
}

fn product(name: &'static str, x: &Tensor, y: &Tensor, bias: Bias, act: Act) -> Result<Tensor> {
    match (bias, y.dims().last()) {
        (Some(bias), Some(&n)) => op::apply(name, MatmulAct(act), &[x, y, &as_vector(bias, n)?]),
        (Some(bias), None) => op::apply(name, MatmulAct(act), &[x, y, bias]),
        (None, _) => op::apply(name, MatmulAct(act), &[x, y]),
    }
}

/// The product alone, for gradients.
fn plain_product(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    product("matmul_act_bwd", x, y, None, Act::Identity)
}

/// The output's shape, or what is wrong with the arguments'.
fn output_shape(name: &str, x: &Layout, y: &Layout, bias: Option<&Layout>) -> Result<Shape> {
    let error = |expected: &str| {
        let (x, y) = (x.shape(), y.shape());
        let message = format!("got x of shape {x:?} and y of {y:?}, expected {expected}");
        Err(check::error(name, message))
    };
    let ([x_leading @ .., m, k], [y_leading @ .., inner, n]) = (x.dims(), y.dims()) else {
        return error("[.., m, k] and [.., k, n]");
    };
    if k != inner {
        return error(&format!("[.., {k}, n] for y"));
    }
    check_bias(name, *n, bias)?;
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
    check::fits_in_memory(name, "the result", &dims)?;
    Ok(dims.into())
}

/// [`matmul_act()`] as a CustomOp: of x and y, or of these and a bias.
#[derive(Clone, Copy, Debug)]
pub struct MatmulAct(pub Act);

custom_op!(MatmulAct: CustomOp2, CustomOp3);

impl Op for MatmulAct {
    signature!(NAME(x, y, bias));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let bias = args.get(2).map(|bias| bias.layout);
        output_shape(name, args[0].layout, args[1].layout, bias).map(drop)
    }
    kernels!(self, args => device::forward(self.0, args[0], args[1], args.get(2).copied()));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, y, bias) = (inputs[0], inputs[1], inputs.get(2).copied());
        let z = || product("matmul_act_bwd", x, y, bias, Act::Identity);
        let dz = grad_through_act(self.0, g, z)?;
        let dx = || sum_to(&plain_product(&dz, &y.t()?)?, x.shape());
        op::grads(inputs, &[&dx, &|| grad_y(x, y, &dz), &|| column_sums(&dz)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], args.get(2).copied(), self.0)
    }
}

/// `xᵀ·dz`
fn grad_y(x: &Tensor, y: &Tensor, dz: &Tensor) -> Result<Tensor> {
    let leading = |t: &Tensor| t.dims()[..t.rank() - 2].to_vec();
    // One y for all of x: one product, over the rows of the whole stack.
    if dz.rank() > 2 && leading(x) == leading(dz) && leading(y).iter().all(|&d| d == 1) {
        let dy = plain_product(&flatten_rows(x)?.t()?, &flatten_rows(dz)?)?;
        return dy.reshape(y.shape());
    }
    sum_to(&plain_product(&x.t()?, dz)?, y.shape())
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
    let shape = output_shape(NAME, x.layout(), y.layout(), None)?;
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
