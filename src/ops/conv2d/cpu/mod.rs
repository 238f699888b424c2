//! Convolutions on the CPU, in f32 whatever the dtype.
//!
//! ```text
//!     forward ───────────────────┬─ convolve ──┬─ Winograd ───────────────────────┬─ TileGemm, Output
//!     transposed ─┬─ (stride 1) ─┘             └─ by_gemm ───┬─ ImplicitGemm ─────┘
//!                 └─ (other strides) ──────────── by_phases ─┘
//!     weight_grad ─────────────────────────────── WeightGrad ──────────────────────── Panel
//! ```
//!
//! All of them read an image that is packed by polyphase.rs.

mod blocks;
mod epilogue;
mod forward;
mod image;
mod implicit_gemm;
mod polyphase;
mod tile;
mod transposed;
mod weight_cache;
mod weight_grad;
mod widen;
mod winograd;

pub use weight_cache::WeightCache;

use super::shape::Conv2dShape;
use super::{Conv2d, ConvAlgo, NAME};
use crate::act::Act;
use crate::cpu::element::Element;
use crate::cpu::{alloc, gather, with_float};
use crate::op::on_cpu::Arg;
use candle_core::{CpuStorage, Result, Shape};
use epilogue::Output;
use forward::by_gemm;
use image::Image;
use std::sync::Arc;
use transposed::{as_convolution, by_phases, flip_kernels};
use weight_grad::WeightGrad;
use widen::widened;
use winograd::{TransformedWeights, Winograd};

/// y of x, w and perhaps a bias, which have the dims of the shape: `Op::check` has compared them.
pub fn forward(conv: &Conv2d, shape: &Conv2dShape, args: &[Arg]) -> Result<(CpuStorage, Shape)> {
    let [(x, xl), (w, wl)] = [args[0], args[1]];
    let cache = conv.weight_cache.as_deref();
    let algo = conv.algo.on_cpu(NAME, shape, cache.is_some())?;
    with_float!(NAME, x, |x: &[T]| {
        let weights = gather::contiguous(w.as_slice::<T>()?, wl);
        let x = Image::new(x, xl);
        let write = |out: Output<T>| convolve(algo, shape, x, &weights, cache, out);
        // SAFETY: `convolve` writes every output.
        unsafe { output(shape.y_shape(), args.get(2), conv.act, write) }
    })
}

/// The transposed convolution: the shape's x, of its y, w and perhaps a bias, whose dims `Op::check` has compared.
pub fn transposed(act: Act, shape: &Conv2dShape, args: &[Arg]) -> Result<(CpuStorage, Shape)> {
    let [(y, yl), (w, wl)] = [args[0], args[1]];
    with_float!(NAME, y, |y: &[T]| {
        let weights = gather::contiguous(w.as_slice::<T>()?, wl);
        let y = Image::new(y, yl);
        let write = |out: Output<T>| {
            let Some(plain) = as_convolution(shape) else {
                return by_phases(shape, y, &weights, out);
            };
            let algo = ConvAlgo::Auto.on_cpu(NAME, &plain, false);
            let algo = algo.unwrap_or(ConvAlgo::ImplicitGemm);
            convolve(algo, &plain, y, &flip_kernels(shape, &weights), None, out)
        };
        // SAFETY: `convolve` and `by_phases` write every output.
        unsafe { output(shape.x_shape(), args.get(2), act, write) }
    })
}

/// The gradient of w, of x and the gradient of y, which have the dims of the shape: `Op::check` has compared them.
pub fn weight_grad(shape: &Conv2dShape, args: &[Arg]) -> Result<(CpuStorage, Shape)> {
    let [(x, xl), (g, gl)] = [args[0], args[1]];
    with_float!(NAME, x, |x: &[T]| {
        let grad = WeightGrad {
            shape: *shape,
            x: Image::new(x, xl),
            g: Image::new(g.as_slice::<T>()?, gl),
        };
        let sums = grad.run().into_iter().map(T::narrow).collect();
        Ok((T::wrap(sums), shape.w_shape()))
    })
}

/// A result of this shape.
///
/// # Safety
/// `write` writes all of the output that it is given.
unsafe fn output<T: Element>(
    shape: Shape,
    bias: Option<&Arg>,
    act: Act,
    write: impl FnOnce(Output<T>),
) -> Result<(CpuStorage, Shape)> {
    let bias = match bias {
        Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
        None => None,
    };
    let (batch, channels, height, width) = shape.dims4()?;
    let count = shape.elem_count();
    let fill = |data| {
        if count > 0 {
            let dims = [batch, channels, height * width];
            // SAFETY: `data` has room for all of the shape, until `fill` returns.
            write(unsafe { Output::new(data, dims, bias.as_deref(), act) })
        }
    };
    // SAFETY: the caller's `write` writes every output.
    let y = unsafe { alloc::build::<T>(count, fill) };
    Ok((T::wrap(y), shape))
}

/// Writes all outputs of a convolution.
fn convolve<T: Element>(
    algo: ConvAlgo,
    shape: &Conv2dShape,
    x: Image<T>,
    weights: &[T],
    cache: Option<&WeightCache>,
    out: Output<T>,
) {
    if algo != ConvAlgo::Winograd {
        return by_gemm(*shape, x, &widened(weights), out);
    }
    let transformed = match cache {
        Some(cache) => cache.winograd(shape, weights),
        None => Arc::new(TransformedWeights::new(shape, weights)),
    };
    let winograd = Winograd {
        shape: *shape,
        x,
        transformed: &transformed,
        weights,
        out,
    };
    winograd.run()
}
