//! Transposed convolutions, which are the gradients of convolutions: `y = act(x ∗ᵀ w + bias)`.
//!
//! Backward, with `dz = g · act′(z)`: dx is the convolution of dz with w, dw the correlation of dz with x, dbias the sum of dz
//! over batch and image. Sums are in f32 and rounded once.

#[cfg(feature = "metal")]
use super::metal;
use super::shape::Conv2dShape;
use super::{
    activation, channel_sums, check_bias, cpu, grad_before_act, transposed_reference, with_bias,
    Conv2d, Conv2dParams, ConvAlgo, WeightGrad, ARGS,
};
use crate::act::Act;
use crate::check;
use crate::op::{self, custom_op, kernels, Grads, Op, Spec};
use candle_core::{Result, Tensor};
use candle_nn::ConvTranspose2dConfig;

pub const NAME: &str = "conv_transpose2d";

/// `act(x ∗ᵀ w + bias)` for x `[batch, channels, height, width]`, w `[channels, out, height, width]` and bias `[out]`,
/// differentiable in all of them.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{conv_transpose2d, Act};
/// use candle_nn::ConvTranspose2dConfig;
/// let x = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let w = Tensor::ones((1, 1, 1, 2), DType::F32, &Device::Cpu)?;
/// let config = ConvTranspose2dConfig { stride: 2, ..Default::default() };
/// let y = conv_transpose2d(&x, &w, None, config, Act::Identity)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 2., 2.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn conv_transpose2d(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    config: ConvTranspose2dConfig,
    act: Act,
) -> Result<Tensor> {
    let output_padding = [config.output_padding; 2];
    ConvTranspose2d::new(config, output_padding, act).apply(NAME, &with_bias(x, w, bias))
}

/// [`conv_transpose2d`] as a CustomOp of x and w, or of x, w and bias; with groups, too: w is `[channels, out / groups, height,
/// width]`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{Act, Conv2dParams, ConvTranspose2d};
/// let x = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let w = Tensor::ones((1, 1, 1, 2), DType::F32, &Device::Cpu)?;
/// let params = Conv2dParams { stride: [1, 2], ..Default::default() };
/// let y = x.apply_op2(&w, ConvTranspose2d::new(params, [0, 0], Act::Identity))?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 2., 2.]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose2d {
    pub params: Conv2dParams,
    /// Rows and columns that are added at the ends of the result.
    pub output_padding: [usize; 2],
    pub act: Act,
}

impl ConvTranspose2d {
    pub fn new(params: impl Into<Conv2dParams>, output_padding: [usize; 2], act: Act) -> Self {
        ConvTranspose2d {
            params: params.into(),
            output_padding,
            act,
        }
    }

    /// The gradient of x of a convolution, of y's gradient and w. The pixels at the ends of x that no window reaches are the
    /// output padding.
    pub(super) fn gradient_of(shape: &Conv2dShape) -> Self {
        let unread = |i: usize| {
            let last = (shape.output[i] - 1) * shape.stride[i];
            let read = last + (shape.kernel[i] - 1) * shape.dilation[i] + 1;
            shape.input[i] + 2 * shape.padding[i] - read
        };
        ConvTranspose2d::new(shape.params(), [unread(0), unread(1)], Act::Identity)
    }

    /// The shape, of the dims of x and w, of the convolution that this is the gradient of.
    fn shape_of(&self, name: &str, x: &[usize], w: &[usize]) -> Result<Conv2dShape> {
        Conv2dShape::transposed(name, x, w, self.params, self.output_padding)
    }

    /// The op's result, on behalf of the function `name`. The arguments are x, w and perhaps a bias.
    pub(super) fn apply(self, name: &'static str, args: &[&Tensor]) -> Result<Tensor> {
        let tracked = args.iter().any(|t| t.track_op());
        // The activation's backward needs its input.
        if self.act != Act::Identity && tracked && check::has_kernel(args[0]) {
            let z = op::apply(name, self.without_act(), args)?;
            return activation(&z, self.act);
        }
        op::apply(name, self, args)
    }

    fn without_act(&self) -> Self {
        ConvTranspose2d {
            act: Act::Identity,
            ..*self
        }
    }
}

custom_op!(ConvTranspose2d: CustomOp2, CustomOp3);

impl Op for ConvTranspose2d {
    const NAME: &'static str = NAME;
    const ARGS: &'static [&'static str] = ARGS;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, ARGS, args)?;
        let shape = self.shape_of(name, args[0].dims(), args[1].dims())?;
        shape.check_memory(name, args[0].dtype)?;
        check_bias(name, shape.groups * shape.c_in, args.get(2))
    }

    kernels!(self, args => {
        let shape = self.shape_of(NAME, args[0].1.dims(), args[1].1.dims())?;
        device::transposed(self.act, &shape, args)
    });

    fn bwd(&self, inputs: &[&Tensor], _y: &Tensor, g: &Tensor) -> Grads {
        let (x, w) = (inputs[0].detach(), inputs[1].detach());
        let z = |args: &[&Tensor]| self.without_act().apply(NAME, args);
        let dz = grad_before_act(self.act, inputs, g, z)?;
        let shape = self.shape_of(NAME, x.dims(), w.dims())?;
        let dx = || {
            let conv = Conv2d::new(shape.params(), Act::Identity, ConvAlgo::Auto);
            let dx = conv.apply(NAME, &[&dz, &w])?;
            // An output padding of a stride or more has room for further windows.
            let [rows, cols] = shape.output;
            dx.narrow(2, 0, rows)?.narrow(3, 0, cols)
        };
        let dw = || op::apply(WeightGrad::NAME, WeightGrad(shape), &[&dz, &x]);
        op::grads(inputs, &[&dx, &dw, &|| channel_sums(&dz)])
    }

    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        transposed_reference(args, self.params, self.output_padding, self.act)
    }
}
