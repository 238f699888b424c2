//! Launches of kernels/row_norm.metal.

use super::{Kind, RowNorm};
use crate::check;
use crate::metal::elementwise::dense;
use crate::metal::grid::Grid;
use crate::metal::{
    aligned4, aligned_rows, alloc, build, build_like, dtype_name, finish, grid, row_grid, sources,
    update, Launch, Operand, RowOperand, RowStrides,
};
use crate::op::on_metal::{ArgMut, Args, OpResult};
use crate::ops::affine_norm::AffineBwd;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result};

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    x: RowStrides,
    other: RowStrides,
    rows: u32,
    cols: u32,
    eps: f32,
    aligned: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PartsParams {
    x: RowStrides,
    g: RowStrides,
    rows: u32,
    cols: u32,
    rows_per_part: u32,
    parts: u32,
}

/// A norm of rows of one length.
struct Rows<'a> {
    norm: RowNorm,
    x: &'a MetalStorage,
    rows: usize,
    cols: usize,
}

impl<'a> Rows<'a> {
    fn new(norm: RowNorm, x: &'a MetalStorage, l: &Layout) -> Result<Self> {
        let cols = l.dims().last().copied().unwrap_or(1);
        let rows = l.shape().elem_count().checked_div(cols).unwrap_or(0);
        if rows.max(cols) > u32::MAX as usize {
            let message = format!("{rows} rows of {cols} elements given, less than 2^32 accepted");
            return Err(check::error(norm.name(), message));
        }
        let rows = Rows {
            norm,
            x,
            rows,
            cols,
        };
        Ok(rows)
    }

    fn count(&self) -> usize {
        self.rows * self.cols
    }

    fn launch(&self, pass: &str, vectors: usize) -> Result<Launch<'a>> {
        let kind = match self.norm.kind {
            Kind::Rms => "rms",
            Kind::Layer => "layer",
            Kind::L2 => "l2",
        };
        let (width, _) = row_grid([self.rows, self.cols]);
        let dtype = dtype_name(self.x.dtype(), self.norm.name())?;
        let kernel = format!("row_norm_{pass}_{kind}_{vectors}_{width}_{dtype}");
        Launch::new(self.x.device(), &sources::ROW_NORM, &kernel)
    }

    /// `tensors`: x, and the residual or the gradient if there is one.
    fn params(&self, tensors: &[(&Operand, RowStrides)], vectors: &[Operand]) -> Params {
        let vectors: Vec<&Operand> = vectors.iter().collect();
        let aligned = aligned_rows(tensors, [self.rows, self.cols]) & aligned4(&vectors);
        let strides = |i: usize| tensors.get(i).unwrap_or(&tensors[0]).1;
        Params {
            x: strides(0),
            other: strides(1),
            rows: self.rows as u32,
            cols: self.cols as u32,
            eps: self.norm.eps,
            aligned,
        }
    }

    fn grid(&self) -> Grid {
        row_grid([self.rows, self.cols]).1
    }
}

/// Binds weight and bias; where there is none, x stands in for what the kernel won't read.
pub fn with_vectors<'a>(
    launch: Launch<'a>,
    vectors: &'a [Operand<'_>],
    x: &'a Operand<'_>,
) -> Launch<'a> {
    let launch = launch.input_or(vectors.first(), x);
    launch.input_or(vectors.get(1), x)
}

pub fn forward(norm: RowNorm, args: Args) -> OpResult {
    let (x, l) = args[0];
    let rows = Rows::new(norm, x, l)?;
    build_like((x, l), |out| {
        let (xs, vectors) = (RowOperand::new(x, l)?, dense(args[1..].iter().copied())?);
        let launch = rows.launch("fwd", vectors.len())?.input(&xs.operand);
        let params = rows.params(&[xs.parts()], &vectors);
        let launch = with_vectors(launch, &vectors, &xs.operand).output(out);
        launch.params(&params).run(rows.grid())
    })
}

