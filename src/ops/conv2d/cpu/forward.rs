//! A convolution as an implicit GEMM.

use super::epilogue::Output;
use super::image::Image;
use super::implicit_gemm::{ImplicitGemm, PhaseGemm};
use crate::cpu::element::Element;
use crate::ops::conv2d::shape::Conv2dShape;

/// Writes all outputs of the convolution `g` of x with the weights `[groups · c_out, c_in, ..kernel]`.
pub fn by_gemm<T: Element>(mut g: Conv2dShape, mut x: Image<T>, weights: &[f32], out: Output<T>) {
    for i in 0..2 {
        // A kernel of one element reads no pixel that a stride passes over: without those the stride is 1.
        if g.kernel[i] == 1 && g.stride[i] > 1 {
            let padding = g.padding[i].div_ceil(g.stride[i]);
            x = x.every(i, padding * g.stride[i] - g.padding[i], g.stride[i]);
            (g.padding[i], g.stride[i]) = (padding, 1);
        }
    }
    let mut grid = g.output;
    let pointwise = g.kernel == [1, 1] && x.size() == grid && g.padding == [0, 0];
    if let (true, Some(row)) = (pointwise, x.as_row()) {
        (x, grid) = (row, [1, grid[0] * grid[1]]);
    }
    let taps = |i: usize| (0..g.kernel[i]).map(move |k| k * g.dilation[i]);
    let gemm = ImplicitGemm {
        batch: g.batch,
        groups: g.groups,
        c_in: g.c_in,
        c_out: g.c_out,
        x,
        grid,
        stride: g.stride,
        halo: g.halo(),
        origin: g.padding.map(|p| -(p as isize)),
        phases: vec![PhaseGemm {
            weights: weights.into(),
            taps: pairs(taps(0), taps(1)),
            rows: 0..grid[0],
            cols: 0..grid[1],
            start: [0, 0],
        }],
        step: [1, 1],
        width: grid[1],
        out,
    };
    gemm.run()
}

/// All rows with all columns.
pub fn pairs(
    rows: impl Iterator<Item = usize>,
    cols: impl Iterator<Item = usize> + Clone,
) -> Vec<[usize; 2]> {
    rows.flat_map(|row| cols.clone().map(move |col| [row, col]))
        .collect()
}
