//! A transposed convolution, by a plain one or by phases.
//!
//! With stride 1 it is the convolution with the kernel turned around, and channels and outputs exchanged.
//!
//! With stride s > 1, output o receives pixel p times tap t wherever `o + padding = p · s + t · dilation`. The outputs of one
//! phase, `(o + padding) mod s`, meet the same taps: those with `t · dilation mod s` equal to the phase. So each phase is a
//! small convolution of its own with a part of the kernel, and all of them read the same input. With stride 2, kernel 3 and
//! no padding, in one dim:
//!
//! ```text
//!     pixels a, b, c and taps t0, t1, t2
//!
//!     output   0     1     2            3     4            5     6
//!     value    t0·a  t1·a  t2·a + t0·b  t1·b  t2·b + t0·c  t1·c  t2·c
//!     phase    0     1     0            1     0            1     0         phase 0 meets t0 and t2, phase 1 meets t1
//! ```

use super::epilogue::Output;
use super::forward::pairs;
use super::image::Image;
use super::implicit_gemm::{ImplicitGemm, PhaseGemm};
use crate::cpu::element::Element;
use crate::cpu::matmul::Matrix;
use crate::ops::conv2d::shape::Conv2dShape;
use std::collections::BTreeSet;

/// The plain convolution that a transposed one is if its stride is 1 and its padding is less than the kernel's span.
pub fn as_convolution(g: &Conv2dShape) -> Option<Conv2dShape> {
    let padding = |i: usize| ((g.kernel[i] - 1) * g.dilation[i]).checked_sub(g.padding[i]);
    if g.stride != [1, 1] {
        return None;
    }
    Some(Conv2dShape {
        c_in: g.c_out,
        c_out: g.c_in,
        input: g.output,
        output: g.input,
        padding: [padding(0)?, padding(1)?],
        ..*g
    })
}

/// The kernels of [`as_convolution`]: turned around, with channels and outputs exchanged.
pub fn flip_kernels<T: Element>(g: &Conv2dShape, weights: &[T]) -> Vec<T> {
    let taps = g.kernel[0] * g.kernel[1];
    let mut flipped = Vec::with_capacity(weights.len());
    for group in weights.chunks_exact((g.c_out * g.c_in * taps).max(1)) {
        for channel in 0..g.c_in {
            for output in 0..g.c_out {
                let kernel = &group[(output * g.c_in + channel) * taps..][..taps];
                flipped.extend(kernel.iter().rev());
            }
        }
    }
    flipped
}

/// Writes all outputs (the shape's x) of a transposed convolution of `y` of any stride.
pub fn by_phases<T: Element>(g: &Conv2dShape, y: Image<T>, weights: &[T], out: Output<T>) {
    let halo = g.halo();
    // The taps of the kernel that a phase meets, each with its place in the input: tap t of position p reads pixel
    // p − t · dilation / stride, which lies that much before the last that the position reads.
    let taps = |i: usize, phase: usize| {
        let all = (0..g.kernel[i]).map(move |tap| (tap, tap * g.dilation[i]));
        let met = all.filter(move |(_, at)| at % g.stride[i] == phase);
        met.map(move |(tap, at)| (tap, halo[i] - at / g.stride[i]))
    };
    // Position p is the output p · stride + phase − padding.
    let positions = |i: usize, phase: usize| {
        let start = g.padding[i].saturating_sub(phase).div_ceil(g.stride[i]);
        let end = (g.input[i] + g.padding[i]).saturating_sub(phase);
        start..end.div_ceil(g.stride[i])
    };
    let mut buffer = Vec::new();
    let weights = Matrix::contiguous(weights, 1, weights.len());
    let weights = weights.widened_into(&mut buffer).data;
    let phase_gemm = |phase: [usize; 2]| {
        let [down, across] = [0, 1].map(|i| taps(i, phase[i]));
        let of_kernel = pairs(down.clone().map(|t| t.0), across.clone().map(|t| t.0));
        PhaseGemm {
            weights: select_taps(g, weights, &of_kernel).into(),
            taps: pairs(down.map(|t| t.1), across.map(|t| t.1)),
            rows: positions(0, phase[0]),
            cols: positions(1, phase[1]),
            start: [0, 1].map(|i| phase[i] as isize - g.padding[i] as isize),
        }
    };
    // With a stride larger than the kernel, some phases meet no tap: their outputs are the bias alone.
    let phases = [0, 1].map(|i| {
        let met = (0..g.kernel[i]).map(|tap| tap * g.dilation[i] % g.stride[i]);
        met.collect::<BTreeSet<_>>()
    });
    if (0..2).any(|i| phases[i].len() < g.stride[i]) {
        out.fill();
    }
    let phases = pairs(phases[0].iter().copied(), phases[1].iter().copied());
    let gemm = ImplicitGemm {
        batch: g.batch,
        groups: g.groups,
        c_in: g.c_out,
        c_out: g.c_in,
        x: y,
        grid: [0, 1].map(|i| (g.input[i] - 1 + g.padding[i]) / g.stride[i] + 1),
        stride: [1, 1],
        halo,
        origin: halo.map(|h| -(h as isize)),
        phases: phases.into_iter().map(phase_gemm).collect(),
        step: g.stride,
        width: g.input[1],
        out,
    };
    gemm.run()
}

/// Some taps of each kernel, with channels and outputs exchanged.
fn select_taps(g: &Conv2dShape, weights: &[f32], taps: &[[usize; 2]]) -> Vec<f32> {
    let mut selected = Vec::with_capacity(g.groups * g.c_in * g.c_out * taps.len());
    for group in 0..g.groups {
        for channel in 0..g.c_in {
            for output in 0..g.c_out {
                let kernel = (group * g.c_out + output) * g.c_in + channel;
                let at =
                    |&[i, j]: &[usize; 2]| weights[(kernel * g.kernel[0] + i) * g.kernel[1] + j];
                selected.extend(taps.iter().map(at));
            }
        }
    }
    selected
}
