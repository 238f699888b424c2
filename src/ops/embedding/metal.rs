//! Launches of kernels/embedding.metal.

use super::NAME;
use crate::check;
use crate::metal::grid::{self, Grid};
use crate::metal::{
    aligned_rows, build, dtype_name, sources, Launch, Operand, RowOperand, RowStrides,
};
use crate::op::Arg;
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct EmbeddingParams {
    rows: RowStrides,
    vocabulary: u64,
    cols: u64,
    ids: u32,
    index_bytes: u32,
    aligned: u32,
    reserved: u32,
}

pub fn forward((w, wl): Arg<MetalStorage>, ids: Arg<MetalStorage>) -> Result<MetalStorage> {
    let (cols, count) = (wl.dims()[1], ids.1.shape().elem_count());
    let grid = || grid::elementwise_rows(count, cols, 4);
    launch(
        "fwd",
        (w, wl),
        ids,
        [wl.dims()[0], cols, count],
        count * cols,
        grid,
    )
}

pub fn backward(
    (g, gl): Arg<MetalStorage>,
    ids: Arg<MetalStorage>,
    vocabulary: usize,
) -> Result<MetalStorage> {
    /// Columns of a threadgroup: its 128 threads take four each.
    const COLUMNS: usize = 512;
    let (cols, count) = (gl.dims()[gl.dims().len() - 1], ids.1.shape().elem_count());
    let grid = || grid::blocks(vocabulary, cols, [1, COLUMNS]);
    launch(
        "bwd",
        (g, gl),
        ids,
        [vocabulary, cols, count],
        vocabulary * cols,
        grid,
    )
}

/// A kernel that reads rows and ids, and writes `outputs` elements.
fn launch(
    pass: &str,
    (x, layout): Arg<MetalStorage>,
    (ids, ids_layout): Arg<MetalStorage>,
    [vocabulary, cols, count]: [usize; 3],
    outputs: usize,
    grid: impl Fn() -> Grid,
) -> Result<MetalStorage> {
    let message = format_args!("got {count} ids and {vocabulary} rows, expected less than 2^32");
    check::ensure(count.max(vocabulary) < u32::MAX as usize, NAME, message)?;
    build(x, outputs, |out| {
        let (xs, ids_of) = (
            RowOperand::new(x, layout)?,
            Operand::contiguous(ids, ids_layout)?,
        );
        // Several rows, so that the strides count.
        let aligned = aligned_rows(&[xs.parts()], [2, cols]);
        let kernel = format!("{NAME}_{pass}_{}", dtype_name(x.dtype(), NAME)?);
        Launch::new(x.device(), &sources::EMBEDDING, &kernel)?
            .input(&xs.operand)
            .input(&ids_of)
            .output(out)
            .params(&EmbeddingParams {
                rows: xs.strides,
                vocabulary: vocabulary as u64,
                cols: cols as u64,
                ids: count as u32,
                index_bytes: ids.dtype().size_in_bytes() as u32,
                aligned,
                reserved: 0,
            })
            .run(grid())
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    EmbeddingParams => "embedding" EmbeddingParams { rows, vocabulary, cols, ids, index_bytes, aligned, reserved }
}
