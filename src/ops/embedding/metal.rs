//! Launches of kernels/embedding.metal.

use super::NAME;
use crate::check;
use crate::metal::grid::{self, Grid};
use crate::metal::{
    aligned_rows, alloc, build, dtype_name, sources, Launch, Operand, RowOperand, RowStrides,
};
use crate::op::on_metal::Arg;
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{DType, MetalDevice, MetalStorage, Result, Shape};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

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

#[repr(C)]
#[derive(Clone, Copy)]
struct SortParams {
    vocabulary: u64,
    ids: u32,
    index_bytes: u32,
    width: u32,
    blocks: u32,
}

/// Keys that a threadgroup sorts at most: `SORT_BLOCK` of embedding.metal.
const SORT_BLOCK: usize = 1024;

pub fn forward((w, wl): Arg, ids: Arg) -> Result<MetalStorage> {
    let (cols, count) = (wl.dims()[1], ids.1.shape().elem_count());
    check_counts(count, wl.dims()[0])?;
    build(w, count * cols, |y| {
        let ids_of = Operand::contiguous(ids.0, ids.1)?;
        let size = [wl.dims()[0], cols, count];
        let grid = grid::elementwise_rows(count, cols, 4);
        run("fwd", (w, wl), &ids_of, size, y, grid)
    })
}

pub fn backward((g, gl): Arg, ids: Arg, vocabulary: usize) -> Result<MetalStorage> {
    let (cols, count) = (gl.dims()[gl.dims().len() - 1], ids.1.shape().elem_count());
    check_counts(count, vocabulary)?;
    if count == 0 && vocabulary * cols > 0 {
        let shape = Shape::from(vocabulary * cols);
        return g.device().zeros_impl(&shape, g.dtype());
    }
    build(g, vocabulary * cols, |dw| {
        let keys = Operand::fresh(sorted(g.device(), ids, vocabulary)?, count, DType::I64);
        let size = [vocabulary, cols, count];
        let grid = grid::elementwise_rows(vocabulary, cols, 4);
        run("bwd", (g, gl), &keys, size, dw, grid)
    })
}

/// Kernels count ids and rows in 32 bits.
fn check_counts(ids: usize, vocabulary: usize) -> Result<()> {
    let message = format_args!("got {ids} ids and {vocabulary} rows, expected less than 2^32");
    check::ensure(ids.max(vocabulary) < u32::MAX as usize, NAME, message)
}

/// The positions of ids, each behind its id in a key of 64 bits, by rising keys. There is an id at least.
fn sorted(device: &MetalDevice, (ids, layout): Arg, vocabulary: usize) -> Result<Arc<Buffer>> {
    let count = layout.shape().elem_count();
    let width = count.next_power_of_two().clamp(2, SORT_BLOCK);
    let blocks = count.div_ceil(width);
    let ids_of = Operand::contiguous(ids, layout)?;
    let params = SortParams {
        vocabulary: vocabulary as u64,
        ids: count as u32,
        index_bytes: ids.dtype().size_in_bytes() as u32,
        width: width as u32,
        blocks: blocks as u32,
    };
    let keys = alloc(device, count, DType::I64)?;
    Launch::new(device, &sources::EMBEDDING, "embedding_sort")?
        .input(&ids_of)
        .output(&keys)
        .params(&params)
        .run(grid::row_per_threadgroup(blocks, width / 2, 1))?;
    if blocks == 1 {
        return Ok(keys);
    }
    let merged = alloc(device, count, DType::I64)?;
    Launch::new(device, &sources::EMBEDDING, "embedding_merge")?
        .input_buffer(&keys)
        .output(&merged)
        .params(&params)
        .run(grid::elementwise(count, 1))?;
    Ok(merged)
}

/// Runs a kernel that reads rows and ids, or keys.
fn run(
    pass: &str,
    (x, layout): Arg,
    ids: &Operand,
    [vocabulary, cols, count]: [usize; 3],
    out: &Buffer,
    grid: Grid,
) -> Result<()> {
    let xs = RowOperand::new(x, layout)?;
    let kernel = format!("{NAME}_{pass}_{}", dtype_name(x.dtype(), NAME)?);
    Launch::new(x.device(), &sources::EMBEDDING, &kernel)?
        .input(&xs.operand)
        .input(ids)
        .output(out)
        .params(&EmbeddingParams {
            rows: xs.strides,
            vocabulary: vocabulary as u64,
            cols: cols as u64,
            ids: count as u32,
            index_bytes: ids.dtype().size_in_bytes() as u32,
            // Several rows, so that the strides count.
            aligned: aligned_rows(&[xs.parts()], [2, cols]),
            reserved: 0,
        })
        .run(grid)
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    SortParams => "embedding" SortParams { vocabulary, ids, index_bytes, width, blocks }
    EmbeddingParams => "embedding" EmbeddingParams { rows, vocabulary, cols, ids, index_bytes, aligned, reserved }
}
