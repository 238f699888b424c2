//! Launches of kernels/matmul_act.metal, beside the GEMV of kernels/linear.metal and Candle's own GEMM.

use super::stacks::{Dim, Stacks};
use super::{output_shape, NAME};
use crate::check;
use crate::metal::{alloc, dtype_name, finish, gemm, grid, sources, Launch, Operand};
use crate::ops::activation::Act;
use crate::ops::linear::metal::{Arg, Matrix, Product};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalDevice, MetalStorage, Result, Shape};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// Of the kernel's stacks.
const STACK_DIMS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x_row: u64,
    x_col: u64,
    y_row: u64,
    y_col: u64,
    x_stack: [u64; STACK_DIMS],
    y_stack: [u64; STACK_DIMS],
    stack: [u32; STACK_DIMS],
    rows: u32,
    outputs: u32,
    depth: u32,
    has_bias: u32,
    act: u32,
    act_param: f32,
}

pub fn forward(act: Act, x: Arg, y: Arg, bias: Option<Arg>) -> Result<(MetalStorage, Shape)> {
    let shape = output_shape(x.1, y.1, bias.map(|(_, l)| l))?;
    let (device, dtype, count) = (x.0.device(), x.0.dtype(), shape.elem_count());
    let others = [
        ("y", Some(y.0.dtype())),
        ("bias", bias.map(|(b, _)| b.dtype())),
    ];
    check::same_dtypes(NAME, dtype, &others)?;
    let out = match count {
        0 => alloc(device, 0, dtype)?,
        _ => {
            let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
            Products::new(&shape, x, y)?.run(device, act, bias.as_ref())?
        }
    };
    Ok((finish(out, device, count, dtype), shape))
}

/// The products of two stacks.
struct Products<'a> {
    x: Matrix<'a>,
    /// yᵀ
    w: Matrix<'a>,
    dims: Vec<Dim>,
}

impl<'a> Products<'a> {
    /// Where they lie. Copied only where the dims that lead to the matrices are too many for the kernel.
    fn new(shape: &Shape, x: Arg<'a>, y: Arg<'a>) -> Result<Self> {
        let leading = &shape.dims()[..shape.rank() - 2];
        let mut stacks = Stacks::new(leading, x.1, y.1);
        let (xs, ys) = if stacks.dims.len() <= STACK_DIMS {
            (Operand::strided(x.0, x.1), Operand::strided(y.0, y.1))
        } else {
            let [xl, yl] = [repeated(leading, x.1)?, repeated(leading, y.1)?];
            let [of_x, of_y] = [&xl, &yl].map(|l| Layout::contiguous(l.shape()));
            stacks = Stacks::new(leading, &of_x, &of_y);
            (
                Operand::contiguous(x.0, &xl)?,
                Operand::contiguous(y.0, &yl)?,
            )
        };
        Ok(Products {
            x: Matrix::at(NAME, xs, stacks.x)?,
            w: Matrix::at(NAME, ys, stacks.y.t())?,
            dims: stacks.dims,
        })
    }

    fn run(&self, device: &MetalDevice, act: Act, bias: Option<&Operand>) -> Result<Arc<Buffer>> {
        let one = Product {
            bias,
            act,
            ..Product::new(device, &self.x, &self.w)
        };
        if self.dims.is_empty() && one.has_few_rows() {
            let out = alloc(device, one.count(), one.dtype)?;
            one.gemv("", &out)?;
            return Ok(out);
        }
        if let (Act::Identity, None, Some(stack)) = (act, bias, self.for_gemm()) {
            let (x, w) = (&self.x, &self.w);
            return gemm::stacked_gemm(
                device,
                stack,
                (&x.operand, x.layout),
                (&w.operand, w.layout),
            );
        }
        tiles(&one, &self.dims)
    }

    /// How many products there are and how far apart, where Candle's GEMM takes them.
    fn for_gemm(&self) -> Option<(usize, [usize; 2])> {
        let (x, w) = (self.x.layout, self.w.layout);
        let fit = gemm::fits(x) && gemm::fits(w) && x.cols > 0;
        match self.dims[..] {
            [] if fit => Some((1, [0, 0])),
            [Dim { size, x, y }] if fit => Some((size, [x, y])),
            _ => None,
        }
    }
}

/// `one` product, or as many of its kind as the dims lead to, each with the bias and activation in its tiles.
pub fn tiles(one: &Product, dims: &[Dim]) -> Result<Arc<Buffer>> {
    let (x, w) = (one.x.layout, one.w.layout);
    let mut params = Params {
        x_row: x.row as u64,
        x_col: x.col as u64,
        y_row: w.col as u64,
        y_col: w.row as u64,
        x_stack: [0; STACK_DIMS],
        y_stack: [0; STACK_DIMS],
        stack: [1; STACK_DIMS],
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
    let out = alloc(one.device, count * one.count(), one.dtype)?;
    let side = tile_side(x.rows, w.rows, count);
    let dtype = dtype_name(one.dtype, NAME)?;
    let kernel = format!("{NAME}_fwd_{side}_{dtype}");
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

/// The layout with these leading dims.
fn repeated(leading: &[usize], layout: &Layout) -> Result<Layout> {
    let last_two = &layout.dims()[layout.dims().len() - 2..];
    layout.broadcast_as([leading, last_two].concat())
}

#[cfg(test)]
mod tests {
    use super::{tile_side, Params};
    use std::mem::{offset_of, size_of};

    #[test]
    fn params_mirror_the_kernel() {
        assert_eq!(size_of::<Params>(), 136);
        assert_eq!(offset_of!(Params, y_col), 24);
        assert_eq!(offset_of!(Params, y_stack), 64);
        assert_eq!(offset_of!(Params, stack), 96);
        assert_eq!(offset_of!(Params, rows), 112);
        assert_eq!(offset_of!(Params, has_bias), 124);
        assert_eq!(offset_of!(Params, act_param), 132);
    }

    #[test]
    fn tiles_are_large_where_there_are_enough() {
        assert_eq!(tile_side(512, 512, 1), 64);
        assert_eq!(tile_side(64, 64, 1), 32);
        assert_eq!(tile_side(64, 64, 64), 64);
        assert_eq!(tile_side(32, 4096, 8), 32);
    }
}
