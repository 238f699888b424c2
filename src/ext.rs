//! The ops as methods on [`Tensor`].

use crate::ops::quantize::{Quantized, Scheme};
use crate::ops::{self, Act, Mask, Window};
use candle_core::shape::Dim;
use candle_core::{Result, Tensor};
use candle_nn::{Conv1dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig};

/// A method pair for each activation without a parameter.
macro_rules! activations {
    ($($fused:ident, $inplace:ident = $act:expr;)*) => {$(
        #[doc = concat!("`", stringify!($act), "` out of place.")]
        fn $fused(&self) -> Result<Tensor> {
            self.act_fused($act)
        }
        #[doc = concat!("`", stringify!($act), "` in place.")]
        fn $inplace(&self) -> Result<()> {
            self.act_inplace($act)
        }
    )*};
}

/// A method for two tensors and one for a packed one, for each named GLU.
macro_rules! glus {
    ($($fused:ident = $glu:ident, $packed_fused:ident = $packed:ident;)*) => {$(
        #[doc = concat!("[`ops::", stringify!($glu), "`] with x as the gate.")]
        fn $fused(&self, up: &Tensor) -> Result<Tensor> {
            ops::$glu(self.tensor(), up)
        }
        #[doc = concat!("[`ops::", stringify!($packed), "`]")]
        fn $packed_fused(&self) -> Result<Tensor> {
            ops::$packed(self.tensor())
        }
    )*};
}

/// A method for each convolution.
macro_rules! convolutions {
    ($($fused:ident = $conv:ident($window:ty);)*) => {$(
        #[doc = concat!("[`ops::", stringify!($conv), "()`]")]
        fn $fused(
            &self,
            w: &Tensor,
            bias: Option<&Tensor>,
            window: $window,
            act: Act,
        ) -> Result<Tensor> {
            ops::$conv(self.tensor(), w, bias, window, act)
        }
    )*};
}

/// The ops of this crate as methods on a tensor.
///
/// Out-of-place methods end in `_fused`, so that they stand beside the tensor's own (`silu` next to
/// `silu_fused`); `_inplace` ones overwrite the tensor, for inference: they refuse a tensor that tracks
/// gradients, and give none to their other arguments.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::FusedTensorOps;
/// let x = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
/// let y = x.softmax_fused(1)?;
/// y.silu_inplace()?;
/// # candle_core::Result::Ok(())
/// ```
pub trait FusedTensorOps: private::AsTensor {
    /// `act(x)`, see [`ops::activation()`].
    fn act_fused(&self, act: Act) -> Result<Tensor> {
        ops::activation(self.tensor(), act)
    }
    /// `x = act(x)` in place.
    fn act_inplace(&self, act: Act) -> Result<()> {
        ops::activation_inplace(self.tensor(), act)
    }
    /// x, times `slope` where negative.
    fn leaky_relu_fused(&self, slope: f32) -> Result<Tensor> {
        self.act_fused(Act::LeakyRelu(slope))
    }
    /// [`Self::leaky_relu_fused`] in place.
    fn leaky_relu_inplace(&self, slope: f32) -> Result<()> {
        self.act_inplace(Act::LeakyRelu(slope))
    }
    activations! {
        relu_fused, relu_inplace = Act::Relu;
        relu2_fused, relu2_inplace = Act::Relu2;
        gelu_fused, gelu_inplace = Act::Gelu;
        gelu_erf_fused, gelu_erf_inplace = Act::GeluErf;
        silu_fused, silu_inplace = Act::Silu;
        sigmoid_fused, sigmoid_inplace = Act::Sigmoid;
        tanh_fused, tanh_inplace = Act::Tanh;
        softplus_fused, softplus_inplace = Act::Softplus;
    }

