//! Convolutions of images: `y = act(x ∗ w + bias)`.
//!
//! Backward, with `dz = g · act′(z)`: dx is the transposed convolution of dz with w, dw the correlation of x with dz, dbias
//! the sum of dz over batch and image. Sums are in f32 and rounded once.

mod algo;
mod conv1d;
mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod params;
mod reference;
mod shape;
mod transposed;

pub use algo::ConvAlgo;
pub use conv1d::{conv1d, conv_transpose1d};
pub use params::Conv2dParams;
pub use reference::{reference, transposed_reference};
pub use transposed::{conv_transpose2d, ConvTranspose2d};

use super::activation::{activation, grad_through_act};
use super::matmul_act::linear_act;
use super::reduce::sum;
use crate::act::Act;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Arg, Grads, Op, Spec};
use candle_core::{DType, Device, Result, Tensor};
use shape::Conv2dShape;
use std::sync::Arc;

const NAME: &str = "conv2d";
const ARGS: &[&str] = &["x", "weight", "bias"];

/// `act(x ∗ w + bias)` for x `[batch, channels, height, width]`, w `[out, channels / groups, height, width]` and bias
/// `[out]`, differentiable in all of them. `params` is a [`Conv2dParams`] or one of Candle's configs.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{conv2d, Act};
/// use candle_nn::Conv2dConfig;
/// let x = Tensor::ones((1, 3, 4, 4), DType::F32, &Device::Cpu)?;
/// let w = (Tensor::ones((1, 3, 3, 3), DType::F32, &Device::Cpu)? * 0.5)?;
/// let config = Conv2dConfig { padding: 1, ..Default::default() };
/// let y = conv2d(&x, &w, None, config, Act::Relu)?;
/// let row = y.flatten_to(2)?.get(0)?.to_vec1::<f32>()?;
/// assert_eq!(row, [6., 9., 9., 6.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn conv2d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    params: impl Into<Conv2dParams>,
    act: Act,
) -> Result<Tensor> {
    Conv2d::new(params, act, ConvAlgo::Auto).apply(NAME, &with_bias(x, w, bias))
}

/// [`conv2d()`] by a given algorithm.
pub fn conv2d_with(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    params: impl Into<Conv2dParams>,
    act: Act,
    algo: ConvAlgo,
) -> Result<Tensor> {
    Conv2d::new(params, act, algo).apply("conv2d_with", &with_bias(x, w, bias))
}

/// [`conv2d()`] as a CustomOp of x and w, or of x, w and bias.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{Act, Conv2d, Conv2dParams, ConvAlgo};
/// let x = Tensor::ones((1, 3, 4, 4), DType::F32, &Device::Cpu)?;
/// let w = Tensor::ones((2, 3, 3, 3), DType::F32, &Device::Cpu)?;
/// let conv = Conv2d::new(Conv2dParams::default(), Act::Identity, ConvAlgo::Auto);
/// assert_eq!(x.apply_op2(&w, conv)?.flatten_all()?.to_vec1::<f32>()?, [27f32; 8]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    pub params: Conv2dParams,
    pub act: Act,
    pub algo: ConvAlgo,
    weight_cache: Option<Arc<cpu::WeightCache>>,
}

impl Conv2d {
    pub fn new(params: impl Into<Conv2dParams>, act: Act, algo: ConvAlgo) -> Self {
        Conv2d {
            params: params.into(),
            act,
            algo,
            weight_cache: None,
        }
    }

    /// Keeps what the CPU makes of a weight (its Winograd transform) for the next calls of this op and its clones: worth it
    /// for a weight that stays the same. With another weight, or one that has been overwritten, it is made anew.
    pub fn with_weight_cache(self) -> Self {
        Conv2d {
            weight_cache: Some(Arc::default()),
            ..self
        }
    }

    /// The algorithm that runs for x and w: never `Auto`, and never one that can't compute this convolution on x's device.
    /// (As a function or layer, `Auto` computes a convolution whose kernel covers the whole image by
    /// [`linear_act`](crate::ops::linear_act) instead.)
    pub fn algorithm(&self, x: &Tensor, w: &Tensor) -> Result<ConvAlgo> {
        let shape = Conv2dShape::new(NAME, x.dims(), w.dims(), self.params)?;
        self.algorithm_on(NAME, &shape, x.device(), x.dtype())
    }

    fn algorithm_on(
        &self,
        name: &str,
        shape: &Conv2dShape,
        device: &Device,
        dtype: DType,
    ) -> Result<ConvAlgo> {
        match device.is_metal() {
            true => self.algo.on_metal(name, shape, dtype),
            false => self.algo.on_cpu(name, shape, self.weight_cache.is_some()),
        }
    }

