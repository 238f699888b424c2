//! The gradient of the logits, to memory of its own or over them.

use crate::metal::{
    aligned_rows, build_like, dtype_name, grid, sources, update, Launch, Operand, RowOperand,
    RowStrides,
};
use crate::op::on_metal::{Arg, ArgMut, Args, OpResult};
use crate::ops::cross_entropy::cpu::rows_and_cols;
use crate::ops::cross_entropy::NAME;
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalDevice, Result};

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

/// What a gradient reads beside the logits.
pub(crate) struct Gradients<'a> {
    pub(crate) factors: Operand<'a>,
    pub(crate) grad: Operand<'a>,
    pub(crate) weight: Option<Operand<'a>>,
}

impl<'a> Gradients<'a> {
    fn new(rest: Args<'a>, weight: Option<Arg<'a>>) -> Result<Self> {
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
pub fn gradient(args: Args, weight: Option<Arg>) -> OpResult {
    let (x, layout) = args[0];
    let size = rows_and_cols(layout.dims());
    build_like((x, layout), |dx| {
        let (xs, rest) = (
            RowOperand::new(x, layout)?,
            Gradients::new(&args[1..], weight)?,
        );
        let launch = rest.launch("bwd", x.device(), x.dtype())?;
        rest.bind(launch.input(&xs.operand))
            .output(dx)
            .params(&rest.params(xs.parts(), size))
            .run(grid::elementwise_rows(size[0], size[1], 4))
    })
}

/// The gradient in the memory of the logits.
pub fn gradient_inplace((x, layout): ArgMut, rest: Args, weight: Option<Arg>) -> Result<()> {
    let size = rows_and_cols(layout.dims());
    update((x, layout), |x, target| {
        Gradients::new(rest, weight)?.overwrite(x.device(), target, size, None)
    })
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    GradientParams => "cross_entropy" GradientParams { x, cols, grad_rows, aligned, cap, reserved }
}
