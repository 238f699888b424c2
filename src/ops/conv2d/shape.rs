//! The sizes of a convolution, checked.

use super::Conv2dParams;
use crate::check;
use crate::cpu::alloc;
use candle_core::{DType, Result, Shape};

/// Elements of an image with its padding (256 MB in f32) that are accepted however small the image and the machine are. Most
/// models stay far below: dilation 36 on 33 by 33 pixels of 2048 channels has 2^24.5.
const SMALL_PADDED: usize = 1 << 26;
/// Elements of all images with their padding that are accepted of small images on a machine with much memory: 4 GB in f32,
/// which take seconds to pack.
const MAX_PADDED: usize = 1 << 30;

/// A convolution of x `[batch, groups · c_in, ..input]` with w `[groups · c_out, c_in, ..kernel]` to y `[batch, groups ·
/// c_out, ..output]`. It also describes the gradient of w, made of x and y's gradient, and the gradient of x, made of w and
/// y's gradient, which is the transposed convolution.
///
/// Only [`Conv2dShape::new`] and [`Conv2dShape::transposed`] make one. Of a shape of theirs:
/// - the outputs' windows lie within the padded input: `(output − 1) · stride + span ≤ input + 2 · padding`;
/// - no product of dims of x, w or y overflows, nor does the size of one of them in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    pub batch: usize,
    pub groups: usize,
    pub c_in: usize,
    pub c_out: usize,
    pub input: [usize; 2],
    pub kernel: [usize; 2],
    pub output: [usize; 2],
    /// 1 where there is a single output.
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    /// 1 where the kernel has a single element.
    pub dilation: [usize; 2],
}

impl Conv2dShape {
    /// Of the dims of x and w. Errors name the function `name`.
    pub fn new(name: &str, x: &[usize], w: &[usize], params: Conv2dParams) -> Result<Self> {
        let [x, w] = checked_dims(name, x, w, params)?;
        let Conv2dParams {
            padding,
            stride,
            dilation,
            groups,
        } = params;
        if w[0] % groups != 0 || w[1].checked_mul(groups) != Some(x[1]) {
            let message = format!(
                "got weight {w:?} for x with {} channels in {groups} groups, expected [a multiple of {groups}, {} / {groups}, ..]",
                x[1], x[1],
            );
            return Err(check::error(name, message));
        }
        let output = |i: usize| {
            let room = padding[i].checked_mul(2)?.checked_add(x[2 + i])?;
            let last = room.checked_sub(span(w[2 + i], dilation[i])?)?;
            Some(last / stride[i] + 1)
        };
        let (Some(height), Some(width)) = (output(0), output(1)) else {
            let message = format!(
                "got a kernel of {:?} with dilation {dilation:?}, expected at most the {:?} of x with padding {padding:?}",
                &w[2..],
                &x[2..],
            );
            return Err(check::error(name, message));
        };
        Self::of_sizes(name, params, x[0], w, [x[2], x[3]], [height, width])
    }

    /// The convolution that the transposed one of y with w is the gradient of: its x is the result. `output_padding` is
    /// added at the ends of the result.
    pub fn transposed(
        name: &str,
        y: &[usize],
        w: &[usize],
        params: Conv2dParams,
        output_padding: [usize; 2],
    ) -> Result<Self> {
        let [y, w] = checked_dims(name, y, w, params)?;
        if w[0] != y[1] || w[0] % params.groups != 0 {
            let message = format!(
                "got weight {w:?} for x with {} channels in {groups} groups, expected [{}, ..], a multiple of {groups}",
                y[1], y[1], groups = params.groups,
            );
            return Err(check::error(name, message));
        }
        let input = |i: usize| {
            let last = y[2 + i].checked_sub(1)?.checked_mul(params.stride[i])?;
            let end = last.checked_add(span(w[2 + i], params.dilation[i])?)?;
            let end = end.checked_add(output_padding[i])?;
            let cut = params.padding[i].checked_mul(2)?;
            end.checked_sub(cut).filter(|&size| size > 0)
        };
        let (Some(height), Some(width)) = (input(0), input(1)) else {
            let message = format!(
                "got x of {:?}, a kernel of {:?}, stride {:?}, dilation {:?}, padding {:?} and output padding {output_padding:?}, \
                 expected a result of at least one pixel that can be addressed",
                &y[2..],
                &w[2..],
                params.stride,
                params.dilation,
                params.padding,
            );
            return Err(check::error(name, message));
        };
        Self::of_sizes(name, params, y[0], w, [height, width], [y[2], y[3]])
    }

    /// Of w's dims and the sizes of images of x and y.
    fn of_sizes(
        name: &str,
        params: Conv2dParams,
        batch: usize,
        w: [usize; 4],
        input: [usize; 2],
        output: [usize; 2],
    ) -> Result<Self> {
        let kernel = [w[2], w[3]];
        let shape = Conv2dShape {
            batch,
            groups: params.groups,
            c_in: w[1],
            c_out: w[0] / params.groups,
            input,
            kernel,
            output,
            stride: steps(output, params.stride),
            padding: params.padding,
            dilation: steps(kernel, params.dilation),
        };
        shape.check_sizes(name)?;
        Ok(shape)
    }

    /// Whether x, w and y can be addressed, in the widest dtype. A dim of 0 counts as 1, so that no product of some of the
    /// dims overflows either.
    fn check_sizes(&self, name: &str) -> Result<()> {
        let names = ["x", "weight", "the result"].into_iter();
        names.zip(self.dims()).try_for_each(|(argument, dims)| {
            check::fits_in_memory(name, argument, &dims.map(|dim| dim.max(1)))
        })
    }