    /// `act(x + y)`; y broadcasts.
    fn add_act_fused(&self, y: &Tensor, act: Act) -> Result<Tensor> {
        ops::add_act(self.tensor(), y, act)
    }
    /// `x = act(x + y)` in place.
    fn add_act_inplace(&self, y: &Tensor, act: Act) -> Result<()> {
        ops::add_act_inplace(self.tensor(), y, act)
    }
    /// `act(x · y)`; y broadcasts.
    fn mul_act_fused(&self, y: &Tensor, act: Act) -> Result<Tensor> {
        ops::mul_act(self.tensor(), y, act)
    }
    /// `x = act(x · y)` in place.
    fn mul_act_inplace(&self, y: &Tensor, act: Act) -> Result<()> {
        ops::mul_act_inplace(self.tensor(), y, act)
    }
    /// `act(x + bias)` with a bias over the last dim.
    fn bias_act_fused(&self, bias: &Tensor, act: Act) -> Result<Tensor> {
        ops::bias_act(self.tensor(), bias, act)
    }
    /// `x = act(x + bias)` in place.
    fn bias_act_inplace(&self, bias: &Tensor, act: Act) -> Result<()> {
        ops::bias_act_inplace(self.tensor(), bias, act)
    }
    /// `max(x + y, 0)`
    fn add_relu_fused(&self, y: &Tensor) -> Result<Tensor> {
        ops::add_relu(self.tensor(), y)
    }
    /// `max(x · y, 0)`
    fn mul_relu_fused(&self, y: &Tensor) -> Result<Tensor> {
        ops::mul_relu(self.tensor(), y)
    }
    /// `act(x · scale + bias)`; scale and bias broadcast.
    fn affine_act_fused(&self, scale: &Tensor, bias: &Tensor, act: Act) -> Result<Tensor> {
        ops::affine_act(self.tensor(), scale, bias, act)
    }
    /// `x = act(x · scale + bias)` in place.
    fn affine_act_inplace(&self, scale: &Tensor, bias: &Tensor, act: Act) -> Result<()> {
        ops::affine_act_inplace(self.tensor(), scale, bias, act)
    }
    /// `act(x) · up`
    fn glu_fused(&self, up: &Tensor, act: Act) -> Result<Tensor> {
        ops::glu(self.tensor(), up, act)
    }
    /// `x = act(x) · up` in place.
    fn glu_inplace(&self, up: &Tensor, act: Act) -> Result<()> {
        ops::glu_inplace(self.tensor(), up, act)
    }
    /// `act(gate) · up` of the two halves of the last dim.
    fn glu_packed_fused(&self, act: Act) -> Result<Tensor> {
        ops::glu_packed(self.tensor(), act)
    }
    glus! {
        swiglu_fused = swiglu, swiglu_packed_fused = swiglu_packed;
        geglu_fused = geglu, geglu_packed_fused = geglu_packed;
        reglu_fused = reglu, reglu_packed_fused = reglu_packed;
    }

    /// `x·Wᵀ + bias`
    fn linear_fused(&self, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        ops::linear(self.tensor(), w, bias)
    }
    /// [`Self::linear_fused`] with a frozen weight and bias.
    fn frozen_linear_fused(&self, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        ops::frozen_linear(self.tensor(), w, bias)
    }
    /// `x·Wᵀ + bias + scale · (x·Aᵀ)·Bᵀ` with a frozen W and bias.
    fn lora_fused(
        &self,
        w: &Tensor,
        bias: Option<&Tensor>,
        a: &Tensor,
        b: &Tensor,
        scale: f32,
    ) -> Result<Tensor> {
        ops::lora(self.tensor(), w, bias, a, b, scale)
    }

    /// The codes and scales of x.
    fn quantize_fused(&self, scheme: Scheme) -> Result<Quantized> {
        ops::quantize(self.tensor(), scheme)
    }
    /// The numbers that the codes of x stand for, with the gradient of x itself.
    fn fake_quantize_fused(&self, scheme: Scheme) -> Result<Tensor> {
        ops::fake_quantize(self.tensor(), scheme)
    }
    /// `x·Wᵀ + bias` of x rounded to 8 bits and a weight of 1 or 2 bits.
    fn bitlinear_fused(&self, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
        ops::bitlinear(self.tensor(), w, bias)
    }
    /// `x·Wᵀ + bias` of x as it is and a weight of 1 to 8 bits.
    fn mixed_matmul_fused(&self, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
        ops::mixed_matmul(self.tensor(), w, bias)
    }

    /// `act(x·y + bias)`
    fn matmul_act_fused(&self, y: &Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
        ops::matmul_act(self.tensor(), y, bias, act)
    }
    /// `act(x·Wᵀ + bias)`
    fn linear_act_fused(&self, w: &Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
        ops::linear_act(self.tensor(), w, bias, act)
    }

    convolutions! {
        conv1d_fused = conv1d(Conv1dConfig);
        conv2d_fused = conv2d(impl Into<Window>);
        conv_transpose1d_fused = conv_transpose1d(ConvTranspose1dConfig);
        conv_transpose2d_fused = conv_transpose2d(ConvTranspose2dConfig);
    }

    /// Dropout with an explicit seed.
    fn dropout_fused(&self, p: f32, seed: u64) -> Result<Tensor> {
        ops::dropout(self.tensor(), p, seed)
    }
    /// [`Self::dropout_fused`] in place.
    fn dropout_inplace(&self, p: f32, seed: u64) -> Result<()> {
        ops::dropout_inplace(self.tensor(), p, seed)
    }
    /// `dropout(relu(x))`
    fn relu_dropout_fused(&self, p: f32, seed: u64) -> Result<Tensor> {
        ops::relu_dropout(self.tensor(), p, seed)
    }
    /// [`Self::relu_dropout_fused`] in place.
    fn relu_dropout_inplace(&self, p: f32, seed: u64) -> Result<()> {
        ops::relu_dropout_inplace(self.tensor(), p, seed)
    }
    /// `dropout(x) + residual`
    fn dropout_add_fused(&self, residual: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
        ops::dropout_add(self.tensor(), residual, p, seed)
    }

