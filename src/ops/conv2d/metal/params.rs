//! The parameters of the kernels.

use super::super::shape::Conv2dShape;
use crate::act::Act;
use crate::check;
use crate::metal::{image_strides, pair, WindowParams};
use candle_core::{Layout, Result};

/// `Conv2dParams` of conv2d_params.metal.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Params {
    x: [u64; 4],
    w: [u64; 4],
    y: [u64; 4],
    bias: u64,
    batch: u32,
    groups: u32,
    c_in: u32,
    c_out: u32,
    windows: WindowParams,
    dilation: [u32; 2],
    lattice: [u32; 2],
    has_bias: u32,
    act: u32,
    act_param: f32,
    parts: u32,
    share: u32,
}

/// `Conv2dColumns` of conv2d_mps.metal: a part of the columns of the im2col matrix.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Columns {
    conv: Params,
    image: u32,
    first: u32,
    pub columns: u32,
    unused: u32,
}

impl Columns {
    pub fn new(conv: Params, [image, first, columns]: [usize; 3]) -> Self {
        Columns {
            conv,
            image: image as u32,
            first: first as u32,
            columns: columns as u32,
            unused: 0,
        }
    }
}

impl Params {
    /// Without strides, bias and activation.
    pub fn new(op: &str, shape: &Conv2dShape) -> Result<Self> {
        check_sizes(op, shape)?;
        let lattice = [0, 1].map(|i| {
            let (stride, dilation) = (shape.stride[i], shape.dilation[i]);
            stride / gcd(stride, dilation)
        });
        Ok(Params {
            batch: shape.batch as u32,
            groups: shape.groups as u32,
            c_in: shape.c_in as u32,
            c_out: shape.c_out as u32,
            windows: WindowParams::new(
                shape.input,
                shape.kernel,
                shape.output,
                shape.stride,
                shape.padding,
            ),
            dilation: pair(shape.dilation),
            lattice: pair(lattice),
            parts: 1,
            ..Params::default()
        })
    }

    pub fn x(self, x: &Layout) -> Self {
        let x = image_strides(x);
        Params { x, ..self }
    }

    pub fn w(self, w: &Layout) -> Self {
        let w = image_strides(w);
        Params { w, ..self }
    }

    pub fn y(self, y: &Layout) -> Self {
        let y = image_strides(y);
        Params { y, ..self }
    }

    /// Cuts the sums of the weight's gradient into `parts` of `share` terms each.
    pub fn split(self, parts: usize, share: usize) -> Self {
        Params {
            parts: parts as u32,
            share: share as u32,
            ..self
        }
    }

    pub fn finish(self, bias: Option<&Layout>, act: Act) -> Self {
        Params {
            has_bias: bias.is_some().into(),
            bias: bias.map_or(0, |bias| bias.stride()[0] as u64),
            act: act.code(),
            act_param: act.param(),
            ..self
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

/// Kernels count pixels and terms in 32 bits, with a sign for padding, and may step a little outside of the image.
fn check_sizes(op: &str, g: &Conv2dShape) -> Result<()> {
    let product = |factors: &[usize]| factors.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
    let mut counts = vec![
        product(&[g.groups, g.c_out, g.c_in, g.kernel[0], g.kernel[1]]),
        product(&[g.batch, g.groups, g.c_in.max(g.c_out)]),
        product(&[g.batch, g.groups, g.stride[0], g.stride[1]]),
        product(&[g.batch, g.output[0], g.output[1]]),
        product(&g.input),
    ];
    for i in 0..2 {
        let padded = g.padding[i].checked_mul(2);
        counts.push(padded.and_then(|padding| padding.checked_add(g.input[i])));
        counts.push(product(&[g.output[i] + 3, g.stride[i]]));
        counts.push(product(&[g.kernel[i], g.dilation[i]]));
    }
    let most = 1 << 29;
    if counts.iter().any(|count| count.is_none_or(|n| n > most)) {
        let message = format!("got {g:?}, expected sizes up to 2^29 on Metal");
        return Err(check::error(op, message));
    }
    Ok(())
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "conv2d" Conv2dParams {
        x, w, y, bias, batch, groups, c_in, c_out, windows.input, windows.kernel = "kernel_size",
        windows.output, windows.stride, windows.padding, dilation, lattice, has_bias, act, act_param, parts, share
    }
    Columns => "conv2d_mps" Conv2dColumns { conv, image, first, columns, unused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kernels_cannot_count_is_refused() {
        let shape = Conv2dShape::of_one_pixel();
        assert!(Params::new("conv2d", &shape).is_ok());
        let huge = [
            Conv2dShape {
                input: [1 << 20, 1 << 20],
                ..shape
            },
            Conv2dShape {
                padding: [usize::MAX, 0],
                ..shape
            },
            Conv2dShape {
                stride: [1, 1 << 40],
                ..shape
            },
        ];
        for shape in huge {
            let error = Params::new("conv2d", &shape).err().unwrap().to_string();
            assert!(
                error.contains("conv2d") && error.contains("2^29"),
                "{error}"
            );
        }
    }
}
