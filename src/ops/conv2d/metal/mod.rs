//! Launches of kernels/conv2d.metal and kernels/conv2d_gemm.metal, which read arguments of any strides.

mod mps;
mod params;

use super::algo::Tile;
use super::shape::Conv2dShape;
use super::transposed::NAME as TRANSPOSED;
use super::{Conv2d, ConvAlgo, WeightGrad, NAME};
use crate::act::Act;
use crate::metal::grid::{self, Grid};
use crate::metal::sources::{Source, CONV2D, CONV2D_GEMM};
use crate::metal::{alloc, dtype_name, finish, Launch, Operand};
use crate::op::on_metal::Arg;
use crate::op::Op;
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalDevice, MetalStorage, Result, Shape};
use candle_metal_kernels::metal::Buffer;
use params::Params;

/// Columns of a threadgroup's tile of a product. It has as many rows, or twice as many if the product has more rows.
const SIDE: usize = 32;
/// Neighbouring outputs that a thread of the depthwise kernel computes.
const NEIGHBOURS: usize = 4;
/// Weights that a threadgroup of the depthwise gradient computes, each by a simdgroup.
const SIMDGROUPS: usize = 8;

struct Kernel {
    source: &'static Source,
    name: String,
    grid: Grid,
}

impl Kernel {
    fn new(source: &'static Source, variant: &str, dtype: DType, grid: Grid) -> Result<Self> {
        let name = format!("{NAME}_{variant}_{}", dtype_name(dtype, NAME)?);
        Ok(Kernel { source, name, grid })
    }

    /// `times` products of `rows` by `cols`.
    fn gemm(
        variant: [&str; 2],
        dtype: DType,
        rows: usize,
        cols: usize,
        times: usize,
    ) -> Result<Self> {
        let (tall, height) = match rows > SIDE {
            true => ("_tall", 2 * SIDE),
            false => ("", SIDE),
        };
        let [pass, part] = variant;
        let grid = grid::blocks(rows, cols, [height, SIDE]).times(times);
        Kernel::new(
            &CONV2D_GEMM,
            &format!("{pass}_gemm{tall}{part}"),
            dtype,
            grid,
        )
    }

    fn run(
        self,
        device: &MetalDevice,
        [a, b]: [&Operand; 2],
        bias: Option<&Operand>,
        out: &Buffer,
        params: &Params,
    ) -> Result<()> {
        Launch::new(device, self.source, &self.name)?
            .input(a)
            .input(b)
            .input_or(bias, a)
            .output(out)
            .params(params)
            .run(self.grid)
    }
}

/// A result of this shape, on the device of an argument and with its dtype. `write` writes it, unless it is empty.
fn output(
    (storage, _): Arg,
    shape: Shape,
    write: impl FnOnce(&MetalDevice, DType, &Buffer) -> Result<()>,
) -> Result<(MetalStorage, Shape)> {
    let (device, dtype, count) = (storage.device(), storage.dtype(), shape.elem_count());
    let out = alloc(device, count, dtype)?;
    if count > 0 {
        write(device, dtype, &out)?;
    }
    Ok((finish(out, device, count, dtype), shape))
}

/// y of x, w and perhaps a bias, which have the dims of the shape: `Op::check` has compared them.
pub fn forward(conv: &Conv2d, g: &Conv2dShape, args: &[Arg]) -> Result<(MetalStorage, Shape)> {
    let (x, w, bias) = (args[0], args[1], args.get(2));
    let algo = conv.algo.on_metal(NAME, g, x.0.dtype())?;
    output(x, g.y_shape(), |device, dtype, out| {
        let params = Params::new(NAME, g)?.x(x.1).w(w.1);
        let params = params.finish(bias.map(|b| b.1), conv.act);
        let bias = bias.map(|(b, l)| Operand::strided(b, l));
        let (image, weight) = (Operand::strided(x.0, x.1), Operand::strided(w.0, w.1));
        let (kernel, inputs) = match algo {
            ConvAlgo::Mps => return mps::forward(g, params, x, w, bias.as_ref(), out),
            ConvAlgo::ImplicitGemm => (gemm(g, dtype)?, [&weight, &image]),
            ConvAlgo::Tiled => (tiled(g, dtype)?, [&image, &weight]),
            _ => (direct(g, dtype)?, [&image, &weight]),
        };
        kernel.run(device, inputs, bias.as_ref(), out, &params)
    })
}

fn gemm(g: &Conv2dShape, dtype: DType) -> Result<Kernel> {
    let pixels = g.output[0] * g.output[1];
    Kernel::gemm(["fwd", ""], dtype, g.c_out, pixels, g.batch * g.groups)
}

fn tiled(g: &Conv2dShape, dtype: DType) -> Result<Kernel> {
    let [rows, cols] = [0, 1].map(|i| g.output[i].div_ceil(Tile::OUTPUTS[i]));
    let channels = g.groups * g.c_out.div_ceil(Tile::CHANNELS);
    let grid = grid::blocks(channels, rows * cols, [1, 1]).times(g.batch);
    Kernel::new(&CONV2D, "fwd_tiled", dtype, grid)
}

