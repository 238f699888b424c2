//! Methods on a tensor, for ops that Candle's `Tensor` has no method for or loses the gradients of, and for in-place forms.

use crate::ops::{self, Act, Mask, Pool2dParams};
use candle_core::shape::{Dim, Dims};
use candle_core::{DType, Result, Tensor, ToUsize2};

/// Stamps methods that call the function of the same name in [`ops`].
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident = $function:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        $(#[$doc])*
        fn $method(&self, $($arg: $ty),*) -> Result<$out> {
            ops::$function(self.tensor(), $($arg),*)
        }
    )*};
}

/// Stamps the fused forms of Candle's own methods. Of dtypes that no op of ours takes (integers, and floats of 8 bits), Candle's
/// method is called.
macro_rules! drop_ins {
    ($($(#[$doc:meta])* $method:ident = $stock:ident$(<$($generic:ident: $bound:ident),+>)?($($arg:ident: $ty:ty),*) => |$x:ident| $fused:expr;)*) => {$(
        $(#[$doc])*
        fn $method$(<$($generic: $bound),+>)?(&self, $($arg: $ty),*) -> Result<Tensor> {
            let $x = self.tensor();
            match $x.dtype() {
                DType::F16 | DType::BF16 | DType::F32 | DType::F64 => $fused,
                _ => $x.$stock($($arg),*),
            }
        }
    )*};
}

/// Ops of this crate as methods on a tensor: those that Candle has no method for, those whose method loses gradients, and in-place
/// forms.
///
/// Out-of-place methods end in `_fused`, so that they never hide one that Candle adds. `_inplace` ones overwrite the tensor,
/// for inference: they refuse a tensor that tracks gradients, and give none to their other arguments. All other ops are
/// functions in [`ops`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::{ops::Act, FusedTensorOps};
/// let x = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
/// let y = x.softmax_fused(1)?;
/// y.act_inplace(Act::Silu)?;
/// # candle_core::Result::Ok(())
/// ```
pub trait FusedTensorOps: sealed::Sealed {
    /// Softmax over any dim.
    fn softmax_fused<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::softmax(self.tensor(), dim)
    }
    /// Log-softmax over any dim.
    fn log_softmax_fused<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::log_softmax(self.tensor(), dim)
    }

    /// Σ x over one or several dims, which are dropped.
    fn sum_fused<D: Dims>(&self, dims: D) -> Result<Tensor> {
        ops::sum(self.tensor(), dims)
    }
    /// The mean over one or several dims, which are dropped.
    fn mean_fused<D: Dims>(&self, dims: D) -> Result<Tensor> {
        ops::mean(self.tensor(), dims)
    }
    /// The maximum over one or several dims, which are dropped.
    fn max_fused<D: Dims>(&self, dims: D) -> Result<Tensor> {
        ops::max(self.tensor(), dims)
    }

    /// The same numbers in another dtype, fast between f32, f16 and bf16.
    fn cast_fused(&self, dtype: DType) -> Result<Tensor> {
        ops::cast(self.tensor(), dtype)
    }

    drop_ins! {
        /// The maximum of each window of `[batch, channels, height, width]`; windows lie side by side.
        max_pool2d_fused = max_pool2d<T: ToUsize2>(size: T) => |x| ops::max_pool2d(x, Pool2dParams::new(size));
        /// As `max_pool2d_fused`, with windows that are `stride` pixels apart.
        max_pool2d_with_stride_fused = max_pool2d_with_stride<T: ToUsize2>(kernel_size: T, stride: T) => |x| {
            ops::max_pool2d(x, Pool2dParams::new(kernel_size).with_stride(stride))
        };
        /// The mean of each window of `[batch, channels, height, width]`; windows lie side by side.
        avg_pool2d_fused = avg_pool2d<T: ToUsize2>(size: T) => |x| ops::avg_pool2d(x, Pool2dParams::new(size));
        /// As `avg_pool2d_fused`, with windows that are `stride` pixels apart.
        avg_pool2d_with_stride_fused = avg_pool2d_with_stride<T: ToUsize2>(kernel_size: T, stride: T) => |x| {
            ops::avg_pool2d(x, Pool2dParams::new(kernel_size).with_stride(stride))
        };
        /// `[batch, channels, length]` resized, each element the nearest.
        upsample_nearest1d_fused = upsample_nearest1d(size: usize) => |x| ops::upsample_nearest1d(x, size);
        /// `[batch, channels, height, width]` resized, each pixel the nearest.
        upsample_nearest2d_fused = upsample_nearest2d(height: usize, width: usize) => |x| {
            ops::upsample_nearest2d(x, height, width)
        };
        /// `[batch, channels, height, width]` resized by bilinear interpolation.
        upsample_bilinear2d_fused = upsample_bilinear2d(height: usize, width: usize, align_corners: bool) => |x| {
            ops::upsample_bilinear2d(x, height, width, align_corners)
        };
        /// As `upsample_bilinear2d_fused`, by factors.
        upsample_bilinear2d_with_scale_fused =
            upsample_bilinear2d_with_scale(scale_height: f64, scale_width: f64, align_corners: bool) => |x| {
                ops::upsample_bilinear2d_with_scale(x, scale_height, scale_width, align_corners)
            };
    }

    methods! {
        /// `x = act(x)` in place.
        act_inplace = activation_inplace(act: Act) -> ();
        /// `act(x + y)`; y broadcasts.
        add_act_fused = add_act(y: &Tensor, act: Act) -> Tensor;
        /// `x = act(x + y)` in place.
        add_act_inplace = add_act_inplace(y: &Tensor, act: Act) -> ();
        /// `act(x · y)`; y broadcasts.
        mul_act_fused = mul_act(y: &Tensor, act: Act) -> Tensor;
        /// `x = act(x · y)` in place.
        mul_act_inplace = mul_act_inplace(y: &Tensor, act: Act) -> ();
        /// `x = act(x + bias)` in place, with a bias over the last dim.
        bias_act_inplace = bias_act_inplace(bias: &Tensor, act: Act) -> ();
        /// `act(x · scale + bias)`; scale and bias broadcast.
        affine_act_fused = affine_act(scale: &Tensor, bias: &Tensor, act: Act) -> Tensor;
        /// `x = act(x · scale + bias)` in place.
        affine_act_inplace = affine_act_inplace(scale: &Tensor, bias: &Tensor, act: Act) -> ();
        /// `act(x) · up`
        glu_fused = glu(up: &Tensor, act: Act) -> Tensor;
        /// `x = act(x) · up` in place.
        glu_inplace = glu_inplace(up: &Tensor, act: Act) -> ();
        /// `act(gate) · up` of the two halves of the last dim.
        glu_packed_fused = glu_packed(act: Act) -> Tensor;
        /// Dropout with an explicit seed.
        dropout_fused = dropout(p: f32, seed: u64) -> Tensor;
        /// Dropout in place.
        dropout_inplace = dropout_inplace(p: f32, seed: u64) -> ();
        /// `dropout(relu(x))` in place.
        relu_dropout_inplace = relu_dropout_inplace(p: f32, seed: u64) -> ();
        /// Softmax over the last dim, in place.
        softmax_last_dim_inplace = softmax_last_dim_inplace() -> ();
        /// Log-softmax over the last dim, in place.
        log_softmax_last_dim_inplace = log_softmax_last_dim_inplace() -> ();
        /// `softmax(scale · x + mask)` over the last dim.
        masked_softmax_fused = masked_softmax(scale: f32, mask: Mask<'_>) -> Tensor;
        /// `x = softmax(scale · x + mask)` over the last dim, in place.
        masked_softmax_inplace = masked_softmax_inplace(scale: f32, mask: Mask<'_>) -> ();
        /// RMS norm over the last dim.
        rms_norm_fused = rms_norm(weight: Option<&Tensor>, eps: f32) -> Tensor;
        /// RMS norm in place.
        rms_norm_inplace = rms_norm_inplace(weight: Option<&Tensor>, eps: f32) -> ();
        /// Layer norm over the last dim.
        layer_norm_fused = layer_norm(weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Tensor;
        /// Layer norm in place.
        layer_norm_inplace = layer_norm_inplace(weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> ();
        /// `x / max(‖x‖₂, eps)` over the last dim.
        l2_norm_fused = l2_norm(eps: f32) -> Tensor;
        /// `x / max(‖x‖₂, eps)` in place.
        l2_norm_inplace = l2_norm_inplace(eps: f32) -> ();
        /// Group norm of `[batch, channels, ..]`.
        group_norm_fused = group_norm(groups: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Tensor;
        /// Group norm in place.
        group_norm_inplace = group_norm_inplace(groups: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> ();
    }
}

impl FusedTensorOps for Tensor {}

/// Seals the trait: it grows with the ops.
mod sealed {
    use candle_core::Tensor;

    pub trait Sealed {
        fn tensor(&self) -> &Tensor;
    }

    impl Sealed for Tensor {
        fn tensor(&self) -> &Tensor {
            self
        }
    }
}
