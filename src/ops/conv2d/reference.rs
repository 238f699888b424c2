//! The compositions of stock ops that convolutions replace: the specification, the tests' oracle, and what runs on a device
//! or dtype without a kernel.

use super::shape::Conv2dShape;
use super::transposed::NAME as TRANSPOSED;
use super::{Conv2dParams, NAME};
use crate::act::Act;
use crate::check;
use crate::ops::activation;
use candle_core::{DType, Device, Result, Tensor};

/// Stock's convolution where it has these params and no gradient is needed; else the reference.
pub(super) fn fallback(args: &[&Tensor], params: Conv2dParams, act: Act) -> Result<Tensor> {
    let (x, w, bias) = (args[0], args[1], args.get(2).copied());
    let Conv2dParams {
        padding: [padding, p],
        stride: [stride, s],
        dilation: [dilation, d],
        groups,
    } = params;
    let tracked = x.track_op() || w.track_op();
    let narrow = !matches!(x.dtype(), DType::F32 | DType::F64);
    // Stock fails to give some gradients, has no 16-bit convolutions on the CPU, and panics if there are no elements.
    if [p, s, d] != [padding, stride, dilation] || tracked || narrow || x.elem_count() == 0 {
        return reference(args, params, act);
    }
    let z = x.conv2d(w, padding, stride, dilation, groups)?;
    finish(z, bias, act)
}

fn finish(z: Tensor, bias: Option<&Tensor>, act: Act) -> Result<Tensor> {
    let z = match bias {
        Some(bias) => z.broadcast_add(&bias.reshape((1, (), 1, 1))?)?,
        None => z,
    };
    activation::reference(&z, act)
}

/// [`conv2d`](super::conv2d()) as a sum of products, one for each tap of the kernel. Stock's own convolution fails to give some gradients.
/// The arguments are x, w and perhaps a bias.
pub fn reference(args: &[&Tensor], params: Conv2dParams, act: Act) -> Result<Tensor> {
    let (x, w, bias) = (args[0], args[1], args.get(2).copied());
    let shape = Conv2dShape::new(NAME, x.dims(), w.dims(), params)?;
    let (kernel, output, [above, left]) = (shape.kernel, shape.output, shape.padding);
    let x = x.pad_with_zeros(2, above, above)?;
    // `index_select` takes contiguous tensors only.
    let x = x.pad_with_zeros(3, left, left)?.contiguous()?;
    let mut z: Option<Tensor> = None;
    for i in 0..kernel[0] {
        for j in 0..kernel[1] {
            let rows = x.index_select(&tap_indices(&shape, 0, i, x.device())?, 2)?;
            let x = rows.index_select(&tap_indices(&shape, 1, j, x.device())?, 3)?;
            let x = x.reshape((shape.batch, shape.groups, shape.c_in, output[0] * output[1]))?;
            let term = tap_weights(w, &shape, [i, j])?.broadcast_matmul(&x)?;
            z = Some(match z {
                Some(z) => (z + term)?,
                None => term,
            });
        }
    }
    let z = z.ok_or_else(|| check::error(NAME, "got an empty kernel, expected taps"))?;
    finish(z.reshape(shape.y_shape())?, bias, act)
}

/// One tap of the kernels: `[1, groups, c_out, c_in]`.
fn tap_weights(w: &Tensor, shape: &Conv2dShape, [i, j]: [usize; 2]) -> Result<Tensor> {
    let w = w.narrow(2, i, 1)?.narrow(3, j, 1)?.contiguous()?;
    w.reshape((1, shape.groups, shape.c_out, shape.c_in))
}

/// The rows (`dim` 0) or columns of the padded x that a tap reads for the outputs, in order.
fn tap_indices(shape: &Conv2dShape, dim: usize, tap: usize, device: &Device) -> Result<Tensor> {
    let at = |o| (o * shape.stride[dim] + tap * shape.dilation[dim]) as i64;
    let indices: Vec<i64> = (0..shape.output[dim]).map(at).collect();
    Tensor::new(indices, device)
}

/// [`conv_transpose2d`](super::conv_transpose2d()) as a sum of products, one for each tap of the kernel, each spread over the output.
/// The arguments are x, w and perhaps a bias.
pub fn transposed_reference(
    args: &[&Tensor],
    params: Conv2dParams,
    output_padding: [usize; 2],
    act: Act,
) -> Result<Tensor> {
    let (x, w, bias) = (args[0], args[1], args.get(2).copied());
    let shape = Conv2dShape::transposed(TRANSPOSED, x.dims(), w.dims(), params, output_padding)?;
    let (input, output, padding) = (shape.input, shape.output, shape.padding);
    let (batch, channels) = (shape.batch, shape.groups * shape.c_in);
    let padded = [0, 1].map(|i| input[i] + 2 * padding[i]);
    let x = x.reshape((batch, shape.groups, shape.c_out, output[0] * output[1]))?;
    let dims = (batch, channels, padded[0], padded[1]);
    let mut z = Tensor::zeros(dims, x.dtype(), x.device())?;
    for i in 0..shape.kernel[0] {
        for j in 0..shape.kernel[1] {
            let w = tap_weights(w, &shape, [i, j])?.transpose(2, 3)?;
            let term = w.contiguous()?.broadcast_matmul(&x)?;
            let term = term.reshape((batch, channels, output[0], output[1]))?;
            let rows = spread(&term, &shape, 0, i, padded[0])?;
            z = (z + spread(&rows, &shape, 1, j, padded[1])?)?;
        }
    }
    let z = z
        .narrow(2, padding[0], input[0])?
        .narrow(3, padding[1], input[1])?;
    finish(z, bias, act)
}

/// The rows (`dim` 0) or columns of `t` at the places of the padded result, `len` of them, that a tap leads to.
fn spread(t: &Tensor, shape: &Conv2dShape, dim: usize, tap: usize, len: usize) -> Result<Tensor> {
    let mut dims = t.dims().to_vec();
    dims[2 + dim] = len;
    let zeros = Tensor::zeros(dims, t.dtype(), t.device())?;
    zeros.index_add(&tap_indices(shape, dim, tap, t.device())?, t, 2 + dim)
}