fn direct(g: &Conv2dShape, dtype: DType) -> Result<Kernel> {
    let [rows, cols] = g.output;
    let (variant, threads) = match g.c_in {
        1 => ("fwd_depthwise", rows * cols.div_ceil(NEIGHBOURS)),
        _ => ("fwd_direct", rows * cols),
    };
    let grid = grid::elementwise_rows(g.groups * g.c_out, threads, 1).times(g.batch);
    Kernel::new(&CONV2D, variant, dtype, grid)
}

/// The transposed convolution: the shape's x, of its y, w and perhaps a bias, whose dims `Op::check` has compared.
pub fn transposed(act: Act, g: &Conv2dShape, args: &[Arg]) -> Result<(MetalStorage, Shape)> {
    let (y, w, bias) = (args[0], args[1], args.get(2));
    output(y, g.x_shape(), |device, dtype, out| {
        let params = Params::new(TRANSPOSED, g)?.y(y.1).w(w.1);
        let params = params.finish(bias.map(|b| b.1), act);
        let (y, w) = (Operand::strided(y.0, y.1), Operand::strided(w.0, w.1));
        let (kernel, inputs) = match ConvAlgo::transposed_on_metal(g) {
            ConvAlgo::Direct => (direct_transposed(g, dtype)?, [&y, &w]),
            _ => (gemm_transposed(g, dtype)?, [&w, &y]),
        };
        let bias = bias.map(|(b, l)| Operand::strided(b, l));
        kernel.run(device, inputs, bias.as_ref(), out, &params)
    })
}

fn direct_transposed(g: &Conv2dShape, dtype: DType) -> Result<Kernel> {
    let pixels = g.input[0] * g.input[1];
    let grid = grid::elementwise_rows(g.groups * g.c_in, pixels, 1).times(g.batch);
    Kernel::new(&CONV2D, "bwd_x_direct", dtype, grid)
}

/// One product for each phase of the stride: phases have different pixels.
fn gemm_transposed(g: &Conv2dShape, dtype: DType) -> Result<Kernel> {
    let [rows, cols] = [0, 1].map(|i| g.input[i].div_ceil(g.stride[i]));
    let times = g.batch * g.groups * g.stride[0] * g.stride[1];
    Kernel::gemm(["bwd_x", ""], dtype, g.c_in, rows * cols, times)
}

/// The gradient of w, of x and the gradient of y, which have the dims of the shape: `Op::check` has compared them.
pub fn weight_grad(g: &Conv2dShape, args: &[Arg]) -> Result<(MetalStorage, Shape)> {
    let (x, y) = (args[0], args[1]);
    output(x, g.w_shape(), |device, _, out| {
        let params = Params::new(WeightGrad::NAME, g)?.x(x.1).y(y.1);
        let (x, y) = (Operand::strided(x.0, x.1), Operand::strided(y.0, y.1));
        match g.is_depthwise() {
            true => depthwise_weight_grad(device, g, [&x, &y], out, &params),
            false => gemm_weight_grad(device, g, [&y, &x], out, params),
        }
    })
}

fn depthwise_weight_grad(
    device: &MetalDevice,
    g: &Conv2dShape,
    [x, y]: [&Operand; 2],
    out: &Buffer,
    params: &Params,
) -> Result<()> {
    let weights = g.w_shape().elem_count();
    let grid = grid::row_per_simdgroup(weights, SIMDGROUPS);
    let Kernel { source, name, grid } =
        Kernel::new(&CONV2D, "bwd_weight_depthwise", x.dtype(), grid)?;
    Launch::new(device, source, &name)?
        .input(x)
        .input(y)
        .output(out)
        .params(params)
        .run(grid)
}

/// The product is small and its sums, over images and pixels, are long. If it has too few tiles for all threadgroups, the sums
/// are cut into parts, which a second kernel adds.
fn gemm_weight_grad(
    device: &MetalDevice,
    g: &Conv2dShape,
    inputs: [&Operand; 2],
    out: &Buffer,
    params: Params,
) -> Result<()> {
    let dtype = inputs[0].dtype();
    let count = g.w_shape().elem_count();
    let cols = g.c_in * g.kernel[0] * g.kernel[1];
    let terms = g.batch * g.output[0] * g.output[1];
    let tiles = g.c_out.div_ceil(SIDE) * cols.div_ceil(SIDE) * g.groups;
    let (parts, share) = grid::sum_parts(tiles, terms);
    let params = params.split(parts, share);
    let product = |part: &str| {
        let variant = ["bwd_weight", part];
        Kernel::gemm(variant, dtype, g.c_out, cols, g.groups * parts)
    };
    if parts == 1 {
        return product("")?.run(device, inputs, None, out, &params);
    }
    let sums = alloc(device, parts * count, DType::F32)?;
    let part = if dtype == DType::F32 { "" } else { "_part" };
    product(part)?.run(device, inputs, None, &sums, &params)?;
    let grid = grid::elementwise(count, 1);
    let Kernel { source, name, grid } = Kernel::new(&CONV2D_GEMM, "bwd_weight_sum", dtype, grid)?;
    Launch::new(device, source, &name)?
        .input_buffer(&sums)
        .output(out)
        .params(&params)
        .run(grid)
}
