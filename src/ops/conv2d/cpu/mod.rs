//! Convolutions on the CPU, in f32 whatever the dtype.

mod blocks;
mod epilogue;
mod gemm;
mod lattice;
mod tile;
mod weight_grad;
mod winograd;

use super::{Conv2d, ConvAlgo, ConvTranspose2d, Geometry, WeightGrad, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::Matrix;
use crate::cpu::parallel::Shared;
use crate::cpu::{alloc, gather, with_float};
use candle_core::{CpuStorage, Layout, Result, Shape};
use epilogue::Output;
use gemm::{Gemm, Pass};
use lattice::Image;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use winograd::{Kernels, Winograd};

pub type Arg<'a> = (&'a CpuStorage, &'a Layout);

/// What is made of a weight once and kept by who keeps the weight.
#[derive(Debug, Default)]
pub struct Prepared {
    winograd: Mutex<Option<Arc<Kernels>>>,
}

impl Prepared {
    /// Those that are kept, or new ones, which are kept from now on.
    fn kernels<T: Element>(&self, g: &Geometry, weights: &[T]) -> Arc<Kernels> {
        let lock = || self.winograd.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().clone();
        match kept.filter(|kernels| kernels.are_of(g, weights)) {
            Some(kernels) => kernels,
            None => {
                let kernels = Arc::new(Kernels::new(g, &widened(weights)));
                *lock() = Some(kernels.clone());
                kernels
            }
        }
    }
}

pub fn forward(
    conv: &Conv2d,
    (x, xl): Arg,
    (w, wl): Arg,
    bias: Option<Arg>,
) -> Result<(CpuStorage, Shape)> {
    let geometry = conv.geometry(xl, wl, bias.map(|(_, l)| l))?;
    let prepared = conv.prepared.as_deref();
    let algo = conv.algo.on_cpu(&geometry, prepared.is_some())?;
    with_float!(NAME, x, |x: &[T]| {
        let weights = gather::contiguous(w.as_slice::<T>()?, wl);
        let x = Image::new(x, xl);
        output(
            geometry.y_shape(),
            bias,
            conv.act,
            |out: Output<T>| match algo {
                ConvAlgo::Winograd => by_winograd(&geometry, x, &weights, prepared, out),
                _ => by_gemm(&geometry, x, &widened(&weights), out),
            },
        )
    })
}

/// Outputs of this shape, all of which `write` writes.
fn output<T: Element>(
    shape: Shape,
    bias: Option<Arg>,
    act: super::Act,
    write: impl FnOnce(Output<T>),
) -> Result<(CpuStorage, Shape)> {
    let bias = match bias {
        Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
        None => None,
    };
    let (_, channels, height, width) = shape.dims4()?;
    let fill = |data| {
        if shape.elem_count() > 0 {
            write(Output {
                data: Shared::new(data),
                channels,
                plane: height * width,
                bias: bias.as_deref(),
                act,
            })
        }
    };
    // SAFETY: as promised.
    let y = unsafe { alloc::build::<T>(shape.elem_count(), fill) };
    Ok((T::wrap(y), shape))
}

fn by_winograd<T: Element>(
    g: &Geometry,
    x: Image<T>,
    weights: &[T],
    prepared: Option<&Prepared>,
    out: Output<T>,
) {
    let kernels = match prepared {
        Some(prepared) => prepared.kernels(g, weights),
        None => Arc::new(Kernels::new(g, &widened(weights))),
    };
    let winograd = Winograd {
        geometry: *g,
        x,
        kernels: &kernels,
        weights,
        out,
    };
    winograd.run()
}

fn by_gemm<T: Element>(g: &Geometry, mut x: Image<T>, weights: &[f32], out: Output<T>) {
    let mut g = *g;
    for i in 0..2 {
        // A kernel of one element sees nothing of what a stride passes over.
        if g.kernel[i] == 1 && g.stride[i] > 1 {
            let before = g.padding[i].div_ceil(g.stride[i]);
            x = x.every(i, before * g.stride[i] - g.padding[i], g.stride[i]);
            (g.padding[i], g.stride[i]) = (before, 1);
        }
    }
    let mut output = g.output;
    let pointwise = g.kernel == [1, 1] && x.size() == output && g.padding == [0, 0];
    if let (true, Some(row)) = (pointwise, x.as_row()) {
        (x, output) = (row, [1, output[0] * output[1]]);
    }
    let places = |i: usize| (0..g.kernel[i]).map(move |k| k * g.dilation[i]);
    let gemm = Gemm {
        batch: g.batch,
        groups: g.groups,
        x,
        channels: g.c_in,
        outputs: g.c_out,
        grid: output,
        phases: g.stride,
        reach: [0, 1].map(|i| (g.kernel[i] - 1) * g.dilation[i] / g.stride[i]),
        origin: g.padding.map(|p| -(p as isize)),
        passes: vec![Pass {
            weights: weights.into(),
            places: pairs(places(0), places(1)),
            rows: 0..output[0],
            cols: 0..output[1],
            start: [0, 0],
            step: [1, 1],
        }],
        width: output[1],
        out,
    };
    gemm.run()
}

fn pairs(
    rows: impl Iterator<Item = usize>,
    cols: impl Iterator<Item = usize> + Clone,
) -> Vec<[usize; 2]> {
    rows.flat_map(|row| cols.clone().map(move |col| [row, col]))
        .collect()
}

pub fn transposed(
    conv: &ConvTranspose2d,
    (y, yl): Arg,
    (w, wl): Arg,
    bias: Option<Arg>,
) -> Result<(CpuStorage, Shape)> {
    conv.check(yl, wl, bias.map(|(_, l)| l))?;
    let geometry = conv.geometry;
    with_float!(super::transposed::NAME, y, |y: &[T]| {
        let weights = gather::contiguous(w.as_slice::<T>()?, wl);
        let y = Image::new(y, yl);
        output(
            geometry.x_shape(),
            bias,
            conv.act,
            |out: Output<T>| match flipped(&geometry) {
                Some(flipped) => {
                    let weights = flip(&geometry, &weights);
                    match ConvAlgo::Auto.on_cpu(&flipped, false) {
                        Ok(ConvAlgo::Winograd) => by_winograd(&flipped, y, &weights, None, out),
                        _ => by_gemm(&flipped, y, &widened(&weights), out),
                    }
                }
                None => by_phases(&geometry, y, &weights, out),
            },
        )
    })
}

/// The plain convolution that a transposed one with a stride of 1 is.
fn flipped(g: &Geometry) -> Option<Geometry> {
    let padding = |i: usize| ((g.kernel[i] - 1) * g.dilation[i]).checked_sub(g.padding[i]);
    if g.stride != [1, 1] {
        return None;
    }
    Some(Geometry {
        c_in: g.c_out,
        c_out: g.c_in,
        input: g.output,
        output: g.input,
        padding: [padding(0)?, padding(1)?],
        ..*g
    })
}

/// Its kernels: turned around, and outputs for channels.
fn flip<T: Element>(g: &Geometry, weights: &[T]) -> Vec<T> {
    let places = g.kernel[0] * g.kernel[1];
    let mut flipped = Vec::with_capacity(weights.len());
    for group in weights.chunks_exact((g.c_out * g.c_in * places).max(1)) {
        for channel in 0..g.c_in {
            for output in 0..g.c_out {
                let kernel = &group[(output * g.c_in + channel) * places..][..places];
                flipped.extend(kernel.iter().rev());
            }
        }
    }
    flipped
}

/// A transposed convolution, of any stride: of the outputs that are a stride apart, all see the same places.
fn by_phases<T: Element>(g: &Geometry, y: Image<T>, weights: &[T], out: Output<T>) {
    let reach = [0, 1].map(|i| (g.kernel[i] - 1) * g.dilation[i] / g.stride[i]);
    let grid = [0, 1].map(|i| (g.input[i] - 1 + g.padding[i]) / g.stride[i] + 1);
    // The elements of the kernel that a phase meets, and where it sees them.
    let meets = |i: usize, phase: usize| {
        let all = (0..g.kernel[i]).map(move |k| (k, k * g.dilation[i]));
        let met = all.filter(move |(_, at)| at % g.stride[i] == phase);
        met.map(move |(k, at)| (k, reach[i] - at / g.stride[i]))
    };
    // Position p is the output p · stride + phase − padding.
    let outputs = |i: usize, phase: usize| {
        let start = g.padding[i].saturating_sub(phase).div_ceil(g.stride[i]);
        let end = (g.input[i] + g.padding[i]).saturating_sub(phase);
        start..end.div_ceil(g.stride[i])
    };
    let pass = |phase: [usize; 2]| {
        let elements = pairs(
            meets(0, phase[0]).map(|(k, _)| k),
            meets(1, phase[1]).map(|(k, _)| k),
        );
        let places = pairs(
            meets(0, phase[0]).map(|(_, p)| p),
            meets(1, phase[1]).map(|(_, p)| p),
        );
        Pass {
            weights: select(g, weights, &elements).into(),
            places,
            rows: outputs(0, phase[0]),
            cols: outputs(1, phase[1]),
            start: [0, 1].map(|i| phase[i] as isize - g.padding[i] as isize),
            step: g.stride,
        }
    };
    let phases = pairs(0..g.stride[0], 0..g.stride[1]);
    let gemm = Gemm {
        batch: g.batch,
        groups: g.groups,
        x: y,
        channels: g.c_out,
        outputs: g.c_in,
        grid,
        phases: [1, 1],
        reach,
        origin: reach.map(|r| -(r as isize)),
        passes: phases.into_iter().map(pass).collect(),
        width: g.input[1],
        out,
    };
    gemm.run()
}

/// Some elements of each kernel, channels for outputs.
fn select<T: Element>(g: &Geometry, weights: &[T], elements: &[[usize; 2]]) -> Vec<f32> {
    let mut selected = Vec::with_capacity(g.groups * g.c_in * g.c_out * elements.len());
    for group in 0..g.groups {
        for channel in 0..g.c_in {
            for output in 0..g.c_out {
                let kernel = (group * g.c_out + output) * g.c_in + channel;
                let at = |&[i, j]: &[usize; 2]| {
                    weights[(kernel * g.kernel[0] + i) * g.kernel[1] + j].widen()
                };
                selected.extend(elements.iter().map(at));
            }
        }
    }
    selected
}

pub fn weight_grad(grad: &WeightGrad, (x, xl): Arg, (g, gl): Arg) -> Result<(CpuStorage, Shape)> {
    grad.check(xl, gl)?;
    with_float!(super::weight_grad::NAME, x, |x: &[T]| {
        let work = weight_grad::WeightGrad {
            geometry: grad.0,
            x: Image::new(x, xl),
            g: Image::new(g.as_slice::<T>()?, gl),
        };
        let sums = work.run().into_iter().map(T::narrow).collect();
        Ok((T::wrap(sums), grad.0.w_shape()))
    })
}

/// The elements in f32.
fn widened<T: Element>(data: &[T]) -> Cow<'_, [f32]> {
    let matrix = Matrix::contiguous(data, 1, data.len());
    match matrix.as_f32() {
        Some(wide) => Cow::Borrowed(wide.data),
        None => Cow::Owned(matrix.widened(1.0)),
    }
}
