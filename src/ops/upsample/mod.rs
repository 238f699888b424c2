//! Images and sequences resized: each output is the pixel of x that it lies on (nearest), or a mean of the four around it
//! (bilinear). Larger or smaller, by any factor.
//!
//! An output lies on the pixels that stock Candle's CPU finds, whose arithmetic in f64 the tables of [`axis`] repeat. Bilinear means
//! are computed in f32 and rounded once; the weights are rounded from f64.
//!
//! Backward: each pixel adds up the gradients of the outputs that it is a part of, times its weight in them, in f32 and in an order
//! that depends on the sizes alone.

mod axis;
mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod reference;

pub use reference::{reference_bilinear, reference_nearest};

use crate::check;
use crate::cpu::alloc;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use axis::Axis;
use candle_core::{Result, Shape, Tensor};

const NAME: &str = "upsample";

/// x `[batch, channels, length]` resized to `[batch, channels, size]`, each element the nearest of x, for f32, f16 and bf16 of any
/// layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::upsample_nearest1d;
/// let x = Tensor::new(&[[[1f32, 2.]]], &Device::Cpu)?;
/// let y = upsample_nearest1d(&x, 5)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 1., 2., 2.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn upsample_nearest1d(x: &Tensor, size: usize) -> Result<Tensor> {
    const NAME: &str = "upsample_nearest1d";
    let [_, _, _] = check::dims(NAME, "x", x, ["batch", "channels", "length"])?;
    let op = Upsample {
        size: [1, size],
        mode: Mode::Nearest,
    };
    op::apply(NAME, op, &[&x.unsqueeze(2)?])?.squeeze(2)
}

/// x `[batch, channels, height, width]` resized to these height and width, each pixel the nearest of x, for f32, f16 and bf16 of
/// any layout.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::upsample_nearest2d;
/// let x = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let y = upsample_nearest2d(&x, 2, 3)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 2., 1., 1., 2.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn upsample_nearest2d(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let op = Upsample {
        size: [height, width],
        mode: Mode::Nearest,
    };
    op::apply("upsample_nearest2d", op, &[x])
}

/// x `[batch, channels, height, width]` resized to these height and width by bilinear interpolation, for f32, f16 and bf16 of any
/// layout. With `align_corners` the centres of the corner pixels stay in their places; otherwise the borders of the image do.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::upsample_bilinear2d;
/// let x = Tensor::new(&[[[[1f32, 5.]]]], &Device::Cpu)?;
/// let y = upsample_bilinear2d(&x, 1, 4, false)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 2., 4., 5.]);
/// let y = upsample_bilinear2d(&x, 1, 5, true)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 2., 3., 4., 5.]);
/// # candle_core::Result::Ok(())
/// ```
pub fn upsample_bilinear2d(
    x: &Tensor,
    height: usize,
    width: usize,
    align_corners: bool,
) -> Result<Tensor> {
    let op = UpsampleBilinear2d {
        size: [height, width],
        align_corners,
        scale: None,
    };
    op::apply("upsample_bilinear2d", op.op(), &[x])
}

/// [`upsample_bilinear2d`] by factors, to sizes that are rounded down: places are computed by the factors then, as PyTorch's
/// `interpolate(scale_factor = ..)` does.
pub fn upsample_bilinear2d_with_scale(
    x: &Tensor,
    scale_height: f64,
    scale_width: f64,
    align_corners: bool,
) -> Result<Tensor> {
    const NAME: &str = "upsample_bilinear2d_with_scale";
    let names = ["batch", "channels", "height", "width"];
    let [_, _, height, width] = check::dims(NAME, "x", x, names)?;
    let scale = [scale_height, scale_width];
    check_scale(NAME, scale)?;
    let op = UpsampleBilinear2d {
        // What is too large for a usize is usize::MAX then, and refused.
        size: [
            (height as f64 * scale_height).floor() as usize,
            (width as f64 * scale_width).floor() as usize,
        ],
        align_corners,
        scale: Some(scale),
    };
    op::apply(NAME, op.op(), &[x])
}

/// [`upsample_nearest2d`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct UpsampleNearest2d {
    /// The height and width of the result.
    pub size: [usize; 2],
}

/// [`upsample_bilinear2d`] as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct UpsampleBilinear2d {
    /// The height and width of the result.
    pub size: [usize; 2],
    /// Whether the centres of the corner pixels stay in their places.
    pub align_corners: bool,
    /// The factors to compute places by, where they are not those of the sizes.
    pub scale: Option<[f64; 2]>,
}

impl UpsampleBilinear2d {
    fn op(self) -> Upsample {
        Upsample {
            size: self.size,
            mode: Mode::Bilinear {
                align_corners: self.align_corners,
                scale: self.scale,
            },
        }
    }
}