    /// Whether this machine can compute the convolution in that dtype: x, w and y fit in its memory, which a Mac's GPU shares,
    /// and the padded images are not much larger than the images or the result, or small beside the memory. Padding is
    /// read like pixels, so that an absurd one takes forever; and the weight's gradient and the reference store it.
    pub fn check_memory(&self, name: &str, dtype: DType) -> Result<()> {
        let memory = alloc::physical_memory();
        for dims in self.dims() {
            let bytes = dims.iter().product::<usize>() * dtype.size_in_bytes();
            if bytes > memory {
                let message = format!(
                    "got a convolution with a tensor of shape {dims:?}, {bytes} bytes, expected at most this machine's memory, \
                     {memory} bytes"
                );
                return Err(check::error(name, message));
            }
        }
        let channels = self.groups * self.c_in.max(self.c_out);
        let elements =
            |[height, width]: [usize; 2]| channels.checked_mul(height)?.checked_mul(width);
        // No overflow: these are sums that the constructors have checked.
        let padded = [0, 1].map(|i| self.input[i] + 2 * self.padding[i]);
        let most = elements(self.input).max(elements(self.output)).unwrap_or(0);
        // A quarter of the memory in f64, the widest dtype.
        let small = (memory / (4 * size_of::<f64>())).min(MAX_PADDED) / self.batch.max(1);
        let most = most.saturating_mul(16).max(SMALL_PADDED).max(small);
        match elements(padded) {
            Some(n) if n <= most => Ok(()),
            _ => {
                let (padding, input) = (self.padding, self.input);
                let message = format!(
                    "got padding {padding:?} around images of {input:?} with {channels} channels, expected at most {most} elements \
                     with padding"
                );
                Err(check::error(name, message))
            }
        }
    }

    /// The dims of x, w and y, with groups apart.
    fn dims(&self) -> [[usize; 5]; 3] {
        let [batch, groups, c_in, c_out] = [self.batch, self.groups, self.c_in, self.c_out];
        let ([h, w], [kernel_h, kernel_w], [y_h, y_w]) = (self.input, self.kernel, self.output);
        [
            [batch, groups, c_in, h, w],
            [groups, c_out, c_in, kernel_h, kernel_w],
            [batch, groups, c_out, y_h, y_w],
        ]
    }

    pub fn params(&self) -> Conv2dParams {
        Conv2dParams {
            padding: self.padding,
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
        }
    }

    pub fn x_shape(&self) -> Shape {
        let [h, w] = self.input;
        (self.batch, self.groups * self.c_in, h, w).into()
    }

    pub fn w_shape(&self) -> Shape {
        let [h, w] = self.kernel;
        (self.groups * self.c_out, self.c_in, h, w).into()
    }

    pub fn y_shape(&self) -> Shape {
        let [h, w] = self.output;
        (self.batch, self.groups * self.c_out, h, w).into()
    }

    /// How many more rows and columns of a phase (see cpu/polyphase.rs) an output reads than its own.
    pub fn halo(&self) -> [usize; 2] {
        [0, 1].map(|i| (self.kernel[i] - 1) * self.dilation[i] / self.stride[i])
    }

    /// Whether the kernel covers the whole image at its single place: the convolution is a product of matrices.
    pub fn is_product(&self) -> bool {
        let whole = |i: usize| self.kernel[i] == self.input[i] && self.output[i] == 1;
        let dense = |i: usize| self.dilation[i] == 1 && self.padding[i] == 0;
        self.groups == 1 && (0..2).all(|i| whole(i) && dense(i))
    }

    /// One pixel, convolved with a kernel of one element.
    #[cfg(test)]
    pub fn of_one_pixel() -> Self {
        let params = Conv2dParams::default();
        Conv2dShape::new("conv2d", &[1; 4], &[1; 4], params).unwrap()
    }

    /// Whether each kernel has one channel, and there are several groups.
    #[cfg(any(feature = "metal", test))]
    pub fn is_depthwise(&self) -> bool {
        self.c_in == 1 && self.groups > 1
    }
}

/// The stride of `n` outputs, or the dilation of `n` elements of a kernel. With `n = 1` no step is ever taken: its size
/// doesn't matter, and is made 1.
fn steps(n: [usize; 2], step: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|i| if n[i] == 1 { 1 } else { step[i] })
}

/// The pixels from the first element of a kernel to the last, both included.
fn span(kernel: usize, dilation: usize) -> Option<usize> {
    kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
}

/// The dims of the first argument and of w, which have rank 4. The kernel has elements, and no param is 0 that can't be.
fn checked_dims(
    name: &str,
    x: &[usize],
    w: &[usize],
    params: Conv2dParams,
) -> Result<[[usize; 4]; 2]> {
    let dims4 = |argument: &str, dims: &[usize]| match *dims {
        [a, b, c, d] => Ok([a, b, c, d]),
        _ => {
            let message = format!("got {argument} of shape {dims:?}, expected rank 4");
            Err(check::error(name, message))
        }
    };
    let (x, w) = (dims4("x", x)?, dims4("weight", w)?);
    let Conv2dParams {
        stride,
        dilation,
        groups,
        ..
    } = params;
    if stride.contains(&0) || dilation.contains(&0) || groups == 0 {
        let message = format!(
            "got stride {stride:?}, dilation {dilation:?} and {groups} groups, expected 1 or more of each"
        );
        return Err(check::error(name, message));
    }
    if w[2..].contains(&0) {
        let message = format!("got weight {w:?}, expected a kernel of 1 by 1 or more");
        return Err(check::error(name, message));
    }
    Ok([x, w])
}
