//! One product or a batch of them on Metal.

use super::{output_shape, NAME};
use crate::act::Act;
use crate::layout::{BatchDim, BatchLayout};
use crate::metal::matmul::{act_tiles, candle_gemm, Matrix, Product, BATCH_DIMS};
use crate::metal::{alloc, finish, Operand};
use crate::op::on_metal::{Arg, OpResult};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalDevice, Result, Shape};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

pub fn forward(act: Act, x: Arg, y: Arg, bias: Option<Arg>) -> OpResult {
    let shape = output_shape(NAME, x.1, y.1, bias.map(|(_, l)| l))?;
    let (device, dtype, count) = (x.0.device(), x.0.dtype(), shape.elem_count());
    let out = match count {
        0 => alloc(device, 0, dtype)?,
        _ => {
            let bias = bias.map(|(b, l)| Operand::contiguous(b, l)).transpose()?;
            Products::new(&shape, x, y)?.run(device, act, bias.as_ref())?
        }
    };
    Ok((finish(out, device, count, dtype), shape))
}

/// The products of two batch.
struct Products<'a> {
    x: Matrix<'a>,
    /// yᵀ
    w: Matrix<'a>,
    dims: Vec<BatchDim>,
}

impl<'a> Products<'a> {
    /// The operands where they lie. They are copied only where the kernel cannot walk so many leading dims.
    fn new(shape: &Shape, x: Arg<'a>, y: Arg<'a>) -> Result<Self> {
        let leading = &shape.dims()[..shape.rank() - 2];
        let mut batch = BatchLayout::new(leading, x.1, y.1);
        let (xs, ys) = if batch.dims.len() <= BATCH_DIMS {
            (Operand::strided(x.0, x.1), Operand::strided(y.0, y.1))
        } else {
            let [xl, yl] = [repeated(leading, x.1)?, repeated(leading, y.1)?];
            let [of_x, of_y] = [&xl, &yl].map(|l| Layout::contiguous(l.shape()));
            batch = BatchLayout::new(leading, &of_x, &of_y);
            (
                Operand::contiguous(x.0, &xl)?,
                Operand::contiguous(y.0, &yl)?,
            )
        };
        Ok(Products {
            x: Matrix::at(NAME, xs, batch.x)?,
            w: Matrix::at(NAME, ys, batch.y.t())?,
            dims: batch.dims,
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
            return candle_gemm::stacked_gemm(
                device,
                stack,
                (&x.operand, x.layout),
                (&w.operand, w.layout),
            );
        }
        act_tiles(&one, &self.dims)
    }

    /// How many products there are and how far apart, where Candle's GEMM takes them.
    fn for_gemm(&self) -> Option<(usize, [usize; 2])> {
        let (x, w) = (self.x.layout, self.w.layout);
        let fit = candle_gemm::fits(x) && candle_gemm::fits(w) && x.cols > 0;
        match self.dims[..] {
            [] if fit => Some((1, [0, 0])),
            [BatchDim { size, x, y }] if fit => Some((size, [x, y])),
            _ => None,
        }
    }
}

/// The layout with these leading dims.
fn repeated(leading: &[usize], layout: &Layout) -> Result<Layout> {
    let last_two = &layout.dims()[layout.dims().len() - 2..];
    layout.broadcast_as([leading, last_two].concat())
}
