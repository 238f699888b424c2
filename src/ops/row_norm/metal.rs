//! Launches of kernels/row_norm.metal.

use super::{Kind, RowNorm};
use crate::check;
use crate::metal::grid::Grid;
use crate::metal::{
    aligned4, aligned_rows, alloc, dtype_name, finish, grid, row_grid, sources, InPlace, Launch,
    Operand, RowOperand, RowStrides,
};
use crate::ops::affine_norm::{Arg, Vectors};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalStorage, Result, Shape};

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
    fn params(&self, tensors: &[(&Operand, RowStrides)], vectors: &[&Operand]) -> Params {
        let aligned = aligned_rows(tensors, [self.rows, self.cols]) & aligned4(vectors);
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

/// Weight and bias as operands, and how many there are.
pub fn operands<'a>(
    [weight, bias]: Vectors<'a, MetalStorage>,
) -> Result<(Vec<Operand<'a>>, usize)> {
    let operand = |(v, l): Arg<'a, MetalStorage>| Operand::contiguous(v, l);
    let operands = weight.into_iter().chain(bias).map(operand);
    let operands = operands.collect::<Result<Vec<_>>>()?;
    let count = operands.len();
    Ok((operands, count))
}

pub fn forward(
    norm: RowNorm,
    (x, l): Arg<MetalStorage>,
    vectors: Vectors<MetalStorage>,
) -> Result<(MetalStorage, Shape)> {
    let rows = Rows::new(norm, x, l)?;
    let out = alloc(x.device(), rows.count(), x.dtype())?;
    if rows.count() > 0 {
        let xs = RowOperand::new(x, l)?;
        let (vectors, count) = operands(vectors)?;
        let [weight, bias] = [0, 1].map(|i| vectors.get(i).unwrap_or(&xs.operand));
        rows.launch("fwd", count)?
            .input(&xs.operand)
            .input(weight)
            .input(bias)
            .output(&out)
            .params(&rows.params(&[xs.parts()], &[weight, bias]))
            .run(rows.grid())?;
    }
    let out = finish(out, x.device(), rows.count(), x.dtype());
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(
    norm: RowNorm,
    (x, l): Arg<MetalStorage>,
    vectors: Vectors<MetalStorage>,
) -> Result<()> {
    let rows = Rows::new(norm, x, l)?;
    if rows.count() == 0 {
        return Ok(());
    }
    let target = InPlace::new(x, l)?;
    let xs = target.operand();
    let (vectors, count) = operands(vectors)?;
    let [weight, bias] = [0, 1].map(|i| vectors.get(i).unwrap_or(xs));
    let tensors = [(xs, RowStrides::contiguous(rows.cols))];
    rows.launch("inplace", count)?
        .inout(xs)
        .input(weight)
        .input(bias)
        .params(&rows.params(&tensors, &[weight, bias]))
        .run(rows.grid())?;
    target.commit()
}

/// x + residual, rounded, and its norm.
pub fn add(
    norm: RowNorm,
    (x, xl): Arg<MetalStorage>,
    (r, rl): Arg<MetalStorage>,
    vectors: Vectors<MetalStorage>,
) -> Result<[MetalStorage; 2]> {
    let rows = Rows::new(norm, x, xl)?;
    let (device, n, dtype) = (x.device(), rows.count(), x.dtype());
    let (sum, normed) = (alloc(device, n, dtype)?, alloc(device, n, dtype)?);
    if n > 0 {
        let (xs, rs) = (RowOperand::new(x, xl)?, RowOperand::new(r, rl)?);
        let (vectors, count) = operands(vectors)?;
        let [weight, bias] = [0, 1].map(|i| vectors.get(i).unwrap_or(&xs.operand));
        rows.launch("add", count)?
            .input(&xs.operand)
            .input(&rs.operand)
            .input(weight)
            .input(bias)
            .output(&sum)
            .output(&normed)
            .params(&rows.params(&[xs.parts(), rs.parts()], &[weight, bias]))
            .run(rows.grid())?;
    }
    Ok([sum, normed].map(|out| finish(out, device, n, dtype)))
}

/// `[dx, dweight, dbias]`, of the vectors' gradients the first `vectors`.
pub fn backward(
    norm: RowNorm,
    (x, xl): Arg<MetalStorage>,
    (g, gl): Arg<MetalStorage>,
    weight: Option<Arg<MetalStorage>>,
    vectors: usize,
) -> Result<(MetalStorage, Shape)> {
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
        let (weights, count) = operands([weight, None])?;
        let weight = weights.first().unwrap_or(&xs.operand);
        rows.launch("bwd_x", count)?
            .input(&xs.operand)
            .input(&gs.operand)
            .input(weight)
            .output(&out)
            .output(&stats)
            .params(&rows.params(&[xs.parts(), gs.parts()], &[weight]))
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
