//! Chunks of rows on Metal: the logits of a chunk are a buffer of floats, which its gradient overwrites.

use super::{Outputs, Settings, NAME};
use crate::layout::MatrixLayout;
use crate::metal::matmul::{gemm, Matrix, Product};
use crate::metal::{alloc, finish, grid, sources, Launch, Operand, RowStrides};
use crate::op::on_metal::{Arg, Args};
use crate::ops::cross_entropy::metal::{of_nothing, Gradients, Rows};
use crate::ops::cross_entropy::{LossReduction, FACTORS};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalDevice, MetalStorage, Result, Shape, Storage};
use candle_metal_kernels::metal::Buffer;
use std::ops::Range;
use std::sync::Arc;

/// Of `(x, w, target[, weight])` and, if they are given, the gradients of the rows' losses.
pub fn run(
    op: &Settings,
    args: Args,
    grad: Option<Arg>,
    wanted: [bool; 2],
) -> Outputs<MetalStorage> {
    let ((x, xl), (w, wl)) = (args[0], args[1]);
    let (device, dtype) = (x.device(), x.dtype());
    let (x, xs) = matrix(x, xl)?;
    let (rows, cols, classes) = (xs.0.rows, xs.0.cols, wl.dims()[0]);
    let float = DType::F32;
    let made = match grad {
        None => float,
        Some(_) => dtype,
    };
    let memory = |count: usize, dtype: DType| {
        let buffer = alloc(device, count, dtype)?;
        Result::Ok(finish(buffer, device, count, dtype))
    };
    let count = |i: usize, count: usize| if wanted[i] { count } else { 0 };
    if rows == 0 {
        let dw = match wanted[1] && classes * cols > 0 {
            true => device.zeros_impl(&Shape::from(classes * cols), made)?,
            false => memory(0, made)?,
        };
        let grads = [memory(0, made)?, dw];
        return Ok((of_nothing(op.loss.reduction, &x)?, grads));
    }
    let targets = contiguous(args[2])?;
    let in_order = Layout::contiguous(rows);
    let rest = [&[(&targets, &in_order)], &args[3..]].concat();
    let all = Rows::new(NAME, &op.loss, 1.0, (device, dtype, [rows, classes]), &rest)?;
    let weight = args.get(3).map(|arg| floats(*arg)).transpose()?;
    let grad = match grad {
        Some(grad) => floats(grad)?,
        None => device.storage_from_cpu_storage(&CpuStorage::F32(vec![1.0]))?,
    };
    let chunks = Chunks {
        op,
        device,
        x: (&x, xs),
        w: (w, wl),
        targets: &targets,
        weight: weight.as_ref(),
        grad: (&grad, op.loss.reduction == LossReduction::None),
        total: all.total()?,
        losses: alloc(device, rows, float)?,
    };
    let mut dx = memory(count(0, rows * cols), float)?;
    let dw = alloc(device, count(1, classes * cols), float)?;
    let step = op.chunk_rows(rows, [classes, cols], wanted);
    for start in (0..rows).step_by(step) {
        let chunk = start..rows.min(start + step);
        let dlogits = chunks.gradient(chunk.clone(), wanted[0] || wanted[1])?;
        if wanted[0] {
            let part = chunks.dx(&dlogits, chunk.len())?;
            part.copy_strided_src(
                &mut dx,
                start * cols,
                &Layout::contiguous((chunk.len(), cols)),
            )?;
        }
        if wanted[1] {
            chunks.add_to_dw(&dlogits, chunk, &dw)?;
        }
    }
    let dw = finish(dw, device, count(1, classes * cols), float);
    let rounded = |sums: MetalStorage, count: usize| match (made, count) {
        (DType::F32, _) => Ok(sums),
        (_, 0) => memory(0, made),
        _ => sums.to_dtype(&Layout::contiguous(count), made),
    };
    let dx = rounded(dx, count(0, rows * cols))?;
    let dw = rounded(dw, count(1, classes * cols))?;
    let loss = all.reduce(chunks.losses, Some(&chunks.total), op.loss.reduction)?;
    Ok((loss, [dx, dw]))
}

/// For a graph.
pub fn storage(storage: MetalStorage) -> Storage {
    Storage::Metal(storage)
}

/// A tensor as a matrix and where it begins, copied where no single stride leads from row to row.
fn matrix(x: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, (MatrixLayout, usize))> {
    Ok(match MatrixLayout::new(layout) {
        Some(matrix) => (x.clone(), (matrix, layout.start_offset())),
        None => (
            contiguous((x, layout))?,
            (MatrixLayout::of_shape(layout.shape()), 0),
        ),
    })
}

/// The elements in their places, from the first on.
fn contiguous((x, layout): Arg) -> Result<MetalStorage> {
    if layout.is_contiguous() && layout.start_offset() == 0 {
        return Ok(x.clone());
    }
    let count = layout.shape().elem_count();
    let buffer = alloc(x.device(), count, x.dtype())?;
    let mut copy = finish(buffer, x.device(), count, x.dtype());
    x.copy_strided_src(&mut copy, 0, layout)?;
    Ok(copy)
}

/// The same in f32.
fn floats((x, layout): Arg) -> Result<MetalStorage> {
    match x.dtype() {
        // Candle has no cast to the same dtype.
        DType::F32 => contiguous((x, layout)),
        _ => x.to_dtype(layout, DType::F32),
    }
}

