//! Launches of kernels/cross_entropy.metal.

use super::cpu::rows_and_cols;
use super::nll::{self, Nll};
use super::{loss_shape, CrossEntropy, Loss, LossReduction, FACTORS, NAME};
use crate::check;
use crate::metal::grid::{self, Grid};
use crate::metal::{
    aligned_rows, alloc, build, dtype_name, finish, row_grid, sources, update, Launch, Operand,
    RowOperand, RowStrides,
};
use crate::op::{Arg, ArgMut, Args, OpResult};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, DType, Layout, MetalDevice, MetalStorage, Result, Shape};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

#[repr(C)]
#[derive(Clone, Copy)]
struct LossParams {
    x: RowStrides,
    cols: u64,
    ignore: u64,
    rows: u32,
    has_ignore: u32,
    index_bytes: u32,
    has_weight: u32,
    hit: f32,
    spread: f32,
    z_loss: f32,
    sign: f32,
    mean: u32,
    aligned: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GradientParams {
    x: RowStrides,
    cols: u64,
    grad_rows: u32,
    aligned: u32,
    cap: f32,
    reserved: u32,
}

/// The arguments that all losses have, beside the logits.
pub(crate) struct Rows<'a> {
    name: &'static str,
    device: &'a MetalDevice,
    dtype: DType,
    size: [usize; 2],
    targets: Operand<'a>,
    weight: Option<Operand<'a>>,
    params: LossParams,
}

