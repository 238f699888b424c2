//! Linear layers: `y = x·Wᵀ + bias`, with a weight that is frozen or trained.
//!
//! Backward: `dx = g·W`, `dW = gᵀ·x`, `dbias = Σ g` over the rows. A frozen weight gets no gradient, not even a
//! buffer for one. Products are accumulated in f32.

pub(crate) mod cpu;
#[cfg(feature = "metal")]
pub(crate) mod metal;

use crate::check;
use crate::layout::as_vector;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{Layout, Result, Shape, Tensor, D};

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
    apply(NAME, x, w, bias)
}

/// [`linear`] with a frozen weight and bias: differentiable in x alone, and nothing of the weight's size is ever
/// allocated for them.
pub fn frozen_linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    apply(
        "frozen_linear",
        x,
        &w.detach(),
        bias.map(Tensor::detach).as_ref(),
    )
}

fn apply(name: &'static str, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match (bias, w.dims()) {
        (Some(bias), &[out, _]) => {
            op::apply(name, Linear::default(), &[x, w, &as_vector(bias, out)?])
        }
        (Some(bias), _) => op::apply(name, Linear::default(), &[x, w, bias]),
        (None, _) => op::apply(name, Linear::default(), &[x, w]),
    }
}

/// `scale · x·Wᵀ`, differentiable in x.
pub(crate) fn frozen_product(x: &Tensor, w: &Tensor, scale: f32) -> Result<Tensor> {
    op::apply(NAME, Linear { scale }, &[x, &w.detach()])
}

/// A bias, if there is one.
pub(crate) type Bias<'a> = Option<&'a Tensor>;

/// x, W and bias are on one device.
pub(crate) fn same_device(op: &str, x: &Tensor, w: &Tensor, bias: Bias) -> Result<()> {
    check::same_device(op, Linear::ARGS, &[x, w, bias.unwrap_or(x)])
}

pub(crate) fn check_args(op: &str, x: &Tensor, w: &Tensor, bias: Bias) -> Result<()> {
    same_device(op, x, w, bias)?;
    let args: Vec<Spec> = [x, w].into_iter().chain(bias).map(Spec::from).collect();
    check::same_floats(op, Linear::ARGS, &args)?;
    check_layouts(op, x.layout(), w.layout(), bias.map(Tensor::layout))
}

/// The shapes of x `[.., in]`, W `[out, in]` and bias `[out]`.
pub(crate) fn check_layouts(op: &str, x: &Layout, w: &Layout, bias: Option<&Layout>) -> Result<()> {
    check::has_dims(op, x)?;
    let last = x.dims()[x.dims().len() - 1];
    match *w.dims() {
        [out, cols] if cols == last => {
            check_result(op, "the result", x, out)?;
            check_bias(op, out, bias)
        }
        ref shape => Err(check::error(
            op,
            format_args!(
                "got weight of shape {shape:?}, expected [out, {last}] for x's last dim of {last}"
            ),
        )),
    }
}

/// A tensor (called `name`) of x's shape, with `out` for its last dim, can be addressed.
pub(crate) fn check_result(op: &str, name: &str, x: &Layout, out: usize) -> Result<()> {
    // No fewer elements than the result has. Where they are few enough, its shape need not be made here.
    let most = x.shape().elem_count().checked_mul(out.max(1));
    match most.is_some_and(|most| 0 < most && most <= check::MOST_ELEMENTS) {
        true => Ok(()),
        false => check::fits_in_memory(op, name, output_shape(x, out).dims()),
    }
}

pub(crate) fn check_bias(op: &str, out: usize, bias: Option<&Layout>) -> Result<()> {
    match bias {
        Some(bias) => check::has_shape(op, "bias", bias, &[out]),
        None => Ok(()),
    }
}

/// [`linear`] as a CustomOp: `scale · x·Wᵀ` of x and W, `scale · x·Wᵀ + bias` of x, W and a bias.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::Linear;
/// let x = Tensor::new(&[10f32, 100.], &Device::Cpu)?;
/// let w = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// assert_eq!(x.apply_op2(&w, Linear { scale: 0.5 })?.to_vec1::<f32>()?, [105., 215.]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Multiplies the product, not the bias.
    pub scale: f32,
}

impl Default for Linear {
    /// The plain product.
    fn default() -> Self {
        Linear { scale: 1.0 }
    }
}

custom_op!(Linear: CustomOp2, CustomOp3);

impl Op for Linear {
    signature!(NAME(x, weight, bias));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let bias = args.get(2).map(|bias| bias.layout);
        check_layouts(name, args[0].layout, args[1].layout, bias)
    }
    kernels!(self, args => device::forward(args[0], args[1], args.get(2).copied(), self.scale));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, w) = (inputs[0], inputs[1]);
        let dx = || grad_x(w, g, self.scale);
        let dw = || grad_weight(x, g, self.scale);
        op::grads(inputs, &[&dx, &dw, &|| column_sums(g)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let y = reference(args[0], args[1], None)?;
        let y = match self.scale {
            1.0 => y,
            scale => (y * f64::from(scale))?,
        };
        match args.get(2) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// `scale · g·W`
pub(crate) fn grad_x(w: &Tensor, g: &Tensor, scale: f32) -> Result<Tensor> {
    frozen_product(g, &w.t()?, scale)
}

/// `scale · gᵀ·x`
pub(crate) fn grad_weight(x: &Tensor, g: &Tensor, scale: f32) -> Result<Tensor> {
    frozen_product(&flatten_rows(g)?.t()?, &flatten_rows(x)?.t()?, scale)
}

/// Σ over all dims but the last, as a product with ones.
pub(crate) fn column_sums(g: &Tensor) -> Result<Tensor> {
    let g = flatten_rows(g)?;
    let (rows, cols) = g.dims2()?;
    if rows == 0 {
        // Candle can't make a tensor of no ones on Metal.
        return Tensor::zeros(cols, g.dtype(), g.device());
    }
    let ones = Tensor::ones(rows, g.dtype(), g.device())?;
    frozen_product(&ones, &g.t()?, 1.0)
}

/// All dims but the last as one.
pub(crate) fn flatten_rows(x: &Tensor) -> Result<Tensor> {
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
    let y = flatten_rows(x)?.matmul(&w.t()?)?;
    let y = match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    };
    y.reshape(output_shape(x.layout(), out))
}