/// All that a chunk reads, and the losses.
struct Chunks<'a> {
    op: &'a Settings,
    device: &'a MetalDevice,
    x: (&'a MetalStorage, (MatrixLayout, usize)),
    w: (&'a MetalStorage, &'a Layout),
    targets: &'a MetalStorage,
    /// In floats.
    weight: Option<&'a MetalStorage>,
    /// In floats, and whether each row has its own.
    grad: (&'a MetalStorage, bool),
    total: Arc<Buffer>,
    losses: Arc<Buffer>,
}

impl Chunks<'_> {
    /// Some rows of x.
    fn x(&self, chunk: &Range<usize>) -> Layout {
        let (MatrixLayout { cols, row, col, .. }, start) = self.x.1;
        let shape = Shape::from((chunk.len(), cols));
        Layout::new(shape, vec![row, col], start + chunk.start * row)
    }

    /// Writes the losses of some rows; returns the gradient of their logits, if it is wanted.
    fn gradient(&self, chunk: Range<usize>, wanted: bool) -> Result<MetalStorage> {
        let (rows, classes, float) = (chunk.len(), self.w.1.dims()[0], DType::F32);
        let layout = self.x(&chunk);
        let (x, w) = ((self.x.0, &layout), self.w);
        let (xs, ws) = (Matrix::new(NAME, x)?, Matrix::new(NAME, w)?);
        let logits = Product::new(self.device, &xs, &ws).base(x, w)?;
        let count = rows * classes;
        let operand = Operand::fresh(logits.clone(), count, float);
        if let Some(cap) = self.op.softcap {
            Launch::new(
                self.device,
                &sources::CROSS_ENTROPY,
                "cross_entropy_cap_f32",
            )?
            .inout(&operand)
            .params(&[cap, 1.0 / cap])
            .params(&(count as u64))
            .run(grid::elementwise(count, 1))?;
        }
        let of_chunk = Layout::contiguous_with_offset(rows, chunk.start);
        let all_classes = Layout::contiguous(classes);
        let weight = self.weight.map(|w| (w, &all_classes));
        let rest: Vec<_> = [(self.targets, &of_chunk)]
            .into_iter()
            .chain(weight)
            .collect();
        let losses = Rows::new(
            NAME,
            &self.op.loss,
            1.0,
            (self.device, float, [rows, classes]),
            &rest,
        )?;
        let factors = alloc(self.device, rows * FACTORS, DType::U32)?;
        let place = (&*self.losses, chunk.start * float.size_in_bytes());
        losses.losses(
            (&operand, RowStrides::contiguous(classes)),
            Some(&self.total),
            place,
            &factors,
        )?;
        if wanted {
            let smoothed = weight.filter(|_| self.op.loss.label_smoothing > 0.0);
            let grad = match self.grad.1 {
                true => of_chunk,
                false => Layout::contiguous(1),
            };
            let gradients = Gradients {
                factors: Operand::fresh(factors, rows * FACTORS, DType::U32),
                grad: Operand::contiguous(self.grad.0, &grad)?,
                weight: smoothed
                    .map(|(w, l)| Operand::contiguous(w, l))
                    .transpose()?,
            };
            gradients.overwrite(self.device, &operand, [rows, classes], self.op.softcap)?;
        }
        Ok(finish(logits, self.device, count, float))
    }

    /// `dlogits·W` in f32.
    fn dx(&self, dlogits: &MetalStorage, rows: usize) -> Result<MetalStorage> {
        let (w, wl) = self.w;
        let (classes, cols, dtype) = (wl.dims()[0], wl.dims()[1], w.dtype());
        let float = DType::F32;
        let (layout, transposed) = (Layout::contiguous((rows, classes)), wl.transpose(0, 1)?);
        let (dlogits, w) = ((dlogits, &layout), (w, &transposed));
        let out = match dtype {
            DType::F32 => gemm(dlogits, w)?,
            _ => None,
        };
        let out = match out {
            Some(out) => out,
            None => {
                let (xs, ws) = (Matrix::new(NAME, dlogits)?, Matrix::new(NAME, w)?);
                let out = alloc(self.device, rows * cols, float)?;
                let variant = if dtype == float { "" } else { "_sum" };
                Product::new(self.device, &xs, &ws).tiles(variant, &out)?;
                out
            }
        };
        Ok(finish(out, self.device, rows * cols, float))
    }

    /// `dw += dlogitsᵀ·x`, or `=` for the first rows.
    fn add_to_dw(
        &self,
        dlogits: &MetalStorage,
        chunk: Range<usize>,
        dw: &Arc<Buffer>,
    ) -> Result<()> {
        let (classes, cols) = (self.w.1.dims()[0], self.w.1.dims()[1]);
        let dlogits_layout = Layout::contiguous((chunk.len(), classes)).transpose(0, 1)?;
        let x = self.x(&chunk).transpose(0, 1)?;
        let (xs, ws) = (
            Matrix::new(NAME, (dlogits, &dlogits_layout))?,
            Matrix::new(NAME, (self.x.0, &x))?,
        );
        let base = Operand::fresh(dw.clone(), classes * cols, DType::F32);
        let product = Product {
            base: (chunk.start > 0).then_some(&base),
            ..Product::new(self.device, &xs, &ws)
        };
        let variant = if product.dtype == DType::F32 {
            ""
        } else {
            "_sum"
        };
        product.tiles(variant, dw)
    }
}