pub fn inplace(norm: RowNorm, (x, l): ArgMut, vectors: Args) -> Result<()> {
    update((x, l), |x, xs| {
        let (rows, vectors) = (Rows::new(norm, x, l)?, dense(vectors.iter().copied())?);
        let launch = rows.launch("inplace", vectors.len())?.inout(xs);
        let params = rows.params(&[(xs, RowStrides::contiguous(rows.cols))], &vectors);
        let launch = with_vectors(launch, &vectors, xs);
        launch.params(&params).run(rows.grid())
    })
}

/// x + residual, rounded, and its norm: of x, residual and the vectors.
pub fn add(norm: RowNorm, args: Args) -> Result<[MetalStorage; 2]> {
    let ((x, xl), (r, rl)) = (args[0], args[1]);
    let rows = Rows::new(norm, x, xl)?;
    let (device, n, dtype) = (x.device(), rows.count(), x.dtype());
    let normed = alloc(device, n, dtype)?;
    let sum = build(x, n, |sum| {
        let (xs, rs) = (RowOperand::new(x, xl)?, RowOperand::new(r, rl)?);
        let vectors = dense(args[2..].iter().copied())?;
        let launch = rows.launch("add", vectors.len())?.input(&xs.operand);
        let params = rows.params(&[xs.parts(), rs.parts()], &vectors);
        with_vectors(launch.input(&rs.operand), &vectors, &xs.operand)
            .output(sum)
            .output(&normed)
            .params(&params)
            .run(rows.grid())
    })?;
    Ok([sum, finish(normed, device, n, dtype)])
}

/// `[dx, dweight, dbias]`, of the vectors' gradients the first `vectors`.
pub fn backward(op: &AffineBwd<RowNorm>, args: Args) -> OpResult {
    let (&AffineBwd { norm, vectors }, (x, xl), (g, gl)) = (op, args[0], args[1]);
    let rows = Rows::new(norm, x, xl)?;
    let (device, dtype) = (x.device(), x.dtype());
    let n = rows.count() + vectors * rows.cols;
    let out = alloc(device, n, dtype)?;
    if rows.cols == 0 {
        return Ok((finish(out, device, n, dtype), n.into()));
    }
    let (xs, gs) = (RowOperand::new(x, xl)?, RowOperand::new(g, gl)?);
    let stats = alloc(device, 3 * rows.rows.max(1), DType::F32)?;
    if rows.rows > 0 {
        let weight = dense(args.get(2).copied())?;
        rows.launch("bwd_x", weight.len())?
            .input(&xs.operand)
            .input(&gs.operand)
            .input_or(weight.first(), &xs.operand)
            .output(&out)
            .output(&stats)
            .params(&rows.params(&[xs.parts(), gs.parts()], &weight))
            .run(rows.grid())?;
    }
    if vectors > 0 {
        let wanted = vectors * rows.cols;
        let parts = grid::column_parts(rows.rows, rows.cols);
        let sums = alloc(device, parts * wanted, DType::F32)?;
        let name = dtype_name(dtype, norm.name())?;
        let params = PartsParams {
            x: xs.strides,
            g: gs.strides,
            rows: rows.rows as u32,
            cols: rows.cols as u32,
            rows_per_part: rows.rows.div_ceil(parts) as u32,
            parts: parts as u32,
        };
        let kernel = format!("row_norm_bwd_weight_{vectors}_{name}");
        Launch::new(device, &sources::ROW_NORM, &kernel)?
            .input(&xs.operand)
            .input(&gs.operand)
            .input_buffer(&stats)
            .output(&sums)
            .params(&params)
            .run(grid::columns(rows.cols, parts))?;
        let kernel = format!("row_norm_bwd_total_{name}");
        Launch::new(device, &sources::ROW_NORM, &kernel)?
            .input_buffer(&sums)
            .output_at(&out, rows.count() * dtype.size_in_bytes())
            .params(&PartsParams {
                cols: wanted as u32,
                ..params
            })
            .run(grid::elementwise(wanted, 1))?;
    }
    Ok((finish(out, device, n, dtype), n.into()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "row_norm" RowNormParams { x, other, rows, cols, eps, aligned }
    PartsParams => "row_norm" RowNormPartsParams { x, g, rows, cols, rows_per_part, parts }
}
