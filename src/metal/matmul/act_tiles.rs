//! Launches of kernels/matmul_act.metal: batched products in tiles that end in a bias and an activation.

use super::Product;
use crate::layout::BatchDim;
use crate::metal::{alloc, dtype_name, grid, sources, Launch};
use candle_core::{DType, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// Leading dims that the kernel can walk.
pub(crate) const BATCH_DIMS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x_row: u64,
    x_col: u64,
    y_row: u64,
    y_col: u64,
    x_stack: [u64; BATCH_DIMS],
    y_stack: [u64; BATCH_DIMS],
    stack: [u32; BATCH_DIMS],
    rows: u32,
    outputs: u32,
    depth: u32,
    has_bias: u32,
    act: u32,
    act_param: f32,
}

/// `one` product, or one for each index of the leading dims, each with the bias and activation as its epilogue.
pub(crate) fn act_tiles(one: &Product, dims: &[BatchDim]) -> Result<Arc<Buffer>> {
    launch_tiles(one, dims, one.dtype)
}

/// `one` product whose sums are stored as floats.
pub(super) fn wide_tiles(one: &Product) -> Result<Arc<Buffer>> {
    launch_tiles(one, &[], DType::F32)
}

fn launch_tiles(one: &Product, dims: &[BatchDim], out_dtype: DType) -> Result<Arc<Buffer>> {
    let (x, w) = (one.x.layout, one.w.layout);
    let mut params = Params {
        x_row: x.row as u64,
        x_col: x.col as u64,
        y_row: w.col as u64,
        y_col: w.row as u64,
        x_stack: [0; BATCH_DIMS],
        y_stack: [0; BATCH_DIMS],
        stack: [1; BATCH_DIMS],
        rows: x.rows as u32,
        outputs: w.rows as u32,
        depth: x.cols as u32,
        has_bias: one.bias.is_some().into(),
        act: one.act.code(),
        act_param: one.act.param(),
    };
    for (i, dim) in dims.iter().enumerate() {
        params.x_stack[i] = dim.x as u64;
        params.y_stack[i] = dim.y as u64;
        params.stack[i] = dim.size as u32;
    }
    let count = dims.iter().map(|dim| dim.size).product::<usize>();
    let out = alloc(one.device, count * one.count(), out_dtype)?;
    let side = tile_side(x.rows, w.rows, count);
    let dtype = dtype_name(one.dtype, "matmul_act")?;
    let wide = if out_dtype == one.dtype { "" } else { "_wide" };
    let kernel = format!("matmul_act_fwd{wide}_{side}_{dtype}");
    Launch::new(one.device, &sources::MATMUL_ACT, &kernel)?
        .input(&one.x.operand)
        .input(&one.w.operand)
        .input_or(one.bias, &one.w.operand)
        .output(&out)
        .params(&params)
        .run(grid::tiles(x.rows, w.rows, side).times(count))?;
    Ok(out)
}

/// Large tiles read each operand half as often, small ones give the GPU more to do at a time.
fn tile_side(rows: usize, outputs: usize, count: usize) -> usize {
    const LARGE: usize = 64;
    /// Enough for each core of the largest GPUs.
    const ENOUGH: usize = 64;
    let groups = rows.div_ceil(LARGE) * outputs.div_ceil(LARGE) * count;
    match rows.min(outputs) > 32 && groups >= ENOUGH {
        true => LARGE,
        false => 32,
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "matmul_act" Params {
        x_row, x_col, y_row, y_col, x_stack, y_stack, stack, rows, outputs, depth, has_bias, act,
        act_param
    }
}

#[cfg(test)]
mod tests {
    use super::tile_side;

    #[test]
    fn tiles_are_large_where_there_are_enough() {
        assert_eq!(tile_side(512, 512, 1), 64);
        assert_eq!(tile_side(64, 64, 1), 32);
        assert_eq!(tile_side(64, 64, 64), 64);
        assert_eq!(tile_side(32, 4096, 8), 32);
    }
}
