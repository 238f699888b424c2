//! Launches of kernels/cross_entropy.metal: the losses here, their gradients and the negative log-likelihood in files of their
//! own.

mod gradient;
mod nll;

pub(crate) use gradient::Gradients;
pub use gradient::{gradient, gradient_inplace};
pub use nll::{nll, nll_gradient};

use super::cpu::rows_and_cols;
use super::{loss_shape, CrossEntropy, Loss, LossReduction, FACTORS, NAME};
use crate::check;
use crate::metal::grid::{self, Grid};
use crate::metal::{
    aligned_rows, alloc, dtype_name, finish, row_grid, sources, Launch, Operand, RowOperand,
    RowStrides,
};
use crate::op::on_metal::{Arg, Args};
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
        rest: &[Arg<'a>],
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

    /// Binds the divisor of a mean, for a kernel that reads it only then.
    fn with_total<'b>(&'b self, launch: Launch<'b>, total: Option<&'b Buffer>) -> Launch<'b> {
        match total {
            Some(total) => launch.input_buffer(total),
            None => launch.input(&self.targets),
        }
    }

    /// Writes the losses of all rows, times what they count for, from a byte offset on, and the factors of their gradients.
    /// A mean needs the total.
    pub(crate) fn losses(
        &self,
        (x, strides): (&Operand, RowStrides),
        total: Option<&Buffer>,
        (losses, offset): (&Buffer, usize),
        factors: &Buffer,
    ) -> Result<()> {
        let (path, grid) = row_grid(self.size);
        let params = LossParams {
            x: strides,
            aligned: aligned_rows(&[(x, strides)], self.size),
            ..self.params
        };
        let launch = self
            .launch(&format!("fwd_{path}"))?
            .input(x)
            .input(&self.targets)
            .input_or(self.weight.as_ref(), &self.targets);
        self.with_total(launch, total)
            .output_at(losses, offset)
            .output(factors)
            .params(&params)
            .run(grid)
    }

    /// The same losses, which are not divided by anything yet.
    fn undivided(mut self) -> Self {
        self.params.mean = 0;
        self
    }

    /// The result from the losses of all rows, which are not divided by anything yet. A mean divides the factors of their
    /// gradients too.
    fn result(
        &self,
        losses: Arc<Buffer>,
        factors: Option<&Buffer>,
        reduction: LossReduction,
    ) -> Result<MetalStorage> {
        match reduction {
            LossReduction::Mean => self.mean(&losses, factors),
            LossReduction::Sum | LossReduction::None => self.reduce(losses, None, reduction),
        }
    }

    /// The mean of the losses of all rows, which are not divided by anything yet.
    fn mean(&self, losses: &Buffer, factors: Option<&Buffer>) -> Result<MetalStorage> {
        let pass = if factors.is_some() {
            "mean"
        } else {
            "mean_only"
        };
        let out = alloc(self.device, 1, self.dtype)?;
        let launch = self
            .launch(pass)?
            .input_buffer(losses)
            .input(&self.targets)
            .input_or(self.weight.as_ref(), &self.targets);
        let launch = match factors {
            Some(factors) => launch.overwrite(factors, 0),
            None => launch.input_buffer(losses),
        };
        launch
            .output(&out)
            .params(&self.params)
            .run(self.one_group())?;
        Ok(finish(out, self.device, 1, self.dtype))
    }

    /// The result from the losses of all rows, which have been multiplied by what they count for.
    pub(crate) fn reduce(
        &self,
        losses: Arc<Buffer>,
        total: Option<&Buffer>,
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
        self.with_total(self.launch(pass)?.input_buffer(&losses), total)
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
pub fn forward(loss: &Loss, args: Args) -> Result<[(MetalStorage, Shape); 2]> {
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
    let all = Rows::new(loss.name, &loss.op, loss.sign(), logits, &args[1..])?.undivided();
    let losses = alloc(device, rows, DType::F32)?;
    all.losses(xs.parts(), None, (&losses, 0), &factors)?;
    let result = all.result(losses, Some(&factors), reduction)?;
    Ok([(result, shape), kept])
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    LossParams => "cross_entropy" LossParams {
        x, cols, ignore, rows, has_ignore, index_bytes, has_weight, hit, spread, z_loss, sign, mean, aligned
    }
}