    /// The checked shape of a call.
    fn shape(&self, name: &str, args: &[Spec<'_>]) -> Result<Conv2dShape> {
        check::same_floats(name, ARGS, args)?;
        let shape = Conv2dShape::new(name, args[0].dims(), args[1].dims(), self.params)?;
        shape.check_memory(name, args[0].dtype)?;
        check_bias(name, shape.groups * shape.c_out, args.get(2))?;
        Ok(shape)
    }

    /// The shape of a call whose arguments have been checked.
    fn shape_of<S>(&self, args: &[Arg<'_, S>]) -> Result<Conv2dShape> {
        Conv2dShape::new(NAME, args[0].1.dims(), args[1].1.dims(), self.params)
    }

    /// The op's result, on behalf of the function `name`. The arguments are x, w and perhaps a bias.
    pub(crate) fn apply(self, name: &'static str, args: &[&Tensor]) -> Result<Tensor> {
        check::same_device(name, ARGS, args)?;
        let shape = self.shape(name, &op::specs(args))?;
        let (x, w, bias) = (args[0], args[1], args.get(2).copied());
        self.algorithm_on(name, &shape, x.device(), x.dtype())?;
        if check::has_kernel(x) {
            if self.algo == ConvAlgo::Auto && shape.is_product() {
                let (x, w) = (x.flatten_from(1)?, w.flatten_from(1)?);
                return linear_act(&x, &w, bias, self.act)?.reshape(shape.y_shape());
            }
            // The activation's backward needs its input.
            if self.act != Act::Identity && args.iter().any(|t| t.track_op()) {
                let z = self.without_act().apply(name, args)?;
                return activation(&z, self.act);
            }
        }
        op::apply(name, self, args)
    }

    fn without_act(&self) -> Self {
        Conv2d {
            act: Act::Identity,
            ..self.clone()
        }
    }
}

custom_op!(Conv2d: CustomOp2, CustomOp3);

impl Op for Conv2d {
    const NAME: &'static str = NAME;
    const ARGS: &'static [&'static str] = ARGS;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.shape(name, args).map(drop)
    }

    kernels!(self, args => device::forward(self, &self.shape_of(args)?, args));

    fn bwd(&self, inputs: &[&Tensor], _y: &Tensor, g: &Tensor) -> Grads {
        let (x, w) = (inputs[0].detach(), inputs[1].detach());
        let z = |args: &[&Tensor]| self.without_act().apply(NAME, args);
        let dz = grad_before_act(self.act, inputs, g, z)?;
        let shape = Conv2dShape::new(NAME, x.dims(), w.dims(), self.params)?;
        let dx = || match x.elem_count() {
            0 => x.zeros_like(),
            _ => {
                let transposed = ConvTranspose2d::gradient_of(&shape);
                op::apply(transposed::NAME, transposed, &[&dz, &w])
            }
        };
        let dw = || op::apply(WeightGrad::NAME, WeightGrad(shape), &[&x, &dz]);
        op::grads(inputs, &[&dx, &dw, &|| channel_sums(&dz)])
    }

    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference::fallback(args, self.params, self.act)
    }
}

/// The gradient of the weight of a convolution, of x and the gradient of y: their correlation, with images for channels.
#[derive(Clone, Copy, Debug)]
struct WeightGrad(Conv2dShape);

impl Op for WeightGrad {
    signature!("conv2d_bwd_weight"(x, grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let expected = [self.0.x_shape(), self.0.y_shape()];
        for ((arg, expected), argument) in args.iter().zip(expected).zip(Self::ARGS) {
            if *arg.shape() != expected {
                let got = arg.shape();
                let message = format!("got {argument} of shape {got:?}, expected {expected:?}");
                return Err(check::error(name, message));
            }
        }
        Ok(())
    }

    kernels!(self, args => device::weight_grad(&self.0, args));
}

/// The arguments of a convolution.
pub(crate) fn with_bias<'a>(
    x: &'a Tensor,
    w: &'a Tensor,
    bias: Option<&'a Tensor>,
) -> Vec<&'a Tensor> {
    [x, w].into_iter().chain(bias).collect()
}

/// The gradient of z of a convolution `act(z)`, where `z` computes it once more from the arguments, outside the graph.
fn grad_before_act(
    act: Act,
    inputs: &[&Tensor],
    g: &Tensor,
    z: impl FnOnce(&[&Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    let detached: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    grad_through_act(act, g, || z(&detached.iter().collect::<Vec<_>>()))
}

/// A bias has one element for each channel of the result.
fn check_bias(name: &str, channels: usize, bias: Option<&Spec<'_>>) -> Result<()> {
    bias.map_or(Ok(()), |&bias| {
        check::has_shape(name, "bias", bias.layout, &[channels])
    })
}

/// The sum over batch and image.
fn channel_sums(g: &Tensor) -> Result<Tensor> {
    let others: Vec<usize> = (0..g.rank()).filter(|&d| d != 1).collect();
    sum(g, others)
}