custom_op!(UpsampleNearest2d, "upsample_nearest2d": CustomOp1 => |op| Upsample { size: op.size, mode: Mode::Nearest });
custom_op!(UpsampleBilinear2d, "upsample_bilinear2d": CustomOp1 => |op| op.op());

/// How an output is made of pixels.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Nearest,
    Bilinear {
        align_corners: bool,
        scale: Option<[f64; 2]>,
    },
}

/// The kernels of [`UpsampleNearest2d`] and [`UpsampleBilinear2d`].
#[derive(Clone, Copy, Debug)]
struct Upsample {
    size: [usize; 2],
    mode: Mode,
}

fn check_scale(name: &str, scale: [f64; 2]) -> Result<()> {
    let message = format_args!("got scale {scale:?}, expected positive numbers");
    let is_scale = |scale: &f64| *scale > 0.0 && scale.is_finite();
    check::ensure(scale.iter().all(is_scale), name, message)
}

impl Upsample {
    fn check_sizes(&self, name: &str, x: Spec<'_>) -> Result<()> {
        self.check_x(name, x.dims())?;
        let result = self.y_dims(x.dims());
        check::fits_in_memory(name, "the result", &result)?;
        // A size may be a slip that no machine could follow, and allocating that much would take the process down.
        let bytes = result.iter().product::<usize>() * x.dtype.size_in_bytes();
        let memory = alloc::physical_memory();
        let message = format_args!(
            "got a result of shape {result:?}, {bytes} bytes, expected at most this machine's memory, {memory} bytes"
        );
        check::ensure(bytes <= memory, name, message)
    }

    fn check_x(&self, name: &str, x: &[usize]) -> Result<()> {
        let [_, _, height, width] = check::image(name, x)?;
        let message = format_args!("got x of shape {x:?}, expected a pixel at least");
        check::ensure(height > 0 && width > 0, name, message)?;
        let sizes = [height, width, self.size[0], self.size[1]];
        check::ensure(
            sizes.iter().all(|&n| n < u32::MAX as usize),
            name,
            format_args!(
                "got x of shape {x:?} and size {:?}, expected less than 2^32",
                self.size
            ),
        )?;
        if let Mode::Bilinear {
            scale: Some(scale), ..
        } = self.mode
        {
            check_scale(name, scale)?;
        }
        check::fits_in_memory(name, "x", x)
    }

    /// Of an x of four dims.
    fn y_dims(&self, x: &[usize]) -> [usize; 4] {
        [x[0], x[1], self.size[0], self.size[1]]
    }

    fn y_shape(&self, x: &Shape) -> Shape {
        self.y_dims(x.dims()).as_slice().into()
    }

    /// Whether each output is one pixel of x. Of the same size, it is the pixel in its place, by either mode.
    fn is_nearest(&self, x: &[usize]) -> bool {
        matches!(self.mode, Mode::Nearest) || self.size == [x[2], x[3]]
    }

    /// Rows and columns of an x whose dims have been checked.
    fn axes(&self, x: &[usize]) -> [Axis; 2] {
        [0, 1].map(|i| {
            let (input, output) = (x[2 + i], self.size[i]);
            match self.mode {
                Mode::Bilinear {
                    align_corners,
                    scale,
                } if !self.is_nearest(x) => {
                    Axis::bilinear(input, output, align_corners, scale.map(|scale| scale[i]))
                }
                _ => Axis::nearest(input, output),
            }
        })
    }
}

impl Op for Upsample {
    signature!(NAME(x));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.check_sizes(name, args[0])
    }
    kernels!(self, args => {
        let shape = args[0].1.shape();
        Ok((device::forward(self, args[0])?, self.y_shape(shape)))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let x = inputs[0];
        if g.elem_count() == 0 {
            return Ok(vec![Some(x.zeros_like()?)]);
        }
        let (op, x) = (*self, x.shape().clone());
        Ok(vec![Some(op::apply(
            "upsample_bwd",
            UpsampleBwd { op, x },
            &[g],
        )?)])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference::fallback(self, args[0])
    }
}

/// `g → dx`
#[derive(Clone, Debug)]
struct UpsampleBwd {
    op: Upsample,
    x: Shape,
}

impl Op for UpsampleBwd {
    signature!("upsample_bwd"(grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.op.check_x(name, self.x.dims())?;
        let expected = self.op.y_dims(self.x.dims());
        check::has_shape(name, "grad_out", args[0].layout, &expected)
    }
    kernels!(self, args => {
        let dims = self.x.dims();
        Ok((device::backward(&self.op, dims, args[0])?, self.x.clone()))
    });
}