impl<'a> Rows<'a> {
    /// For rows and columns of logits of this dtype, targets and perhaps class weights.
    pub(crate) fn new(
        name: &'static str,
        op: &CrossEntropy,
        sign: f32,
        (device, dtype, [rows, cols]): (&'a MetalDevice, DType, [usize; 2]),
        rest: &[Arg<'a, MetalStorage>],
    ) -> Result<Self> {
        check_rows(name, rows)?;
        let weight = rest.get(1).map(|(w, l)| Operand::contiguous(w, l));
        let weight = weight.transpose()?;
        Ok(Rows {
            name,
            device,
            dtype,
            size: [rows, cols],
            targets: Operand::contiguous(rest[0].0, rest[0].1)?,
            params: LossParams {
                x: RowStrides::contiguous(cols),
                cols: cols as u64,
                ignore: op.ignore_index.unwrap_or(0) as u64,
                rows: rows as u32,
                has_ignore: op.ignore_index.is_some().into(),
                index_bytes: rest[0].0.dtype().size_in_bytes() as u32,
                has_weight: weight.is_some().into(),
                hit: 1.0 - op.label_smoothing,
                spread: op.label_smoothing / cols as f32,
                z_loss: op.z_loss,
                sign,
                mean: (op.reduction == LossReduction::Mean).into(),
                aligned: 0,
            },
            weight,
        })
    }

    fn launch(&self, pass: &str) -> Result<Launch<'_>> {
        let kernel = format!("{NAME}_{pass}_{}", dtype_name(self.dtype, self.name)?);
        Launch::new(self.device, &sources::CROSS_ENTROPY, &kernel)
    }

    /// One threadgroup that takes all rows.
    fn one_group(&self) -> Grid {
        grid::row_per_threadgroup(1, self.size[0], 1)
    }

    /// The divisor of a mean. No kernel reads it for other reductions.
    pub(crate) fn total(&self) -> Result<Arc<Buffer>> {
        let total = alloc(self.device, 1, DType::F32)?;
        if self.params.mean != 0 {
            self.launch("total")?
                .input(&self.targets)
                .input_or(self.weight.as_ref(), &self.targets)
                .output(&total)
                .params(&self.params)
                .run(self.one_group())?;
        }
        Ok(total)
    }

    /// Writes the losses of all rows, times what they count for, from a byte offset on, and the factors of their gradients.
    pub(crate) fn losses(
        &self,
        (x, strides): (&Operand, RowStrides),
        total: &Buffer,
        (losses, offset): (&Buffer, usize),
        factors: &Buffer,
    ) -> Result<()> {
        let (path, grid) = row_grid(self.size);
        let params = LossParams {
            x: strides,
            aligned: aligned_rows(&[(x, strides)], self.size),
            ..self.params
        };
        self.launch(&format!("fwd_{path}"))?
            .input(x)
            .input(&self.targets)
            .input_or(self.weight.as_ref(), &self.targets)
            .input_buffer(total)
            .output_at(losses, offset)
            .output(factors)
            .params(&params)
            .run(grid)
    }

    /// The result from the losses of all rows, which have been multiplied by what they count for.
    pub(crate) fn reduce(
        &self,
        losses: Arc<Buffer>,
        total: &Buffer,
        reduction: LossReduction,
    ) -> Result<MetalStorage> {
        let (rows, dtype) = (self.size[0], self.dtype);
        let count = match reduction {
            LossReduction::None if dtype == DType::F32 => {
                return Ok(finish(losses, self.device, rows, dtype))
            }
            LossReduction::None => rows,
            LossReduction::Mean | LossReduction::Sum => 1,
        };
        let (pass, grid) = match reduction {
            LossReduction::None => ("narrow", grid::elementwise(rows, 1)),
            LossReduction::Mean | LossReduction::Sum => ("sum", self.one_group()),
        };
        let out = alloc(self.device, count, dtype)?;
        self.launch(pass)?
            .input_buffer(&losses)
            .input_buffer(total)
            .output(&out)
            .params(&self.params)
            .run(grid)?;
        Ok(finish(out, self.device, count, dtype))
    }
}

/// Kernels count rows in 32 bits.
fn check_rows(name: &str, rows: usize) -> Result<()> {
    let message = format_args!("got {rows} rows, expected less than 2^32");
    check::ensure(rows < u32::MAX as usize, name, message)
}

/// The result without rows: a sum of nothing, or NaN for a mean.
pub(crate) fn of_nothing(reduction: LossReduction, x: &MetalStorage) -> Result<MetalStorage> {
    let values = match reduction {
        LossReduction::Mean => vec![f32::NAN],
        LossReduction::Sum => vec![0.0],
        LossReduction::None => vec![],
    };
    let layout = Layout::contiguous(values.len());
    let values = CpuStorage::F32(values).to_dtype(&layout, x.dtype())?;
    x.device().storage_from_cpu_storage(&values)
}

/// The loss, and the factors of its gradient.
pub fn forward(loss: &Loss, args: Args<MetalStorage>) -> Result<[(MetalStorage, Shape); 2]> {
    let ((x, layout), reduction) = (args[0], loss.op.reduction);
    let (device, shape) = (x.device(), loss_shape(reduction, layout.dims()));
    let [rows, cols] = rows_and_cols(layout.dims());
    let factors = alloc(device, rows * FACTORS, DType::U32)?;
    let kept = finish(factors.clone(), device, rows * FACTORS, DType::U32);
    let kept = (kept, Shape::from((rows, FACTORS)));
    if rows == 0 {
        return Ok([(of_nothing(reduction, x)?, shape), kept]);
    }
    let xs = RowOperand::new(x, layout)?;
    let logits = (device, x.dtype(), [rows, cols]);
    let all = Rows::new(loss.name, &loss.op, loss.sign(), logits, &args[1..])?;
    let (losses, total) = (alloc(device, rows, DType::F32)?, all.total()?);
    all.losses(xs.parts(), &total, (&losses, 0), &factors)?;
    Ok([(all.reduce(losses, &total, reduction)?, shape), kept])
}

/// What a gradient reads beside the logits.
pub(crate) struct Gradients<'a> {
    pub(crate) factors: Operand<'a>,
    pub(crate) grad: Operand<'a>,
    pub(crate) weight: Option<Operand<'a>>,
}

impl<'a> Gradients<'a> {
    fn new(rest: Args<'a, MetalStorage>, weight: Option<Arg<'a, MetalStorage>>) -> Result<Self> {
        let weight = weight.map(|(w, l)| Operand::contiguous(w, l));
        Ok(Gradients {
            factors: Operand::contiguous(rest[0].0, rest[0].1)?,
            grad: Operand::contiguous(rest[1].0, rest[1].1)?,
            weight: weight.transpose()?,
        })
    }

    fn params(&self, x: (&Operand, RowStrides), size: [usize; 2]) -> GradientParams {
        GradientParams {
            x: x.1,
            cols: size[1] as u64,
            grad_rows: (self.grad.count() > 1).into(),
            aligned: aligned_rows(&[x], size),
            cap: 0.0,
            reserved: 0,
        }
    }

    /// Replaces rows of logits, one behind the other, by their gradient; capped logits are f32.
    pub(crate) fn overwrite(
        &self,
        device: &MetalDevice,
        target: &Operand,
        size: [usize; 2],
        cap: Option<f32>,
    ) -> Result<()> {
        let pass = if cap.is_some() {
            "inplace_capped"
        } else {
            "inplace"
        };
        let rows = (target, RowStrides::contiguous(size[1]));
        let params = GradientParams {
            cap: cap.map_or(0.0, |cap| 1.0 / cap),
            ..self.params(rows, size)
        };
        let launch = self.launch(pass, device, target.dtype())?;
        self.bind(launch.inout(target))
            .params(&params)
            .run(grid::elementwise_rows(size[0], size[1], 4))
    }

