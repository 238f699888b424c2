//! `y = x·Wᵀ + bias` with W in one of Candle's GGUF types: Candle's own product, with the gradient to x that it lacks.
//!
//! Backward: `dx = g·W`, for which W is dequantised a few rows at a time.

use super::{up, NAME};
use crate::check;
use crate::op::OpResult;
use crate::ops::linear::{check_bias, flatten_rows, frozen_product, output_shape};
use candle_core::quantized::QTensor;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, D};
use std::borrow::Cow;
use std::sync::Arc;

/// Elements that are dequantised at once: 4 MB of f32, small beside any weight that is quantised.
const PANEL: usize = 1 << 20;

/// How many rows of `cols` elements are dequantised at once, of `out`.
pub(super) fn rows_at_once(out: usize, cols: usize) -> usize {
    (PANEL / cols.max(1)).clamp(1, out.max(1))
}

/// The number of outputs.
pub(super) fn check_args(
    name: &'static str,
    x: &Tensor,
    w: &QTensor,
    bias: Option<&Tensor>,
) -> Result<usize> {
    check::is_float(name, x)?;
    check::has_dims(name, x.layout())?;
    let last = x.dim(D::Minus1)?;
    let (got, expected) = (w.device().location(), x.device().location());
    if got != expected {
        let message = format!("got weight on {got:?}, expected {expected:?} as for x");
        return Err(check::error(name, message));
    }
    match *w.shape().dims() {
        [out, cols] if cols == last => {
            if let Some(bias) = bias {
                check::same_device(name, &["x", "bias"], &[x, bias])?;
                check::same_dtype(name, x.dtype(), "bias", bias.dtype())?;
            }
            check_bias(name, out, bias.map(Tensor::layout)).map(|()| out)
        }
        _ => {
            let shape = w.shape();
            let message = format!(
                "got weight of shape {shape:?}, expected [out, {last}] for x's last dim of {last}"
            );
            Err(check::error(name, message))
        }
    }
}

/// `x·Wᵀ + bias`. Candle's kernels want f32 (on Metal) and dense rows; their sums are rounded once, after the bias.
pub(super) fn linear(x: &Tensor, w: &Arc<QTensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let out = check_args(NAME, x, w, bias)?;
    let rows = flatten_rows(x)?.to_dtype(DType::F32)?.contiguous()?;
    let y = match rows.elem_count() {
        0 => Tensor::zeros((rows.dim(0)?, out), DType::F32, x.device())?,
        _ if rows.track_op() => rows.apply_op1(GgufLinear(w.clone()))?,
        _ => rows.apply_op1_no_bwd(&GgufLinear(w.clone()))?,
    };
    let y = match bias {
        Some(bias) => y.broadcast_add(&bias.to_dtype(DType::F32)?)?,
        None => y,
    };
    y.to_dtype(x.dtype())?
        .reshape(output_shape(x.layout(), out))
}

/// `x·Wᵀ` of f32 rows. It forwards to Candle's own CustomOp, on CUDA too.
#[derive(Debug)]
struct GgufLinear(Arc<QTensor>);

impl CustomOp1 for GgufLinear {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> OpResult<CpuStorage> {
        self.0.cpu_fwd(x, l)
    }
    fn cuda_fwd(&self, x: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        self.0.cuda_fwd(x, l)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> OpResult<MetalStorage> {
        self.0.metal_fwd(x, l)
    }
    fn bwd(&self, _: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let (out, cols) = self.0.shape().dims2()?;
        let rows = rows_at_once(out, cols);
        let data = self.0.data()?;
        let mut dx: Option<Tensor> = None;
        for start in (0..out).step_by(rows) {
            let panel = self::rows(&self.0, &data, start, rows.min(out - start))?.t()?;
            let g = g.narrow(D::Minus1, start, panel.dim(1)?)?;
            dx = Some(match dx {
                None => frozen_product(&g, &panel, 1.0)?,
                Some(dx) => up::up_add(&dx, &g, &panel, 1.0)?,
            });
        }
        Ok(dx)
    }
}

/// `count` rows of a quantised weight from `start` on, as f32; `data` is what [`QTensor::data`] gives.
pub(super) fn rows(w: &QTensor, data: &[u8], start: usize, count: usize) -> Result<Tensor> {
    let (dtype, cols) = (w.dtype(), w.shape().dims()[1]);
    let bytes = cols / dtype.block_size() * dtype.type_size();
    let rows = Cow::Borrowed(&data[start * bytes..(start + count) * bytes]);
    let values = dtype.from_data(rows).dequantize(count * cols)?;
    Tensor::from_slice(values.as_slice::<f32>()?, (count, cols), &w.device())
}