    /// Softmax over any dim.
    fn softmax_fused<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::softmax(self.tensor(), dim)
    }
    /// Softmax over the last dim.
    fn softmax_last_dim_fused(&self) -> Result<Tensor> {
        ops::softmax_last_dim(self.tensor())
    }
    /// Softmax over the last dim, in place.
    fn softmax_last_dim_inplace(&self) -> Result<()> {
        ops::softmax_last_dim_inplace(self.tensor())
    }
    /// Log-softmax over any dim.
    fn log_softmax_fused<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::log_softmax(self.tensor(), dim)
    }
    /// Log-softmax over the last dim, in place.
    fn log_softmax_last_dim_inplace(&self) -> Result<()> {
        ops::log_softmax_last_dim_inplace(self.tensor())
    }
    /// `softmax(scale · x + mask)` over the last dim.
    fn masked_softmax_fused(&self, scale: f32, mask: Mask) -> Result<Tensor> {
        ops::masked_softmax(self.tensor(), scale, mask)
    }
    /// [`Self::masked_softmax_fused`] in place.
    fn masked_softmax_inplace(&self, scale: f32, mask: Mask) -> Result<()> {
        ops::masked_softmax_inplace(self.tensor(), scale, mask)
    }

    /// RMS norm over the last dim.
    fn rms_norm_fused(&self, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        ops::rms_norm(self.tensor(), weight, eps)
    }
    /// [`Self::rms_norm_fused`] in place.
    fn rms_norm_inplace(&self, weight: Option<&Tensor>, eps: f32) -> Result<()> {
        ops::rms_norm_inplace(self.tensor(), weight, eps)
    }
    /// Layer norm over the last dim.
    fn layer_norm_fused(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<Tensor> {
        ops::layer_norm(self.tensor(), weight, bias, eps)
    }
    /// [`Self::layer_norm_fused`] in place.
    fn layer_norm_inplace(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<()> {
        ops::layer_norm_inplace(self.tensor(), weight, bias, eps)
    }
    /// `x + residual` and its RMS norm.
    fn add_rms_norm_fused(
        &self,
        residual: &Tensor,
        weight: Option<&Tensor>,
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        ops::add_rms_norm(self.tensor(), residual, weight, eps)
    }
    /// `x + residual` and its layer norm.
    fn add_layer_norm_fused(
        &self,
        residual: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        ops::add_layer_norm(self.tensor(), residual, weight, bias, eps)
    }
    /// `x / max(‖x‖₂, eps)` over the last dim.
    fn l2_norm_fused(&self, eps: f32) -> Result<Tensor> {
        ops::l2_norm(self.tensor(), eps)
    }
    /// [`Self::l2_norm_fused`] in place.
    fn l2_norm_inplace(&self, eps: f32) -> Result<()> {
        ops::l2_norm_inplace(self.tensor(), eps)
    }
    /// Group norm of `[batch, channels, ..]`.
    fn group_norm_fused(
        &self,
        num_groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<Tensor> {
        ops::group_norm(self.tensor(), num_groups, weight, bias, eps)
    }
    /// [`Self::group_norm_fused`] in place.
    fn group_norm_inplace(
        &self,
        num_groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Result<()> {
        ops::group_norm_inplace(self.tensor(), num_groups, weight, bias, eps)
    }

    /// The sum over the last dim, which is dropped.
    fn sum_last_dim_fused(&self) -> Result<Tensor> {
        ops::sum_last_dim(self.tensor())
    }
    /// The mean over the last dim, which is dropped.
    fn mean_last_dim_fused(&self) -> Result<Tensor> {
        ops::mean_last_dim(self.tensor())
    }
    /// The maximum over the last dim, which is dropped.
    fn max_last_dim_fused(&self) -> Result<Tensor> {
        ops::max_last_dim(self.tensor())
    }
    /// The sum of all elements.
    fn sum_all_fused(&self) -> Result<Tensor> {
        ops::sum_all(self.tensor())
    }
    /// The mean of all elements.
    fn mean_all_fused(&self) -> Result<Tensor> {
        ops::mean_all(self.tensor())
    }
    /// The largest element.
    fn max_all_fused(&self) -> Result<Tensor> {
        ops::max_all(self.tensor())
    }
}

impl FusedTensorOps for Tensor {}

/// Seals the trait: it grows with the ops.
mod private {
    use candle_core::Tensor;

    pub trait AsTensor {
        fn tensor(&self) -> &Tensor;
    }

    impl AsTensor for Tensor {
        fn tensor(&self) -> &Tensor {
            self
        }
    }
}