    fn launch<'b>(&self, pass: &str, device: &'b MetalDevice, dtype: DType) -> Result<Launch<'b>> {
        let per_class = if self.weight.is_some() {
            "_per_class"
        } else {
            ""
        };
        let kernel = format!("{NAME}_{pass}{per_class}_{}", dtype_name(dtype, NAME)?);
        Launch::new(device, &sources::CROSS_ENTROPY, &kernel)
    }

    fn bind<'b>(&'b self, launch: Launch<'b>) -> Launch<'b> {
        launch
            .input(&self.factors)
            .input(&self.grad)
            .input_or(self.weight.as_ref(), &self.grad)
    }
}

/// The gradient of the logits from `(logits, factors, grad_out)`.
pub fn gradient(
    args: Args<MetalStorage>,
    weight: Option<Arg<MetalStorage>>,
) -> OpResult<MetalStorage> {
    let (x, layout) = args[0];
    let size = rows_and_cols(layout.dims());
    let dx = build(x, size[0] * size[1], |dx| {
        let (xs, rest) = (
            RowOperand::new(x, layout)?,
            Gradients::new(&args[1..], weight)?,
        );
        let launch = rest.launch("bwd", x.device(), x.dtype())?;
        rest.bind(launch.input(&xs.operand))
            .output(dx)
            .params(&rest.params(xs.parts(), size))
            .run(grid::elementwise_rows(size[0], size[1], 4))
    })?;
    Ok((dx, layout.shape().clone()))
}

/// The gradient in the memory of the logits.
pub fn gradient_inplace(
    (x, layout): ArgMut<MetalStorage>,
    rest: Args<MetalStorage>,
    weight: Option<Arg<MetalStorage>>,
) -> Result<()> {
    let size = rows_and_cols(layout.dims());
    update((x, layout), |x, target| {
        Gradients::new(rest, weight)?.overwrite(x.device(), target, size, None)
    })
}

pub fn nll(op: CrossEntropy, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
    let (x, layout) = args[0];
    let shape = loss_shape(op.reduction, layout.dims());
    let [rows, cols] = rows_and_cols(layout.dims());
    if rows == 0 {
        return Ok((of_nothing(op.reduction, x)?, shape));
    }
    let xs = RowOperand::new(x, layout)?;
    let logits = (x.device(), x.dtype(), [rows, cols]);
    let mut all = Rows::new(nll::NAME, &op, 1.0, logits, &args[1..])?;
    all.params.x = xs.strides;
    let (losses, total) = (alloc(x.device(), rows, DType::F32)?, all.total()?);
    all.launch("nll")?
        .input(&xs.operand)
        .input(&all.targets)
        .input_or(all.weight.as_ref(), &all.targets)
        .input_buffer(&total)
        .output(&losses)
        .params(&all.params)
        .run(grid::elementwise(rows, 1))?;
    Ok((all.reduce(losses, &total, op.reduction)?, shape))
}

/// `(grad_out, target[, weight])` → zeros, but −g · w at the targets.
pub fn nll_gradient(op: &Nll, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
    let (g, layout) = args[0];
    let size = rows_and_cols(op.shape.dims());
    let dx = build(g, size[0] * size[1], |dx| {
        let grad = Operand::contiguous(g, layout)?;
        let mut all = Rows::new(
            nll::NAME,
            &op.op,
            1.0,
            (g.device(), g.dtype(), size),
            &args[1..],
        )?;
        all.params.aligned = aligned_rows(&[], size);
        let total = all.total()?;
        let launch = all.launch("nll_bwd")?.input(&grad).input(&all.targets);
        launch
            .input_or(all.weight.as_ref(), &all.targets)
            .input_buffer(&total)
            .output(dx)
            .params(&all.params)
            .params(&u32::from(grad.count() > 1))
            .run(grid::elementwise_rows(size[0], size[1], 4))
    })?;
    Ok((dx, op.shape.clone()))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    LossParams => "cross_entropy" LossParams {
        x, cols, ignore, rows, has_ignore, index_bytes, has_weight, hit, spread, z_loss, sign, mean, aligned
    }
    GradientParams => "cross_entropy" GradientParams { x, cols, grad_rows, aligned, cap, reserved }
}
